// Device memory and pinned host memory that free themselves.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "kernels/cuda/check.h"

namespace ion::cuda {

constexpr int64_t kAlignment = 256;

inline int64_t aligned(int64_t num_bytes) {
  return (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Move-only. Not zeroed.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  // Throws std::runtime_error naming `what`, the bytes needed and the bytes free.
  DeviceMemory(int64_t num_bytes, const std::string& what) : num_bytes_(num_bytes) {
    if (num_bytes == 0 || cudaMalloc(&data_, num_bytes) == cudaSuccess) return;
    cudaGetLastError();
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    throw std::runtime_error(what + ": " + std::to_string(num_bytes) + " bytes of device memory needed, " +
                             std::to_string(free) + " free");
  }
  ~DeviceMemory() { cudaFree(data_); }
  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(num_bytes_, other.num_bytes_);
    return *this;
  }

  template <typename T>
  T* as(int64_t offset_bytes = 0) const {
    return reinterpret_cast<T*>(static_cast<std::byte*>(data_) + offset_bytes);
  }
  int64_t num_bytes() const { return num_bytes_; }

 private:
  void* data_ = nullptr;
  int64_t num_bytes_ = 0;
};

// Host memory that the device reads and writes in place and copies from at full speed. Move-only; zeroed if
// wished.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  PinnedMemory(int64_t num_bytes, const std::string& what, bool is_zeroed = true) : num_bytes_(num_bytes) {
    if (num_bytes == 0) return;
    check(cudaHostAlloc(&data_, num_bytes, cudaHostAllocMapped), what.c_str());
    if (is_zeroed) std::memset(data_, 0, num_bytes);
  }
  ~PinnedMemory() { cudaFreeHost(data_); }
  PinnedMemory(PinnedMemory&& other) noexcept { *this = std::move(other); }
  PinnedMemory& operator=(PinnedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(num_bytes_, other.num_bytes_);
    return *this;
  }

  template <typename T>
  T* as(int64_t offset_bytes = 0) const {
    return reinterpret_cast<T*>(static_cast<std::byte*>(data_) + offset_bytes);
  }
  // The same bytes as the device addresses them.
  template <typename T>
  T* on_device(int64_t offset_bytes = 0) const {
    void* device = nullptr;
    check(cudaHostGetDevicePointer(&device, data_, 0), "mapped memory");
    return reinterpret_cast<T*>(static_cast<std::byte*>(device) + offset_bytes);
  }
  int64_t num_bytes() const { return num_bytes_; }

 private:
  void* data_ = nullptr;
  int64_t num_bytes_ = 0;
};

}  // namespace ion::cuda
