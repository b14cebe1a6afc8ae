// Weights on their way to the device, through pinned memory that several threads fill at once: one thread
// copies pageable memory at a third of the link's speed. Knows bytes only.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "cuda/device_memory.h"

namespace ion::cuda {

class Upload {
 public:
  explicit Upload(int32_t device);
  ~Upload();
  Upload(const Upload&) = delete;
  Upload& operator=(const Upload&) = delete;

  // Returns when `from` may be changed and the bytes are on the device. Throws std::runtime_error.
  void copy(std::byte* to, const std::byte* from, int64_t num_bytes);

 private:
  struct Lane {
    PinnedMemory staging;  // two halves, in turns
    cudaStream_t stream = nullptr;
    cudaEvent_t is_free[2] = {};
  };

  void run(Lane& lane);
  void send(Lane& lane, int half, int64_t first, int64_t count);

  int32_t device_;
  std::vector<Lane> lanes_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::byte* to_ = nullptr;
  const std::byte* from_ = nullptr;
  int64_t num_bytes_ = 0, next_ = 0;  // of the copy under way: the first byte that nobody has taken
  int32_t num_busy_ = 0;
  bool is_over_ = false;
  std::exception_ptr fault_;
};

}  // namespace ion::cuda
