// The decoder of the Llama family, once: norm, attention, norm, gated feed-forward, a layer at a time
// (Touvron et al. 2023, arXiv:2302.13971). Optional pieces (biases, q/k norms) run where the weights exist.
#include "models/cpu_decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace ion {
namespace {

constexpr int64_t kAlignment = 64;

int64_t aligned(int64_t num_bytes) {
  return (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

kernels::KvShape kv_shape_of(const Weights& weights) {
  return {weights.config.num_kv_heads, weights.config.head_dim, weights.numerics};
}

}  // namespace

CpuDecoder::CpuDecoder(const Weights& weights, kernels::ThreadPool& pool, const DecoderLimits& limits)
    : weights_(weights), pool_(pool), kv_shape_(kv_shape_of(weights)) {
  const ModelConfig& config = weights.config;
  rope_.theta = static_cast<float>(config.rope_theta);
  rope_.form = kernels::RopeForm::neox;  // weights.h: Q/K rows are in half-split order
  rope_.rotary_dim = config.head_dim;
  rope_.freq_factors = weights.rope_divisors.empty() ? nullptr : weights.rope_divisors.data();
  layer_cache_bytes_ = limits.num_blocks * kernels::kv_block_bytes(kv_shape_);
  kv_ = Memory(layer_cache_bytes_ * config.num_layers, "the KV cache");

  const int64_t rows = std::max(limits.max_rows, limits.max_logit_rows);
  const int64_t hidden = config.hidden_size, ffn = config.ffn_size;
  const std::pair<float**, int64_t> pieces[] = {{&x_, hidden},
                                                {&normed_, hidden},
                                                {&q_, config.q_size()},
                                                {&k_, config.kv_size()},
                                                {&v_, config.kv_size()},
                                                {&mixed_, config.q_size()},
                                                {&gate_, ffn},
                                                {&up_, ffn},
                                                {&angles_, config.head_dim}};
  const int64_t widest = std::max({hidden, config.q_size(), ffn});
  const int64_t scratch_bytes = kernels::matmul_scratch_bytes(rows, widest);
  int64_t total = aligned(scratch_bytes);
  for (const auto& [pointer, cols] : pieces) total += aligned(rows * cols * sizeof(float));
  scratch_ = Memory(total, "activations");
  std::byte* at = scratch_.data();
  for (const auto& [pointer, cols] : pieces) {
    *pointer = reinterpret_cast<float*>(at);
    at += aligned(rows * cols * sizeof(float));
  }
  matmul_scratch_ = at;
}

int64_t CpuDecoder::kv_block_bytes(const Weights& weights) {
  return kernels::kv_block_bytes(kv_shape_of(weights)) * weights.config.num_layers;
}

std::byte* CpuDecoder::layer_cache(int64_t index) const {
  return kv_.data() + index * layer_cache_bytes_;
}

void CpuDecoder::copy_block(int32_t from, int32_t to) {
  const int64_t size = kernels::kv_block_bytes(kv_shape_);
  for (int32_t i = 0; i < weights_.config.num_layers; ++i) {
    std::memcpy(layer_cache(i) + to * size, layer_cache(i) + from * size, size);
  }
}

void CpuDecoder::read_block(int32_t block, std::byte* bytes) const {
  const int64_t size = kernels::kv_block_bytes(kv_shape_);
  for (int32_t i = 0; i < weights_.config.num_layers; ++i) {
    std::memcpy(bytes + i * size, layer_cache(i) + block * size, size);
  }
}

void CpuDecoder::write_block(int32_t block, const std::byte* bytes) {
  const int64_t size = kernels::kv_block_bytes(kv_shape_);
  for (int32_t i = 0; i < weights_.config.num_layers; ++i) {
    std::memcpy(layer_cache(i) + block * size, bytes + i * size, size);
  }
}

void CpuDecoder::forward(const DecoderBatch& batch) {
  auto num_rows = static_cast<int64_t>(batch.ids.size());
  const ModelConfig& config = weights_.config;
  if (weights_.embedding == nullptr) {
    kernels::gather_packed_rows(x_, batch.ids.data(), num_rows, weights_.head.w, pool_);
  } else {
    kernels::gather_rows(x_, batch.ids.data(), num_rows, weights_.embedding, weights_.embedding_dtype,
                         config.hidden_size, pool_);
  }
  kernels::rope_angles(angles_, batch.positions.data(), num_rows, rope_, pool_);
  for (const LayerWeights& layer : weights_.layers) {
    const int64_t index = &layer - weights_.layers.data();
    norm(normed_, x_, layer.attn_norm, num_rows);
    write_kv(index, batch);
    std::span<const kernels::AttentionSpan> spans = batch.spans;
    if (index == config.num_layers - 1) {
      spans = keep_logit_rows(batch);
      num_rows = static_cast<int64_t>(batch.logit_rows.size());
      if (num_rows == 0) return;
    }
    attend(index, spans, num_rows);
    kernels::add(x_, x_, normed_, num_rows * config.hidden_size, pool_);
    norm(normed_, x_, layer.ffn_norm, num_rows);
    feed_forward(layer, num_rows);
    kernels::add(x_, x_, normed_, num_rows * config.hidden_size, pool_);
  }
  norm(normed_, x_, weights_.output_norm, num_rows);
}

void CpuDecoder::head(std::span<const int32_t> kept, float* logits) {
  if (kept.empty()) return;
  const int64_t hidden = weights_.config.hidden_size;
  const auto num_rows = static_cast<int64_t>(kept.size());
  const float* from = normed_ + kept.front() * hidden;
  if (kept.back() - kept.front() + 1 != num_rows) {  // ascending: else they lie side by side
    for (int64_t i = 0; i < num_rows; ++i) {
      std::memcpy(x_ + i * hidden, normed_ + kept[i] * hidden, hidden * sizeof(float));
    }
    from = x_;
  }
  multiply({{logits, weights_.head}}, from, num_rows);
}

// normed_ -> q_ and the layer's cache
void CpuDecoder::write_kv(int64_t index, const DecoderBatch& batch) {
  const ModelConfig& config = weights_.config;
  const LayerWeights& layer = weights_.layers[index];
  const auto num_rows = static_cast<int64_t>(batch.ids.size());
  multiply({{q_, layer.q}, {k_, layer.k}, {v_, layer.v}}, normed_, num_rows);
  rotate(q_, config.num_heads, layer.q_norm, num_rows);
  rotate(k_, config.num_kv_heads, layer.k_norm, num_rows);
  kernels::kv_write(layer_cache(index), kv_shape_, k_, v_, config.kv_size(), batch.spans, pool_);
}

// Behind the last layer's cache only rows with logits matter: they move to the front, in order, those that
// follow each other as one span. Rows do not depend on each other, so this changes no bit of them.
std::span<const kernels::AttentionSpan> CpuDecoder::keep_logit_rows(const DecoderBatch& batch) {
  const int64_t hidden = weights_.config.hidden_size, q_size = weights_.config.q_size();
  if (batch.logit_rows.size() == batch.ids.size()) return batch.spans;
  kept_spans_.clear();
  auto span = batch.spans.begin();
  int32_t to = 0;
  for (const int32_t row : batch.logit_rows) {
    while (row >= span->first_row + span->count) ++span;
    std::memmove(x_ + to * hidden, x_ + row * hidden, hidden * sizeof(float));
    std::memmove(q_ + to * q_size, q_ + row * q_size, q_size * sizeof(float));
    if (to > 0 && row > span->first_row && batch.logit_rows[to - 1] == row - 1) {
      ++kept_spans_.back().count;
    } else {
      kept_spans_.push_back({span->block_table, to, batch.positions[row], 1});
    }
    ++to;
  }
  return kept_spans_;
}

// q_ and the layer's cache -> normed_
void CpuDecoder::attend(int64_t index, std::span<const kernels::AttentionSpan> spans, int64_t num_rows) {
  const ModelConfig& config = weights_.config;
  const float scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim));
  const kernels::AttentionParams params{
      .num_heads = config.num_heads, .scale = scale, .window = config.window_of(index)};
  kernels::attention(mixed_, q_, config.q_size(), layer_cache(index), kv_shape_, params, spans, pool_);
  multiply({{normed_, weights_.layers[index].o}}, mixed_, num_rows);
}

