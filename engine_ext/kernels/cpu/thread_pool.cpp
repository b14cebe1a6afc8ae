#include "thread_pool.h"

#include <algorithm>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace ion::kernels {
namespace {

// About 40 us of pauses on current x86: longer than the gap between two layers' regions, far shorter than a
// step.
constexpr int kSpins = 1000;
constexpr uint32_t kChunksPerThread = 8;

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  const int total = std::max(1, num_threads);
  workers_.reserve(static_cast<std::size_t>(total - 1));
  try {
    for (int i = 1; i < total; ++i) workers_.emplace_back([this] { work(); });
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() {
  stop();
}

void ThreadPool::stop() {
  {
    std::lock_guard lock(sleep_);
    stopping_ = true;
  }
  region_started_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(int64_t n, Body body, void* context) {
  if (n <= 0) return;
  if (workers_.empty() || n == 1) return body(context, 0, n);
  std::lock_guard region(caller_);
  body_ = body;
  context_ = context;
  n_ = n;
  num_chunks_ = static_cast<uint32_t>(std::min<int64_t>(n, int64_t{kChunksPerThread} * num_threads()));
  announce();
  run_chunks();
  wait_until_done();
}

// The store to `region_` and the load of `num_sleeping_` are both sequentially consistent, as are the
// worker's, in the other order: either the caller sees the sleeper or the sleeper sees the region.
void ThreadPool::announce() {
  num_left_.store(num_chunks_);
  ticket_.store(num_chunks_);
  region_.fetch_add(1);
  if (num_sleeping_.load() == 0) return;
  {
    std::lock_guard lock(sleep_);
  }
  region_started_.notify_all();
}

void ThreadPool::wait_until_done() {
  for (int i = 0; i < kSpins; ++i) {
    if (num_left_.load() == 0) return;
    pause();
  }
  std::unique_lock lock(sleep_);
  caller_sleeps_ = true;
  region_done_.wait(lock, [this] { return num_left_.load() == 0; });
  caller_sleeps_ = false;
}

void ThreadPool::work() {
  uint32_t seen = 0;
  while (await_region(seen)) {
    seen = region_.load();
    run_chunks();
  }
}

// False: the pool stops.
bool ThreadPool::await_region(uint32_t seen) {
  for (int i = 0; i < kSpins; ++i) {
    if (region_.load() != seen) return true;
    pause();
  }
  std::unique_lock lock(sleep_);
  ++num_sleeping_;
  region_started_.wait(lock, [&] { return region_.load() != seen || stopping_.load(); });
  --num_sleeping_;
  return region_.load() != seen;
}

void ThreadPool::run_chunks() {
  uint32_t chunk;
  while (claim(chunk)) {
    body_(context_, n_ * chunk / num_chunks_, n_ * (chunk + 1) / num_chunks_);
    finish_chunk();
  }
}

// A claim pins the region: the caller cannot write the next one before this chunk is finished. A late worker
// therefore claims from whatever region is current, or nothing.
bool ThreadPool::claim(uint32_t& chunk) {
  uint32_t left = ticket_.load();
  while (left > 0) {
    if (ticket_.compare_exchange_weak(left, left - 1)) {
      chunk = num_chunks_ - left;
      return true;
    }
  }
  return false;
}

void ThreadPool::finish_chunk() {
  if (num_left_.fetch_sub(1) != 1 || !caller_sleeps_.load()) return;
  {
    std::lock_guard lock(sleep_);
  }
  region_done_.notify_one();
}

}  // namespace ion::kernels
