// One forward pass of the decoder on the CPU, for any mix of sequences. Knows rows, positions and block
// tables; knows no sampling, no slots, no steps.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "kernels/kernels.h"
#include "models/memory.h"
#include "models/weights.h"

namespace ion {

// Rows of one pass. Row r is token ids[r] at positions[r]; spans cover all rows, one span a sequence.
struct DecoderBatch {
  std::span<const int32_t> ids;        // [num_rows]
  std::span<const int32_t> positions;  // [num_rows]
  std::span<const kernels::AttentionSpan> spans;
  std::span<const int32_t> logit_rows;  // rows whose logits are wanted, ascending
};

struct DecoderLimits {
  int32_t max_rows = 0;
  int32_t max_logit_rows = 0;
  int32_t num_blocks = 0;  // of kernels::kKvBlock tokens
};

// Owns the KV cache and the activations; borrows weights and threads. One caller at a time. A row's results
// depend on that row's sequence alone, bit for bit: neither on neighbours nor on how its prompt was cut.
class CpuDecoder {
 public:
  CpuDecoder(const Weights& weights, kernels::ThreadPool& pool, const DecoderLimits& limits);

  // Computes all rows and keeps the hidden states of logit_rows, at most max_rows of them, for `head`.
  void forward(const DecoderBatch& batch);
  // Logits of some of the last pass's logit_rows, by their places there: [kept.size(), vocab_size]. However
  // they are cut into calls, the bits are the same.
  void head(std::span<const int32_t> kept, float* logits);
  void copy_block(int32_t from, int32_t to);
  // A block with all its layers, kv_block_bytes of them. Other blocks may be computed with meanwhile.
  void read_block(int32_t block, std::byte* bytes) const;
  void write_block(int32_t block, const std::byte* bytes);

  static int64_t kv_block_bytes(const Weights& weights);  // of all layers

 private:
  // What one linear layer of a group writes to.
  struct Product {
    float* dst;  // [num_rows, linear.w.n]
    const Linear& linear;
  };

  void write_kv(int64_t index, const DecoderBatch& batch);
  std::span<const kernels::AttentionSpan> keep_logit_rows(const DecoderBatch& batch);
  void attend(int64_t index, std::span<const kernels::AttentionSpan> spans, int64_t num_rows);
  void feed_forward(const LayerWeights& layer, int64_t num_rows);
  void multiply(std::initializer_list<Product> products, const float* x, int64_t num_rows);
  void norm(float* dst, const float* x, const float* weight, int64_t num_rows);
  void rotate(float* x, int64_t num_heads, const float* norm, int64_t num_rows);
  std::byte* layer_cache(int64_t index) const;

  const Weights& weights_;
  kernels::ThreadPool& pool_;
  kernels::KvShape kv_shape_;
  kernels::RopeParams rope_;
  int64_t layer_cache_bytes_ = 0;
  Memory kv_;                // [layer][num_blocks] blocks of kernels.h
  Memory scratch_;           // everything below
  float* x_ = nullptr;       // [max_rows, hidden], the residual stream
  float* normed_ = nullptr;  // [max_rows, hidden], a branch's input, then its output
  float* q_ = nullptr;       // [max_rows, q_size]
  float* k_ = nullptr;       // [max_rows, kv_size]
  float* v_ = nullptr;       // [max_rows, kv_size]
  float* mixed_ = nullptr;   // [max_rows, q_size]
  float* gate_ = nullptr;    // [max_rows, ffn]
  float* up_ = nullptr;      // [max_rows, ffn]
  float* angles_ = nullptr;  // [max_rows, head_dim / 2, 2]
  std::byte* matmul_scratch_ = nullptr;
  std::vector<kernels::AttentionSpan> kept_spans_;
};

}  // namespace ion
