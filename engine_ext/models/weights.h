// A decoder's tensors, found in its files and checked once, and its weights in the form the CPU kernels read.
// Knows file tensors by their GGUF names; knows no forward pass.
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

enum class WeightPart : uint8_t {
  embedding,  // and the head where no `head` is found
  head,
  output_norm,
  attn_norm,
  q,
  k,
  v,
  o,
  q_norm,
  k_norm,
  ffn_norm,
  gate,
  up,
  down,
};

// One of a decoder's tensors as it lies in the file, checked: of the shape that the config says and of a type
// that we read. Vectors have one dimension, matrices two.
struct FoundWeight {
  WeightPart part;
  int32_t layer = 0;                  // 0 outside layers
  bool is_bias = false;               // of the product that `part` names
  int64_t num_interleaved_heads = 0;  // > 0: rows pair (2i, 2i+1) inside each of so many heads
  const Tensor* tensor = nullptr;
  const Tensor* scales = nullptr;  // of a matrix of e4m3: for all of it, its rows, or blocks of kScaleBlock
};

constexpr int64_t kScaleBlock = 128;  // rows and columns

// All tensors of the decoder, in one fixed order. Throws WeightError for a missing or unknown tensor, a wrong
// shape (wanted and found) and a type that cannot be read; `takes_e4m3` says whether matrices of e4m3 can be.
std::vector<FoundWeight> find_weights(const ModelConfig& config, const NamedTensors& tensors,
                                      bool takes_e4m3 = false);

// Where row `row` of the half-split order lies among interleaved heads of `head_dim` rows: (i, i +
// head_dim/2) rotate together here, (2i, 2i+1) there.
int64_t interleaved_row(int64_t row, int64_t head_dim);

// Factors of a GGUF's own tensor; a config's formula otherwise. [head_dim / 2], or empty for ones.
std::vector<float> rope_divisors(const ModelConfig& config, const NamedTensors& tensors);

// The GGUF name of a safetensors tensor of the Llama family; empty for one that is not a weight.
std::string canonical_name(std::string_view safetensors_name);

// Finds, copies and packs. Throws WeightError as find_weights does, and for too little memory.
Weights load_weights(ModelConfig config, const NamedTensors& tensors, kernels::Numerics numerics,
                     kernels::ThreadPool& pool);

}  // namespace ion
