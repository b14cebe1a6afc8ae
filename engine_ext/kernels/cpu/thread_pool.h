// A fixed set of workers for short parallel regions. Knows nothing of what it runs.
//
// A region cuts [0, n) into fixed chunks (a function of n and the thread count), which the caller and the
// workers claim one by one, so that a thread that lost its core holds up one chunk and not half the region.
// Workers spin for some tens of microseconds after a region, since the next layer's follows at once, and then
// sleep, so that an idle engine costs nothing. All models of a process share one pool (models/model.cpp).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace ion::kernels {

// A mutex that is had in the order of asking. std::mutex lets whoever unlocks lock again at once, so of two
// models that compute without a pause one would hardly ever run.
class FairMutex {
 public:
  void lock() {
    std::unique_lock lock(mutex_);
    const uint64_t mine = num_asked_++;
    is_next_.wait(lock, [&] { return num_over_ == mine; });
  }
  void unlock() {
    {
      const std::lock_guard lock(mutex_);
      ++num_over_;
    }
    is_next_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable is_next_;
  uint64_t num_asked_ = 0, num_over_ = 0;
};

class ThreadPool {
 public:
  // `num_threads` counts the calling thread; less than 1 is 1. Throws std::system_error if threads cannot be
  // started.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // For a caller of many regions in a row (a step): until the lock goes, no other holder of a turn comes
  // between, and turns go round in the order of asking. A pool without workers needs none.
  std::unique_lock<FairMutex> take_turn() {
    return workers_.empty() ? std::unique_lock<FairMutex>() : std::unique_lock(turn_);
  }

  // Calls fn(begin, end) over disjoint pieces of [0, n) and returns when all are done. Regions from several
  // threads run one after the other. fn must not throw and must not start a region on the same pool.
  template <typename Fn>
  void parallel_for(int64_t n, Fn&& fn) {
    using Bare = std::remove_reference_t<Fn>;
    run(
        n, [](void* context, int64_t begin, int64_t end) { (*static_cast<Bare*>(context))(begin, end); },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }

 private:
  using Body = void (*)(void* context, int64_t begin, int64_t end);

  void run(int64_t n, Body body, void* context);
  void announce();
  void wait_until_done();
  void work();
  void run_chunks();
  bool claim(uint32_t& chunk);
  void finish_chunk();
  bool await_region(uint32_t seen);
  void stop();

  FairMutex turn_;
  FairMutex caller_;  // held for a whole region
  std::vector<std::thread> workers_;

  // The region in progress: written by the caller before `ticket_` offers chunks, read after a claim.
  Body body_ = nullptr;
  void* context_ = nullptr;
  int64_t n_ = 0;
  uint32_t num_chunks_ = 0;

  alignas(64) std::atomic<uint32_t> ticket_{0};    // chunks not claimed
  alignas(64) std::atomic<uint32_t> num_left_{0};  // chunks not finished
  alignas(64) std::atomic<uint32_t> region_{0};    // counts regions
  alignas(64) std::atomic<int32_t> num_sleeping_{0};
  std::atomic<bool> caller_sleeps_{false};
  std::atomic<bool> stopping_{false};
  std::mutex sleep_;
  std::condition_variable region_started_;
  std::condition_variable region_done_;
};

}  // namespace ion::kernels
