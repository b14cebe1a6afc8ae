// A decoder's weights in the form the CPU kernels read, checked once. Knows file tensors by their GGUF names;
// knows no forward pass.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/kernels.h"
#include "models/memory.h"
#include "models/model_config.h"
#include "models/tensor.h"

namespace ion {

// y = x * w^T + bias; `bias` [w.n] is null where the model has none.
struct Linear {
  kernels::PackedMatrix w;
  const float* bias = nullptr;
};

struct LayerWeights {
  const float* attn_norm = nullptr;  // [hidden]
  Linear q, k, v, o;              // Q/K rows in half-split order: dims i and i + head_dim/2 rotate together
  const float* q_norm = nullptr;  // [head_dim], null where the model has none
  const float* k_norm = nullptr;
  const float* ffn_norm = nullptr;  // [hidden]
  Linear gate, up, down;
};

// Pointers reach into `memory`, which the object owns.
struct Weights {
  ModelConfig config;
  kernels::Numerics numerics = kernels::Numerics::fast;
  std::vector<LayerWeights> layers;
  const float* output_norm = nullptr;
  Linear head;                           // [vocab, hidden]; with a tied head also the embedding
  const std::byte* embedding = nullptr;  // [vocab, hidden] in file layout; null with a tied head
  kernels::DType embedding_dtype = kernels::DType::F32;
  std::vector<float> rope_divisors;  // [head_dim / 2], or empty for ones
  Memory memory;

  int64_t num_bytes() const { return memory.num_bytes(); }
};

using NamedTensors = std::map<std::string, const Tensor*, std::less<>>;  // by GGUF name

// The GGUF name of a safetensors tensor of the Llama family; empty for one that is not a weight.
std::string canonical_name(std::string_view safetensors_name);

// Copies and packs. Throws WeightError for a missing or unknown tensor, a wrong shape (wanted and found), a
// type that cannot be read, and too little memory.
Weights load_weights(ModelConfig config, const NamedTensors& tensors, kernels::Numerics numerics,
                     kernels::ThreadPool& pool);

}  // namespace ion
