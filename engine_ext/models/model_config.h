// What a decoder looks like: sizes, rope, eps. Knows no tensors and no file layout beyond names of keys.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/gguf.h"
#include "models/json.h"

namespace ion {

struct ModelConfig {
  std::string architecture;  // "llama"
  int32_t num_layers = 0;
  int32_t hidden_size = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t ffn_size = 0;
  int32_t vocab_size = 0;
  int32_t context_length = 0;
  float rms_eps = 0.0f;
  double rope_theta = 10000.0;
  // Divides the frequency of rotation i; [head_dim / 2], or empty for ones. Covers linear and llama3 scaling.
  std::vector<double> rope_divisors;
  bool is_qk_interleaved = false;  // the file's Q/K rows pair (2i, 2i+1); ours pair (i, i + head_dim/2)
  bool is_head_tied = false;       // safetensors say so; a GGUF says it by leaving output.weight out
  bool has_own_head = false;       // safetensors say that too; neither is said: as the tensors have it
  // Window of each layer: position p sees (p - window, p], 0 sees all. [num_layers], or empty for zeros.
  std::vector<int32_t> windows;

  int64_t q_size() const { return int64_t{num_heads} * head_dim; }
  int64_t kv_size() const { return int64_t{num_kv_heads} * head_dim; }
  int32_t window_of(int64_t layer) const { return windows.empty() ? 0 : windows[layer]; }
  int32_t widest_window() const;  // 0: some layer sees all
};

// Both throw WeightError naming the key for missing, foreign or absurd values, and for unknown architectures.
ModelConfig config_from_gguf(const GgufFile& file);
ModelConfig config_from_json(const Json& config);

// Frequencies of rotation in radians per position, [head_dim / 2].
std::vector<double> rope_frequencies(const ModelConfig& config);

}  // namespace ion
