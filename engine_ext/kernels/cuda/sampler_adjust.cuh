// Stages 1 to 3 of kernels/sampler.h: from the raw row to the one that is sampled.
#pragma once

#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdint>

#include "kernels/cuda/sampler.h"
#include "kernels/cuda/sampler_row.cuh"

namespace ion::cuda::selection {

// What a thread saw of a row.
struct Seen {
  float largest = -INFINITY;
  int32_t id = INT_MAX;  // the lowest with that value
  float raw_largest = -INFINITY;
  bool is_bad = false;  // NaN or infinity in the raw row

  __device__ __forceinline__ void add(float x, int32_t at) {
    if (x > largest) largest = x, id = at;
  }
  __device__ __forceinline__ void add_raw(float x) {
    is_bad |= !(fabsf(x) <= FLT_MAX);
    raw_largest = fmaxf(raw_largest, x);
  }
};

struct Changes {
  bool penalizes;
  bool masks_stop_ids;
  const uint32_t* allowed;  // null: all are
  const uint16_t* generated;
  const uint32_t* prompt_seen;
  bool has_biases;

  __device__ bool any() const { return penalizes || masks_stop_ids || has_biases || allowed != nullptr; }
};

__device__ __forceinline__ Changes changes_of(const SampleArgs& args, int32_t row, int32_t slot) {
  const SlotSampling& of = args.slots[slot];
  const IonCudaSampling& p = of.params;
  const int64_t num_words = (args.vocab + 31) / 32;
  const bool is_neutral = p.repetition_penalty == 1 && p.presence_penalty == 0 && p.frequency_penalty == 0;
  const bool is_masked = args.masks != nullptr && args.has_mask[row] != 0;
  return {of.has_counts != 0 && !is_neutral,
          of.num_stop_ids > 0 && args.row_positions[row] - of.num_prompt < p.min_tokens,
          is_masked ? args.masks + row * num_words : nullptr,
          args.generated + static_cast<int64_t>(slot) * args.vocab,
          args.prompt_seen + static_cast<int64_t>(slot) * num_words,
          of.num_biases > 0};
}

// Four counts in the halves of two words.
__device__ __forceinline__ uint2 load_counts(const uint16_t* counts, int32_t at, int32_t size) {
  counts += at;
  if ((reinterpret_cast<uintptr_t>(counts) & 7) == 0 && at + 4 <= size) {
    return *reinterpret_cast<const uint2*>(counts);
  }
  uint32_t of[4] = {0, 0, 0, 0};
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    if (at + i < size) of[i] = counts[i];
  }
  return make_uint2(of[0] | of[1] << 16, of[2] | of[3] << 16);
}

// Each operation rounded by itself, as on the CPU.
__device__ __forceinline__ float penalize(float x, uint32_t num_generated, bool is_in_prompt,
                                          const IonCudaSampling& p) {
  if (num_generated == 0 && !is_in_prompt) return x;
  x = x > 0 ? __fdiv_rn(x, p.repetition_penalty) : __fmul_rn(x, p.repetition_penalty);
  if (num_generated == 0) return x;
  const float by_count = __fmul_rn(p.frequency_penalty, static_cast<float>(num_generated));
  return __fsub_rn(x, __fadd_rn(by_count, p.presence_penalty));
}

// Copies the row with penalties and the allowed mask: a masked id stays masked whatever bias is added later.
__device__ __forceinline__ Seen change(float* to, const Row& raw, const Changes& changes,
                                       const IonCudaSampling& p) {
  Seen seen;
  const bool is_aligned = raw.is_aligned() && (reinterpret_cast<uintptr_t>(to) & 15) == 0;
#pragma unroll 2
  for (int32_t at = 4 * static_cast<int32_t>(threadIdx.x); at < raw.size; at += 4 * kThreads) {
    const float4 loaded = load4(raw, at);
    const uint2 counts = changes.penalizes ? load_counts(changes.generated, at, raw.size) : make_uint2(0, 0);
    const uint32_t in_prompt = changes.penalizes ? changes.prompt_seen[at / 32] >> at % 32 : 0;
    const uint32_t allowed = changes.allowed != nullptr ? changes.allowed[at / 32] >> at % 32 : ~0u;
    const uint32_t of[4] = {counts.x & 0xffffu, counts.x >> 16, counts.y & 0xffffu, counts.y >> 16};
    float values[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      if (at + i >= raw.size) break;
      seen.add_raw(values[i]);
      if (changes.penalizes) values[i] = penalize(values[i], of[i], (in_prompt >> i & 1u) != 0, p);
      if ((allowed >> i & 1u) == 0) values[i] = -INFINITY;
      seen.add(values[i], at + i);
    }
    if (is_aligned && at + 4 <= raw.size) {
      *reinterpret_cast<float4*>(to + at) = make_float4(values[0], values[1], values[2], values[3]);
      continue;
    }
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      if (at + i < raw.size) to[at + i] = values[i];
    }
  }
  return seen;
}

// Biases (of distinct ids), then the stop ids' mask.
__device__ __forceinline__ void scatter(float* row, int32_t vocab, const Changes& changes,
                                        const SlotSampling& of) {
  __syncthreads();
  for (int32_t i = threadIdx.x; i < of.num_biases; i += kThreads) {
    const int32_t id = of.bias_ids[i];
    if (id >= 0 && id < vocab) row[id] = __fadd_rn(row[id], of.biases[i]);
  }
  __syncthreads();
  for (int32_t i = threadIdx.x; changes.masks_stop_ids && i < of.num_stop_ids; i += kThreads) {
    const int32_t id = of.stop_ids[i];
    if (id >= 0 && id < vocab) row[id] = -INFINITY;
  }
  __syncthreads();
}

__device__ __forceinline__ Seen look(const Row& row) {
  Seen seen;
  visit_row<8>(row, [&](float x, int32_t id) {
    seen.is_bad |= !(fabsf(x) <= FLT_MAX);
    seen.add(x, id);
  });
  seen.raw_largest = seen.largest;
  return seen;
}

}  // namespace ion::cuda::selection
