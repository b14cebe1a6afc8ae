// Vectors of structures into arrays of plain ones.
#include "models/cuda_step.h"

#include <algorithm>

namespace ion {
namespace {

IonCudaSampling sampling_of(const SamplingParams& from) {
  IonCudaSampling to{};
  to.temperature = from.temperature;
  to.top_p = from.top_p;
  to.min_p = from.min_p;
  to.top_a = from.top_a;
  to.repetition_penalty = from.repetition_penalty;
  to.presence_penalty = from.presence_penalty;
  to.frequency_penalty = from.frequency_penalty;
  to.top_k = from.top_k;
  to.min_tokens = from.min_tokens;
  to.num_logprobs = std::min(from.num_logprobs, ION_CUDA_MAX_LOGPROBS);
  to.seed = from.seed;
  return to;
}

}  // namespace

CudaStep::CudaStep(const Step& step) {
  const Delta& delta = step.delta;
  for (const Row& row : step.rows) rows_.push_back({row.slot, row.start, row.count, row.flags});
  for (const AppendedBlock& block : delta.blocks) blocks_.push_back({block.slot, block.index, block.block});
  for (const BlockCopy& copy : delta.copies) copies_.push_back({copy.from, copy.to});
  size_t num_biases = 0;
  for (const Join& join : delta.joins) num_biases += join.sampling.logit_bias.size();
  bias_ids_.reserve(num_biases);  // joins point into these two: they must not move
  biases_.reserve(num_biases);
  for (const Join& join : delta.joins) add_join(join);

  values_.epoch = step.epoch;
  values_.num_rows = static_cast<int32_t>(rows_.size());
  values_.num_leaves = static_cast<int32_t>(delta.leaves.size());
  values_.num_joins = static_cast<int32_t>(joins_.size());
  values_.num_blocks = static_cast<int32_t>(blocks_.size());
  values_.num_copies = static_cast<int32_t>(copies_.size());
  values_.rows = rows_.data();
  values_.leaves = delta.leaves.data();
  values_.joins = joins_.data();
  values_.blocks = blocks_.data();
  values_.copies = copies_.data();
}

void CudaStep::add_join(const Join& from) {
  IonCudaJoin to{};
  to.slot = from.slot;
  to.num_ids = static_cast<int32_t>(from.ids.size());
  to.num_prompt = from.num_prompt;
  to.ids = from.ids.data();
  to.sampling = sampling_of(from.sampling);
  to.num_stop_ids = static_cast<int32_t>(from.sampling.stop_ids.size());
  to.stop_ids = from.sampling.stop_ids.data();
  to.num_biases = static_cast<int32_t>(from.sampling.logit_bias.size());
  to.bias_ids = bias_ids_.data() + bias_ids_.size();
  to.biases = biases_.data() + biases_.size();
  for (const LogitBias& entry : from.sampling.logit_bias) {
    bias_ids_.push_back(entry.id);
    biases_.push_back(entry.bias);
  }
  joins_.push_back(to);
}

}  // namespace ion
