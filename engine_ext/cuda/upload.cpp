// Every lane takes the next piece, copies it into its half and sends that on, while its other half is under
// way.
#include "cuda/upload.h"

#include <algorithm>
#include <cstring>

namespace ion::cuda {
namespace {

constexpr int64_t kPiece = 1 << 20;
constexpr int32_t kMostLanes = 8;

}  // namespace

Upload::Upload(int32_t device) : device_(device) {
  const auto num_cpus = static_cast<int32_t>(std::thread::hardware_concurrency());
  lanes_.resize(std::clamp(num_cpus / 2, 1, kMostLanes));
  for (Lane& lane : lanes_) {
    lane.staging = PinnedMemory(2 * kPiece, "staging of weights");
    check(cudaStreamCreateWithFlags(&lane.stream, cudaStreamNonBlocking), "stream");
    for (cudaEvent_t& event : lane.is_free) {
      check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
    }
  }
  for (Lane& lane : lanes_) threads_.emplace_back([this, &lane] { run(lane); });
}

Upload::~Upload() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  for (Lane& lane : lanes_) {
    cudaStreamDestroy(lane.stream);
    for (const cudaEvent_t event : lane.is_free) cudaEventDestroy(event);
  }
}

void Upload::copy(std::byte* to, const std::byte* from, int64_t num_bytes) {
  std::unique_lock lock(mutex_);
  to_ = to, from_ = from, num_bytes_ = num_bytes, next_ = 0, fault_ = nullptr;
  changed_.notify_all();
  changed_.wait(lock, [&] { return next_ >= num_bytes_ && num_busy_ == 0; });
  num_bytes_ = 0;
  if (fault_) std::rethrow_exception(fault_);
}

void Upload::run(Lane& lane) {
  cudaSetDevice(device_);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return is_over_ || next_ < num_bytes_; });
    if (is_over_) return;
    ++num_busy_;
    std::exception_ptr fault;
    for (int half = 0; next_ < num_bytes_ && !fault; half ^= 1) {
      const int64_t first = next_, count = std::min(kPiece, num_bytes_ - first);
      next_ += count;
      lock.unlock();
      try {
        send(lane, half, first, count);
      } catch (...) {
        fault = std::current_exception();
      }
      lock.lock();
    }
    lock.unlock();
    const cudaError_t status = cudaStreamSynchronize(lane.stream);
    lock.lock();
    if (!fault && status != cudaSuccess) {
      fault = std::make_exception_ptr(
          std::runtime_error(std::string("copy of weights: ") + cudaGetErrorString(status)));
    }
    if (fault) fault_ = fault, next_ = num_bytes_;
    --num_busy_;
    changed_.notify_all();
  }
}

void Upload::send(Lane& lane, int half, int64_t first, int64_t count) {
  check(cudaEventSynchronize(lane.is_free[half]), "copy of weights");
  auto* staged = lane.staging.as<std::byte>(half * kPiece);
  std::memcpy(staged, from_ + first, count);
  check(cudaMemcpyAsync(to_ + first, staged, count, cudaMemcpyHostToDevice, lane.stream), "copy of weights");
  check(cudaEventRecord(lane.is_free[half], lane.stream), "event");
}

}  // namespace ion::cuda
