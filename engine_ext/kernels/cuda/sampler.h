// The CUDA sampler: what kernels/sampler.h promises, for all rows of a step in one launch. Knows slots and
// rows of logits; knows no scheduler and no text.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/ion_cuda.h"

namespace ion::cuda {

// What a slot's sequence asked for, in device memory. The lists are device memory too.
struct SlotSampling {
  IonCudaSampling params;
  int32_t num_prompt;
  int32_t num_stop_ids, num_biases;
  int32_t has_counts;  // whether `generated` and `prompt_seen` of the slot are kept: it has penalties
  const int32_t* stop_ids;
  const int32_t* bias_ids;
  const float* biases;
};

struct SampleArgs {
  const float* logits;  // [num_rows, vocab], raw
  float* adjusted;      // [num_rows, vocab], scratch: rows with penalties, biases or masks
  int32_t vocab;
  const int32_t* row_slots;      // [num_rows]; -1: padding, nothing is read or written
  const int32_t* row_positions;  // [num_rows], of the token being drawn
  const SlotSampling* slots;     // [max_slots]
  uint16_t* generated;           // [max_slots, vocab] times that an id was generated (saturating)
  uint32_t* prompt_seen;         // [max_slots, (vocab + 31) / 32] bits of ids in the prompt
  const uint32_t* masks;         // [num_rows, (vocab + 31) / 32] allowed ids, or null: no row is masked
  const int32_t* has_mask;       // [num_rows], where masks is not null
  int32_t* last_ids;             // [max_slots], gets max(id, 0): the id of the slot's next position
  IonCudaSample* samples;        // [num_rows], may be mapped host memory: written once, at the end
};

// Order of operations, tie rules and log-probabilities as in kernels/sampler.h; greedy below a temperature of
// 1e-5. Weights are exp((logit - largest) / temperature) in units of 2^-40, summed as integers, so that no
// result depends on the number of threads or rows. A draw takes the first id, in id order among the kept
// ones, whose cumulative weight passes u * total. Bits of a row depend on that row and its slot alone.
void sample(const SampleArgs& args, int32_t num_rows, cudaStream_t stream);

// Starts a slot's counts anew: ids [num_ids] on the device, the first num_prompt of them the prompt.
void reset_counts(const SampleArgs& args, int32_t slot, const int32_t* ids, int32_t num_ids,
                  int32_t num_prompt, cudaStream_t stream);

}  // namespace ion::cuda