// normed_ -> normed_
void CpuDecoder::feed_forward(const LayerWeights& layer, int64_t num_rows) {
  const int64_t ffn = weights_.config.ffn_size;
  multiply({{gate_, layer.gate}, {up_, layer.up}}, normed_, num_rows);
  kernels::silu_mul(gate_, gate_, up_, num_rows, ffn, ffn, pool_);
  multiply({{normed_, layer.down}}, gate_, num_rows);
}

void CpuDecoder::multiply(std::initializer_list<Product> products, const float* x, int64_t num_rows) {
  kernels::MatmulOutput outputs[3] = {};
  size_t count = 0;
  for (const auto& [dst, linear] : products) outputs[count++] = {dst, linear.w.n, &linear.w};
  const int64_t k = outputs[0].w->k;
  kernels::matmul_group({outputs, count}, x, k, num_rows, matmul_scratch_, pool_);
  for (const auto& [dst, linear] : products) {
    if (linear.bias == nullptr) continue;
    kernels::add_bias(dst, dst, linear.bias, num_rows, linear.w.n, linear.w.n, pool_);
  }
}

void CpuDecoder::norm(float* dst, const float* x, const float* weight, int64_t num_rows) {
  kernels::rms_norm(dst, x, weight, num_rows, weights_.config.hidden_size, weights_.config.rms_eps, pool_);
}

// Q or K, [num_rows, num_heads, head_dim] in place: its own norm per head where the model has one, then rope.
void CpuDecoder::rotate(float* x, int64_t num_heads, const float* norm, int64_t num_rows) {
  const int64_t head_dim = weights_.config.head_dim;
  if (norm != nullptr) {
    kernels::rms_norm(x, x, norm, num_rows * num_heads, head_dim, weights_.config.rms_eps, pool_);
  }
  kernels::rope(x, num_rows, num_heads, head_dim, num_heads * head_dim, angles_, rope_, pool_);
}

}  // namespace ion
