// A model without files, for benchmarks: the tensors that a config.json wants, bfloat16 and float32, with
// values that follow from a seed. Knows names and shapes of the Llama family; knows no device.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "models/memory.h"
#include "models/model_config.h"
#include "models/tensor.h"

namespace ion {

// Values are uniform in [middle - scale, middle + scale); see kernels/random_values.h.
struct RandomRecipe {
  uint64_t key = 0;
  float middle = 0.0f, scale = 0.0f;
};

// Rows of products have about unit gain, norms are around 1.
RandomRecipe random_recipe(const Tensor& tensor, uint64_t seed);

// The tensors by their safetensors names, without data. Biases of q, k and v for qwen2, norms of the heads of
// q and k for qwen3, as these have them.
std::vector<Tensor> random_tensors(const ModelConfig& config);

// Gives every tensor its data, in memory that is returned; without a pool vectors alone. Throws MemoryShort.
Memory make_random_data(std::vector<Tensor>& tensors, uint64_t seed, kernels::ThreadPool* pool);

// Writes the same values as a safetensors file, piece by piece. Throws WeightError naming the path where it
// cannot be written.
void write_random_file(const std::string& path, const ModelConfig& config, uint64_t seed,
                       kernels::ThreadPool& pool);

}  // namespace ion
