// Rows to sample from, frequencies over many seeds and their test against probabilities.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

#include "kernels/sampler.h"
#include "support.h"

namespace support {

using namespace ion::kernels;

class Row {
 public:
  explicit Row(std::vector<float> logits)
      : logits_(std::move(logits)), scratch_(sampler_scratch_bytes(static_cast<int64_t>(logits_.size()))) {}

  SampleResult sample(const SamplerParams& params, int64_t position = 0,
                      std::span<const TokenCount> counts = {}, std::span<SampledLogprob> top = {}) {
    return ion::kernels::sample(logits_.data(), size(), params, counts, position, top, scratch_.data());
  }
  int32_t id(const SamplerParams& params, int64_t position = 0, std::span<const TokenCount> counts = {}) {
    return sample(params, position, counts).id;
  }
  int64_t size() const { return static_cast<int64_t>(logits_.size()); }
  std::vector<float>& logits() { return logits_; }
  void* scratch() { return scratch_.data(); }

 private:
  std::vector<float> logits_;
  Aligned scratch_;
};

inline SamplerParams greedy() {
  SamplerParams params;
  params.temperature = 0;
  return params;
}

// Frequencies of ids over many seeds.
inline std::map<int32_t, int> draws(Row& row, SamplerParams params, int num,
                                    std::span<const TokenCount> counts = {}) {
  std::map<int32_t, int> seen;
  for (int i = 0; i < num; ++i) {
    params.seed = static_cast<uint64_t>(i) * 7919;
    ++seen[row.id(params, i % 3, counts)];
  }
  return seen;
}

// Whether frequencies fit the probabilities: chi squared against a bound near p = 1e-5.
inline bool fits(const std::map<int32_t, int>& seen, const std::map<int32_t, double>& probabilities,
                 int num) {
  double chi = 0, total = 0;
  for (const auto& [id, p] : probabilities) total += p;
  for (const auto& [id, p] : probabilities) {
    const double want = num * p / total, got = seen.contains(id) ? seen.at(id) : 0;
    chi += (got - want) * (got - want) / want;
  }
  for (const auto& [id, count] : seen) {
    if (!probabilities.contains(id)) return false;
  }
  const double k = static_cast<double>(probabilities.size()) - 1;
  return chi < k + 5 * std::sqrt(2 * k) + 12;
}

inline std::map<int32_t, double> softmax(const std::vector<float>& logits, double temperature) {
  std::map<int32_t, double> p;
  for (std::size_t i = 0; i < logits.size(); ++i)
    p[static_cast<int32_t>(i)] = std::exp(double{logits[i]} / temperature);
  return p;
}

inline const std::vector<float> kEight = {0.5f, 2.0f, -1.0f, 1.5f, 0.0f, 2.5f, -0.5f, 1.0f};

}  // namespace support
