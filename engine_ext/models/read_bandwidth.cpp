// A plain sum over memory that no cache holds. See read_bandwidth.h.
#include "models/read_bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <vector>

#include "models/memory.h"

namespace ion {
namespace {

constexpr int64_t kBytes = int64_t{512} << 20;
constexpr int kPasses = 7;
constexpr int64_t kLanes = 32;  // sums side by side, so that none waits for the one before

uint64_t sum_of(const uint64_t* values, int64_t count) {
  uint64_t lanes[kLanes] = {};
  for (int64_t i = 0; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += values[i + lane];
  }
  uint64_t total = 0;
  for (const uint64_t lane : lanes) total += lane;
  return total;
}

}  // namespace

double read_bandwidth(kernels::ThreadPool& pool) {
  const Memory memory(kBytes, "measuring the memory's speed");
  auto* values = reinterpret_cast<uint64_t*>(memory.data());
  constexpr int64_t kCount = kBytes / 8;
  pool.parallel_for(kCount, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) values[i] = static_cast<uint64_t>(i);
  });
  std::vector<double> rates;
  std::atomic<uint64_t> seen{0};  // keeps the sums from being left out
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto began = std::chrono::steady_clock::now();
    pool.parallel_for(kCount,
                      [&](int64_t begin, int64_t end) { seen += sum_of(values + begin, end - begin); });
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - began;
    rates.push_back(static_cast<double>(kBytes) / spent.count());
  }
  std::ranges::nth_element(rates, rates.begin() + kPasses / 2);
  return rates[kPasses / 2];
}

}  // namespace ion
