// A decoder's weights on the device, allocated whole. Knows shapes; knows no file and no forward pass.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cuda/blas_lt.h"
#include "cuda/device_memory.h"
#include "cuda/ion_cuda.h"
#include "cuda/upload.h"

namespace ion::cuda {

// Owns what IonCudaConfig points to.
struct Config {
  explicit Config(const IonCudaConfig& from);  // throws std::invalid_argument for what the kernels cannot do

  int32_t num_layers, hidden_size, num_heads, num_kv_heads, head_dim, ffn_size, vocab_size;
  float rms_eps;
  bool has_qkv_bias, has_qk_norm, is_head_tied;
  bool is_e4m3;  // the layers' matrices
  bool is_head_e4m3, is_kv_e4m3;
  std::vector<double> rope_frequencies;
  std::vector<int32_t> windows;  // [num_layers]

  int64_t q_size() const { return int64_t{num_heads} * head_dim; }
  int64_t kv_size() const { return int64_t{num_kv_heads} * head_dim; }
  int64_t qkv_size() const { return q_size() + 2 * kv_size(); }
  int64_t block_values() const;  // of the cache, as KvCache counts them
  int64_t block_bytes() const { return block_values() * (is_kv_e4m3 ? 1 : 2); }
};

// A matrix [n, k] of a layer, or the head: bf16, or e4m3 with a scale for each of its rows.
struct Matrix {
  void* values = nullptr;
  float* scales = nullptr;  // null: bf16

  __nv_bfloat16* bf16() const { return static_cast<__nv_bfloat16*>(values); }
  uint8_t* e4m3() const { return static_cast<uint8_t*>(values); }
};

// Tiled copies for the streamed products (kernels/cuda/stream_gemm.h), scales in the order of their rows.
struct TiledLayer {
  Matrix qkv, o, gate_up, down;
};

struct Layer {
  float *attn_norm, *qkv_bias, *q_norm, *k_norm, *ffn_norm;  // null where the model has none
  Matrix qkv, o, gate_up, down;
};

// What a weight's rows look like; `rows` 0: the model has no such weight.
struct WeightShape {
  int64_t rows, cols, value_bytes;

  int64_t row_bytes() const { return cols * value_bytes; }
  int64_t num_bytes() const { return rows * row_bytes(); }
};

WeightShape shape_of(const Config& config, IonCudaWeight weight);
int64_t weight_bytes(const Config& config);

class Model {
 public:
  Model(const IonCudaConfig& config, int32_t device, const std::string& blaslt);

  void write(IonCudaWeight weight, int32_t layer, int64_t first_row, int64_t num_rows, const void* rows);
  void fill(IonCudaWeight weight, int32_t layer, int64_t first_row, int64_t num_rows, uint64_t key,
            float scale);
  void* pointer(IonCudaWeight weight, int32_t layer) const;

  // Makes the tiled copies where the device can stream them and they fit beside 30% of its memory; once.
  void tile();

  const Config& config() const { return config_; }
  bool is_tiled() const { return !tiled_layers_.empty(); }
  const std::string& why_not_tiled() const { return why_not_tiled_; }  // a clause, of a model that is not
  const TiledLayer& tiled_layer(int64_t index) const { return tiled_layers_[index]; }
  const Matrix& tiled_head() const { return tiled_head_; }
  const Layer& layer(int64_t index) const { return layers_[index]; }
  const __nv_bfloat16* embedding() const { return embedding_; }
  const Matrix& head() const { return head_; }
  const float* output_norm() const { return output_norm_; }
  BlasLt& blas() const { return *blas_; }
  int32_t device() const { return device_; }

 private:
  std::string why_not_streamed() const;

  Config config_;
  int32_t device_;
  DeviceMemory memory_;
  std::vector<Layer> layers_;
  __nv_bfloat16* embedding_ = nullptr;
  Matrix head_;
  float* output_norm_ = nullptr;
  std::unique_ptr<BlasLt> blas_;
  std::unique_ptr<Upload> upload_;  // while weights come
  DeviceMemory tiled_memory_;
  std::vector<TiledLayer> tiled_layers_;
  std::string why_not_tiled_ = "the model was not tiled";
  Matrix tiled_head_;
};

}  // namespace ion::cuda
