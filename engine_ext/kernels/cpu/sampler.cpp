// The sampler's stages, in the order that sampler.h promises. Knows no sequence: one row in, one id out.
#include "../sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "selection.h"
#include "table.h"

namespace ion::kernels {
namespace {

constexpr float kGreedyBelow = 1e-5f;   // temperatures under this are 0, as in vLLM
constexpr float kLeastWeight = 1e-38f;  // weights are 0 or above e^-87
constexpr int64_t kBlock = 256;         // weights summed at once

int64_t align64(int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

float* work_of(void* scratch) {
  return static_cast<float*>(scratch);
}

void* selection_of(void* scratch, int64_t vocab) {
  return static_cast<char*>(scratch) + align64(vocab * 4);
}

bool all_finite(const float* logits, int64_t vocab) {
  uint32_t bad = 0;
  for (int64_t i = 0; i < vocab; ++i) {
    bad |= (std::bit_cast<uint32_t>(logits[i]) & 0x7f800000u) == 0x7f800000u ? 1u : 0u;
  }
  return bad == 0;
}

void penalize(float* logits, int64_t vocab, const SamplerParams& p, std::span<const TokenCount> counts) {
  for (const TokenCount& count : counts) {
    if (count.id < 0 || count.id >= vocab || count.prompt + count.generated <= 0) continue;
    float& logit = logits[count.id];
    logit = logit > 0 ? logit / p.repetition_penalty : logit * p.repetition_penalty;
    if (count.generated <= 0) continue;
    logit -= p.frequency_penalty * static_cast<float>(count.generated) + p.presence_penalty;
  }
}

void mask(float* logits, int64_t vocab, const SamplerParams& p) {
  for (const int32_t id : p.masked_ids) {
    if (id >= 0 && id < vocab) logits[id] = -INFINITY;
  }
  if (p.allowed_mask.empty()) return;
  for (int64_t i = 0; i < vocab; ++i) {
    const std::size_t word = static_cast<std::size_t>(i / 32);
    const bool allowed = word < p.allowed_mask.size() && (p.allowed_mask[word] >> i % 32 & 1u);
    if (!allowed) logits[i] = -INFINITY;
  }
}

// Stages 1 to 3. Returns the raw row where they change nothing, else `work`.
const float* adjust(float* work, const float* logits, int64_t vocab, const SamplerParams& p,
                    std::span<const TokenCount> counts) {
  const bool penalizes = p.repetition_penalty != 1 || p.presence_penalty != 0 || p.frequency_penalty != 0;
  const bool masks = !p.masked_ids.empty() || !p.allowed_mask.empty();
  if (!penalizes && !masks && p.bias.empty()) return logits;
  std::memcpy(work, logits, static_cast<std::size_t>(vocab) * sizeof(float));
  if (penalizes) penalize(work, vocab, p, counts);
  for (const LogitBias& bias : p.bias) {
    if (bias.id >= 0 && bias.id < vocab) work[bias.id] += bias.bias;
  }
  if (masks) mask(work, vocab, p);
  return work;
}

// In double and in a fixed order: 8 lanes, then lane by lane. Weights below `floor` count as 0.
double sum_of(const float* weights, int64_t size, float floor) {
  double lanes[8] = {};
  int64_t i = 0;
  for (; i + 8 <= size; i += 8) {
    for (int j = 0; j < 8; ++j)
      lanes[j] += static_cast<double>(weights[i + j] >= floor ? weights[i + j] : 0.0f);
  }
  for (; i < size; ++i) lanes[0] += static_cast<double>(weights[i] >= floor ? weights[i] : 0.0f);
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

double total_of(const float* weights, int64_t vocab, float floor) {
  double total = 0;
  for (int64_t i = 0; i < vocab; i += kBlock)
    total += sum_of(weights + i, std::min(kBlock, vocab - i), floor);
  return total;
}

// The id at which the cumulative sum passes `target`. Where rounding lets nothing pass it, the last id that
// may be drawn.
int32_t draw_from_row(const float* weights, int64_t vocab, float floor, double target) {
  int64_t block = 0;
  double before = 0, passed = 0;  // sums of the blocks ahead of `block`, and of those seen
  for (int64_t i = 0; i < vocab && passed <= target; i += kBlock) {
    const double sum = sum_of(weights + i, std::min(kBlock, vocab - i), floor);
    if (sum <= 0) continue;
    block = i;
    before = passed;
    passed += sum;
  }
  int64_t last = block;
  for (int64_t i = block; i < std::min(vocab, block + kBlock); ++i) {
    if (!(weights[i] >= floor)) continue;
    last = i;
    before += static_cast<double>(weights[i]);
    if (before > target) break;
  }
  return static_cast<int32_t>(last);
}

// Cumulative draw over the first `count` of a selection.
int32_t draw_from_selection(const Selection& selection, int64_t count, double u) {
  double total = 0;
  for (int64_t i = 0; i < count; ++i) total += static_cast<double>(selection[i].value);
  double at = 0;
  for (int64_t i = 0; i < count; ++i) {
    at += static_cast<double>(selection[i].value);
    if (at > u * total) return selection[i].id;
  }
  return selection[count - 1].id;
}

// How many of the largest reach `share` of `total`, the one that crosses included; at most `limit`, at
// least 1.
int64_t nucleus(Selection& selection, double share, double total, int64_t limit) {
  double at = 0;
  for (int64_t i = 0; i < limit; ++i) {
    if (!selection.reaches(i)) return i;
    at += static_cast<double>(selection[i].value);
    if (at >= share * total) return i + 1;
  }
  return limit;
}

// The least weight that min-p and top-a keep; the largest weight is 1, so its probability is 1 / total.
float floor_of(const float* weights, int64_t vocab, const SamplerParams& p) {
  const float floor = std::clamp(p.min_p, kLeastWeight, 1.0f);
  if (p.top_a <= 0) return floor;
  const double least = static_cast<double>(p.top_a) / total_of(weights, vocab, 0.0f);
  return std::clamp(static_cast<float>(least), floor, 1.0f);
}

int32_t sample_weights(const float* weights, int64_t vocab, const SamplerParams& p, double u, void* scratch) {
  const float floor = floor_of(weights, vocab, p);
  const bool has_top_k = p.top_k > 0 && p.top_k < vocab, has_top_p = p.top_p < 1;
  if (!has_top_k && !has_top_p) {
    return draw_from_row(weights, vocab, floor, u * total_of(weights, vocab, floor));
  }
  Selection selection(weights, vocab, floor, selection_of(scratch, vocab));
  if (!has_top_k) {
    const double total = total_of(weights, vocab, floor);
    return draw_from_selection(selection, nucleus(selection, static_cast<double>(p.top_p), total, vocab), u);
  }
  int64_t count = selection.order(p.top_k);
  double total = 0;
  for (int64_t i = 0; i < count; ++i) total += static_cast<double>(selection[i].value);
  if (has_top_p) count = nucleus(selection, static_cast<double>(p.top_p), total, count);
  return draw_from_selection(selection, count, u);
}

// Stages 4 to 6; -1 where every id is masked.
int32_t choose(const float* row, int64_t vocab, const SamplerParams& p, int64_t position, void* scratch) {
  const float largest = largest_of(row, vocab);
  if (largest == -INFINITY) return -1;
  if (p.temperature < kGreedyBelow) return static_cast<int32_t>(std::find(row, row + vocab, largest) - row);
  float* weights = work_of(scratch);
  kernel_table().exp_row(weights, row, vocab, largest, 1.0f / p.temperature);
  return sample_weights(weights, vocab, p, uniform(p.seed, static_cast<uint64_t>(position)), scratch);
}

// log sum exp of the raw row; uses the work area.
double log_total(const float* logits, int64_t vocab, void* scratch, float largest) {
  float* work = work_of(scratch);
  kernel_table().exp_row(work, logits, vocab, largest, 1.0f);
  return static_cast<double>(largest) + std::log(total_of(work, vocab, 0.0f));
}

// In the order of the top entries.
int32_t rank_of(const float* logits, int64_t vocab, int32_t id) {
  if (id < 0 || id >= vocab) return 0;
  const float own = logits[id];
  int32_t num_before = 0;
  for (int64_t i = 0; i < vocab; ++i) num_before += logits[i] > own || (logits[i] == own && i < id) ? 1 : 0;
  return num_before + 1;
}

void report(SampleResult& result, const float* logits, int64_t vocab, std::span<SampledLogprob> top,
            void* scratch) {
  const float largest = largest_of(logits, vocab);
  const double total = log_total(logits, vocab, scratch, largest);
  const auto of = [&](float logit) { return static_cast<float>(static_cast<double>(logit) - total); };
  if (result.id >= 0 && result.id < vocab) result.logprob = of(logits[result.id]);
  if (top.empty()) return;
  Selection selection(logits, vocab, -INFINITY, selection_of(scratch, vocab));
  result.num_top = static_cast<int32_t>(selection.order(static_cast<int64_t>(top.size())));
  for (int32_t i = 0; i < result.num_top; ++i) {
    top[static_cast<std::size_t>(i)] = {selection[i].id, of(selection[i].value)};
  }
}

}  // namespace

int64_t sampler_scratch_bytes(int64_t vocab) {
  return align64(vocab * 4) + Selection::scratch_bytes(vocab);
}

SampleResult sample(const float* logits, int64_t vocab, const SamplerParams& params,
                    std::span<const TokenCount> counts, int64_t position, std::span<SampledLogprob> top,
                    void* scratch) {
  SampleResult result;
  result.finite = all_finite(logits, vocab);
  if (!result.finite) return result;
  const float* row = adjust(work_of(scratch), logits, vocab, params, counts);
  result.id = choose(row, vocab, params, position, scratch);
  if (params.num_logprobs < 0) return result;
  const std::size_t num_top = std::min(top.size(), static_cast<std::size_t>(params.num_logprobs));
  report(result, logits, vocab, top.first(num_top), scratch);
  return result;
}

SampleResult logprobs(const float* logits, int64_t vocab, int32_t id, std::span<SampledLogprob> top,
                      void* scratch) {
  SampleResult result;
  result.finite = all_finite(logits, vocab);
  if (!result.finite) return result;
  result.id = id;
  result.rank = rank_of(logits, vocab, id);
  report(result, logits, vocab, top, scratch);
  return result;
}

}  // namespace ion::kernels
