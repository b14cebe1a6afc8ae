// From one row of raw logits to one token. Knows no sequence, no slot, no text.
//
// Order of operations (vLLM's and llama.cpp's common one), each on the result of the one before:
//   1. repetition penalty (prompt and generated ids), then frequency and presence (generated ids only)
//   2. logit bias
//   3. masked ids (stop ids below min_tokens) become -infinity
//   4. greedy if temperature < 1e-5: the largest, ties to the lowest id; else divide by temperature
//   5. min-p and top-a, then top-k, then top-p over what is left, renormalised
//   6. one draw: u = Philox4x32-10(seed, position), inverse of the cumulative sum
// Log-probabilities are those of the raw logits. A row with NaN or infinity is reported, not sampled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ion::kernels {

// How often an id occurred; the caller keeps one entry per distinct id of the sequence (see TokenCounts).
struct TokenCount {
  int32_t id;
  int32_t prompt;
  int32_t generated;
};

struct LogitBias {
  int32_t id;
  float bias;
};

struct SamplerParams {
  float temperature = 1.0f;         // 0: greedy
  int32_t top_k = 0;                // <= 0 or >= vocab: off
  float top_p = 1.0f;               // >= 1: off
  float min_p = 0.0f;               // <= 0: off
  float top_a = 0.0f;               // <= 0: off; keeps probabilities >= top_a * (the largest)^2
  float repetition_penalty = 1.0f;  // logit > 0: divided by it, else multiplied
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  uint64_t seed = 0;
  std::span<const LogitBias> bias;         // ids outside the vocabulary are ignored
  std::span<const int32_t> masked_ids;     // the stop ids while generated < min_tokens, else empty
  std::span<const uint32_t> allowed_mask;  // bit id % 32 of word id / 32: may be sampled; empty: all may
  int32_t num_logprobs = -1;               // -1: none; n >= 0: the chosen one and the top n
};

struct SampledLogprob {
  int32_t id;
  float logprob;
};

struct SampleResult {
  int32_t id = -1;       // -1 where not finite, or where nothing may be sampled
  bool finite = false;   // false: the raw row held NaN or infinity
  float logprob = 0.0f;  // of raw logits; set if num_logprobs >= 0
  int32_t num_top = 0;   // entries written to `top`
  int32_t rank = 0;      // of `id` among the raw logits, from 1, ties to the lowest id; set by `logprobs`
};

// Scratch for one row (64-byte aligned). Rows sampled in parallel need one each.
int64_t sampler_scratch_bytes(int64_t vocab);

// Samples one row. `position` is the position of the token being drawn: the draw depends on (seed, position)
// alone. `top` takes the first min(num_logprobs, vocab, top.size()) of the raw distribution, descending, ties
// to the lowest id.
SampleResult sample(const float* logits, int64_t vocab, const SamplerParams& params,
                    std::span<const TokenCount> counts, int64_t position, std::span<SampledLogprob> top,
                    void* scratch);

// Raw log-probability and rank of `id`, and the top entries, for prompt log-probabilities. Returns as
// `sample` does.
SampleResult logprobs(const float* logits, int64_t vocab, int32_t id, std::span<SampledLogprob> top,
                      void* scratch);

// Counts of one sequence, kept by the runner beside its slot: amortised O(1) a token.
class TokenCounts {
 public:
  void add_prompt(int32_t id) { ++entry(id).prompt; }
  void add_generated(int32_t id) { ++entry(id).generated; }
  void clear();
  std::span<const TokenCount> entries() const { return entries_; }

 private:
  TokenCount& entry(int32_t id);
  void grow();

  std::vector<TokenCount> entries_;  // in order of first occurrence
  std::vector<int32_t> slots_;       // open addressing into entries_, -1: free; size is a power of two
};

// ---------------------------------------------------------------------------------------------------------
// Random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011)

struct Philox {
  uint32_t word[4];
};

Philox philox4x32(const uint32_t (&counter)[4], const uint32_t (&key)[2]);

// In [0, 1) with 53 bits; a pure function of its arguments.
double uniform(uint64_t seed, uint64_t position);

}  // namespace ion::kernels
