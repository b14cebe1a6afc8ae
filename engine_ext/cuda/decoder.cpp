// The decoder of the Llama family, once: norm, attention, norm, gated feed-forward, a layer at a time
// (Touvron et al. 2023, arXiv:2302.13971). Optional pieces (biases, q/k norms) run where the weights exist.
#include "cuda/decoder.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

namespace ion::cuda {
namespace {

constexpr int64_t kRowUnit = 128;  // large passes are rounded up to it, so that few shapes of products occur
constexpr int64_t kStreamedRows = 128;   // beyond, the library is faster (decision 49)
constexpr int64_t kExactRows = 256;      // up to so many rows each number of rows has its own plan
constexpr int64_t kFusedQkvRows = 1280;  // so many to rotate at least, or the library and a kernel are faster
// From so many of both on the library's product adds to the residual stream itself (decision 61).
constexpr int64_t kAddedRows = 4096, kAddedHidden = 2048;
constexpr int64_t kMostEmpty = 8;        // of a tile of kPromptTileRows, in a pass of no more than those
constexpr int64_t kLaunchPieces = 4096;  // of decode rows: with more, one launch keeps any device busy
constexpr int64_t kLeastUnneeded = 64;   // rows that the last layer leaves out, or picking costs more

int64_t rounded_rows(int64_t rows) {
  return rows <= kExactRows ? rows : (rows + kRowUnit - 1) / kRowUnit * kRowUnit;
}

int32_t attribute(cudaDeviceAttr which, int32_t device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "device");
  return value;
}

int64_t parts_of_row(const DecoderLimits& limits) {
  return (limits.context_length + kSplitTokens - 1) / kSplitTokens;
}

// A row is a token where numbers are deterministic, else a sequence.
int64_t decode_rows(const DecoderLimits& limits) {
  return limits.is_deterministic ? limits.max_rows : limits.max_slots;
}

// What there is room for partial sums of: each sequence's last token, or enough to keep a device busy.
int64_t launch_pieces(const DecoderLimits& limits) {
  const int64_t pieces = limits.max_slots * parts_of_row(limits);
  if (!limits.is_deterministic) return pieces;
  return std::min(decode_rows(limits) * parts_of_row(limits),
                  std::max({pieces, kLaunchPieces, 2 * parts_of_row(limits)}));
}

void require_streams(const Model& model, const DecoderLimits& limits) {
  if (!limits.is_deterministic || (limits.streams && model.is_tiled())) return;
  const std::string why = limits.streams ? model.why_not_tiled() : "use_streams is off";
  throw std::invalid_argument(
      "numerics: deterministic computes every product over a tiled copy of the weights, and " + why +
      "; numerics: fast computes the model without");
}

int32_t stride_of(const DecoderLimits& limits) {
  return (limits.context_length + kKvBlock - 1) / kKvBlock;
}

// What prompts' attention reads of a cache of codes at a time: one whole context, or as many short ones as a
// pass may hold twice.
int32_t unpacked_blocks(const Config& config, const DecoderLimits& limits) {
  if (!config.is_kv_e4m3 || limits.is_deterministic) return 0;
  return std::max(stride_of(limits), 2 * (limits.max_rows / kKvBlock + 1));
}

}  // namespace

// Offsets of the scratch pieces, in the order of the members.
struct Decoder::Layout {
  int64_t total = 0;

  int64_t take(int64_t num_bytes) {
    const int64_t at = total;
    total += aligned(num_bytes);
    return at;
  }

  int64_t x, picked, normed, qkv, mixed, gate_up, gated, last, partial, arrivals, rotations, tables, last_ids;
  int64_t stream_partial, stream_counts, codes, scales, last_codes, last_scales;
  int64_t unpacked, unpacked_tables;

  Layout(const Config& config, const DecoderLimits& limits, int32_t num_sms) {
    const int64_t rows = rounded_rows(std::max(limits.max_rows, kStreamMaxTokens)), half = sizeof(bf16),
                  hidden = config.hidden_size;
    const int64_t units = int64_t{config.num_heads};  // at least the units of attention
    x = take(rows * hidden * static_cast<int64_t>(sizeof(float)));
    picked =
        take(rounded_rows(std::max(limits.max_logit_rows, 1)) * hidden * static_cast<int64_t>(sizeof(float)));
    normed = take(rows * hidden * half);
    qkv = take(rows * config.qkv_size() * half);
    mixed = take(rows * config.q_size() * half);
    gate_up = take(rows * 2 * config.ffn_size * half);
    gated = take(rows * config.ffn_size * half);
    const int64_t last_rows = std::max(limits.max_logit_rows, kStreamMaxTokens);
    last = take(last_rows * hidden * half);
    last_codes = take(config.is_head_e4m3 ? last_rows * hidden : 0);
    last_scales = take(config.is_head_e4m3 ? last_rows * static_cast<int64_t>(sizeof(float)) : 0);
    const int64_t decode_floats = attention_partial_floats(launch_pieces(limits), config.num_heads,
                                                           config.num_kv_heads, config.head_dim);
    partial = take(4 * std::max(decode_floats, prefill_partial_floats(num_sms, config.head_dim)));
    arrivals = take(4 * units * decode_rows(limits));
    rotations = take(int64_t{limits.context_length} * config.head_dim * 4);
    tables = take(int64_t{limits.max_slots} * stride_of(limits) * 4);
    last_ids = take(int64_t{limits.max_slots} * 4);
    const int64_t widest = std::max<int64_t>({config.qkv_size(), 2 * config.ffn_size, config.vocab_size});
    stream_partial = take(stream_partial_bytes(num_sms));
    stream_counts = take(widest / kStreamRows * 2 * 4);
    const int64_t widest_input = std::max<int64_t>({hidden, config.q_size(), config.ffn_size});
    codes = take(config.is_e4m3 ? rows * widest_input : 0);
    scales = take(config.is_e4m3 ? rows * static_cast<int64_t>(sizeof(float)) : 0);
    const int64_t blocks = unpacked_blocks(config, limits);
    unpacked = take(blocks * 2 * config.kv_size() * kKvBlock * half);
    unpacked_tables = take(blocks > 0 ? int64_t{limits.max_slots} * stride_of(limits) * 4 : 0);
  }
};

int64_t Decoder::scratch_bytes(const Config& config, const DecoderLimits& limits, int32_t num_sms) {
  return Layout(config, limits, num_sms).total;
}

DecoderBatch batch_of(const int32_t* step, const StepSizes& sizes, const StepContents& contents) {
  const StepLayout at(sizes);
  DecoderBatch batch;
  batch.num_rows = sizes.rows;
  batch.ids = step + at.ids;
  batch.slots = step + at.slots;
  batch.positions = step + at.positions;
  batch.plan.spans = reinterpret_cast<const Span*>(step + at.spans);
  batch.plan.decode_pieces = reinterpret_cast<const Piece*>(step + at.decode_pieces);
  batch.plan.prefill_pieces = reinterpret_cast<const Piece*>(step + at.prefill_pieces);
  batch.plan.counts = step + at.counts;
  batch.num_decode_pieces = sizes.decode_pieces;
  batch.width = contents.width;
  batch.first_rotated = contents.first_rotated;
  batch.num_rotated = contents.num_rotated;
  batch.decode_launches = contents.decode_launches;
  batch.prefill_launches = contents.prefill_launches;
  if (contents.wanted.has_value()) batch.wanted = *contents.wanted;
  batch.unpacked = reinterpret_cast<const UnpackSpan*>(step + at.unpacked);
  batch.has_chunks = contents.has_chunks;
  batch.logit_rows = step + at.logit_rows;
  batch.num_logit_rows = sizes.samples;
  return batch;
}

Decoder::Decoder(const Model& model, const DecoderLimits& limits)
    : model_(model),
      limits_(limits),
      max_pieces_(decode_rows(limits) * parts_of_row(limits)),
      pieces_a_launch_(launch_pieces(limits)),
      table_stride_(stride_of(limits)) {
  require_streams(model, limits);
  const Config& config = model.config();
  check(cudaSetDevice(model.device()), "device");
  num_sms_ = attribute(cudaDevAttrMultiProcessorCount, model.device());
  kv_ = DeviceMemory(limits.num_blocks * block_bytes(), "the KV cache");
  const Layout at(config, limits, num_sms_);
  scratch_ = DeviceMemory(at.total, "activations");
  // Blocks that were never written may be read and weighted with 0: they must hold something finite.
  check(cudaMemset(kv_.as<void>(), 0, kv_.num_bytes()), "the KV cache");
  check(cudaMemset(scratch_.as<void>(), 0, scratch_.num_bytes()), "activations");
  x_ = scratch_.as<float>(at.x);
  picked_ = scratch_.as<float>(at.picked);
  normed_ = scratch_.as<bf16>(at.normed);
  qkv_ = scratch_.as<bf16>(at.qkv);
  mixed_ = scratch_.as<bf16>(at.mixed);
  gate_up_ = scratch_.as<bf16>(at.gate_up);
  gated_ = scratch_.as<bf16>(at.gated);
  last_ = scratch_.as<bf16>(at.last);
  partial_ = scratch_.as<float>(at.partial);
  arrivals_ = scratch_.as<uint32_t>(at.arrivals);
  rotations_ = scratch_.as<float2>(at.rotations);
  block_tables_ = scratch_.as<int32_t>(at.tables);
  last_ids_ = scratch_.as<int32_t>(at.last_ids);
  if (config.is_head_e4m3) {
    quantised_last_ = {scratch_.as<uint8_t>(at.last_codes), scratch_.as<float>(at.last_scales)};
  }
  if (config.is_e4m3) quantised_ = {scratch_.as<uint8_t>(at.codes), scratch_.as<float>(at.scales)};

  if (model.is_tiled() && limits.streams) {
    stream_rows_ = limits.is_deterministic ? std::numeric_limits<int64_t>::max() : kStreamedRows;
    streaming_.partial = scratch_.as<float4>(at.stream_partial);
    streaming_.counts = scratch_.as<uint32_t>(at.stream_counts);
    stream_device_ = stream_device();
    const int64_t rows = std::max(limits.max_rows, kStreamMaxTokens);
    const auto view = [&](const bf16* x, int64_t cols) {
      return config.is_e4m3 ? stream_input(quantised_.codes, quantised_.scales, rows, cols)
                            : stream_input(x, rows, cols);
    };
    normed_view_ = view(normed_, config.hidden_size);
    mixed_view_ = view(mixed_, config.q_size());
    gated_view_ = view(gated_, config.ffn_size);
    prompt_clusters_ = config.is_e4m3 ? 0 : prompt_clusters();
    prompt_view_ = prompt_input(normed_, rows, config.hidden_size);
    const int64_t last_rows = std::max(limits.max_logit_rows, kStreamMaxTokens);
    last_view_ = config.is_head_e4m3 ? stream_input(quantised_last_.codes, quantised_last_.scales, last_rows,
                                                    config.hidden_size)
                                     : stream_input(last_, last_rows, config.hidden_size);
  }

  unpacked_blocks_ = unpacked_blocks(config, limits);
  if (unpacked_blocks_ > 0) {
    unpacked_ = scratch_.as<bf16>(at.unpacked);
    unpacked_tables_ = scratch_.as<int32_t>(at.unpacked_tables);
  }
  is_wide_prefill_ = limits.streams && is_wide_prefill_shape(config.head_dim);
  if (is_wide_prefill_ && unpacked_blocks_ > 0) {
    kv_view_ = kv_view(unpacked_, unpacked_blocks_ * 2 * config.kv_size() * kKvBlock, config.head_dim);
  } else if (is_wide_prefill_ && !config.is_kv_e4m3) {
    kv_view_ = kv_view(kv_.as<bf16>(), limits.num_blocks * config.block_values(), config.head_dim);
  }

  has_ring_ =
      limits.streams && !limits.is_deterministic && !config.is_kv_e4m3 && is_ring_shape(config.head_dim);
  if (has_ring_) {
    kv_planes_ = kv_planes(kv_.as<bf16>(), limits.num_blocks * config.block_values(), config.num_kv_heads,
                           config.head_dim);
  }

  const int64_t half = config.head_dim / 2;
  const DeviceMemory frequencies(half * static_cast<int64_t>(sizeof(double)), "angles");
  check(cudaMemcpy(frequencies.as<void>(), config.rope_frequencies.data(), frequencies.num_bytes(),
                   cudaMemcpyHostToDevice),
        "angles");
  rotations(rotations_, frequencies.as<double>(), limits.context_length, static_cast<int32_t>(half), nullptr);
  check(cudaDeviceSynchronize(), "angles");
}

std::byte* Decoder::block(int32_t index) const {
  if (index < 0 || index >= limits_.num_blocks) {
    throw std::logic_error("block " + std::to_string(index) + " is outside the pool");
  }
  return kv_.as<std::byte>(index * block_bytes());
}

void Decoder::copy_block(int32_t from, int32_t to, cudaStream_t stream) {
  check(cudaMemcpyAsync(block(to), block(from), block_bytes(), cudaMemcpyDeviceToDevice, stream),
        "copy of a block");
}

// A launch is left when the next row does not fit: any two neighbours hold more than one may.
int64_t Decoder::max_decode_launches() const {
  return limits_.is_deterministic ? 2 * max_pieces_ / pieces_a_launch_ + 1 : 1;
}

void Decoder::multiply(bf16* y, const bf16* x, const bf16* w, int64_t rows, int64_t n, int64_t k,
                       cudaStream_t stream) {
  model_.blas().matmul(y, x, w, rounded_rows(rows), n, k, stream);
}

// x: quantised_. Gives the scales that are not in y yet.
ProductScales Decoder::multiply_quantised(bf16* y, const Matrix& w, int64_t rows, int64_t n, int64_t k,
                                          cudaStream_t stream) {
  return model_.blas().matmul(y, quantised_, {w.e4m3(), w.scales}, rounded_rows(rows), n, k, stream);
}

void Decoder::forward(const DecoderBatch& batch, float* logits, cudaStream_t stream) {
  const Config& config = model_.config();
  const int64_t hidden = config.hidden_size, count = batch.num_logit_rows;
  embed(x_, batch.ids, batch.slots, last_ids_, model_.embedding(), batch.num_rows, hidden, stream);
  if (!config.is_e4m3) {
    rms_norm(normed_, x_, model_.layer(0).attn_norm, batch.num_rows, hidden, config.rms_eps, stream);
  }
  LastRows last{x_, mixed_, batch.num_rows};
  if (config.is_e4m3) {
    last = forward_e4m3(batch, stream);
  } else if (batch.num_rows <= stream_rows_) {
    forward_streamed(batch, stream);
  } else {
    last = forward_blas(batch, stream);
  }
  if (count == 0) return;
  if (last.x == x_) {
    add_rms_norm_picked(last_, x_, normed_, model_.output_norm(), batch.logit_rows, count, hidden,
                        config.rms_eps, stream);
  } else {
    add_rms_norm(last_, last.x, normed_, model_.output_norm(), count, hidden, config.rms_eps, stream);
  }
  multiply_head(logits, count, stream);
}

void Decoder::multiply_head(float* logits, int64_t count, cudaStream_t stream) {
  const int64_t vocab = model_.config().vocab_size, hidden = model_.config().hidden_size;
  const Matrix& head = model_.head();
  const bool is_e4m3 = head.scales != nullptr;
  if (is_e4m3) quantise_rows(quantised_last_, last_, count, hidden, stream);
  if (count <= stream_rows_) {
    return this->stream(logits, StreamOutput::float32, last_view_, model_.tiled_head(), count, vocab, hidden,
                        stream);
  }
  if (!is_e4m3) return model_.blas().matmul(logits, last_, head.bf16(), count, vocab, hidden, stream);
  apply_scales(
      logits,
      model_.blas().matmul(logits, quantised_last_, {head.e4m3(), head.scales}, count, vocab, hidden, stream),
      count, vocab, stream);
}

// Behind the last layer's attention only rows with logits matter: they are brought together, in order.
Decoder::LastRows Decoder::pick_rows(const DecoderBatch& batch, cudaStream_t stream) {
  const Config& config = model_.config();
  const int64_t count = batch.num_logit_rows;
  if (batch.num_rows - count < kLeastUnneeded) return {x_, mixed_, batch.num_rows};
  if (count > 0) {
    // Attention is over: q, k and v are not needed any more.
    gather_rows(picked_, x_, qkv_, mixed_, batch.logit_rows, count, config.hidden_size, config.q_size(),
                stream);
  }
  return {picked_, qkv_, count};
}

// Whether SiLU is a part of the product. Its rows come in tiles, and in a pass of few an empty part of one
// costs more than SiLU on its own.
bool Decoder::is_fused(int64_t rows) const {
  if (prompt_clusters_ == 0 || rows <= kStreamedRows) return false;
  return rows > kExactRows || (kPromptTileRows - rows % kPromptTileRows) % kPromptTileRows <= kMostEmpty;
}

// Whether rotation is a part of the q, k, v product.
bool Decoder::is_fused_qkv(const DecoderBatch& batch) const {
  return prompt_clusters_ > 0 && is_wide_prefill_ && batch.num_rotated >= kFusedQkvRows &&
         !model_.config().is_kv_e4m3;
}

// The residual stream takes the product of a branch's last matrix, w [hidden, k]; normed_: the norm of what
// that comes to. Of many rows the library's product adds by itself, and the norm reads and writes less.
void Decoder::add_branch(const LastRows& at, const bf16* branch, const bf16* w, int64_t k, const float* norm,
                         cudaStream_t stream) {
  const int64_t hidden = model_.config().hidden_size;
  const float eps = model_.config().rms_eps;
  if (at.count >= kAddedRows && hidden >= kAddedHidden) {
    model_.blas().add_matmul(at.x, branch, w, rounded_rows(at.count), hidden, k, stream);
    return rms_norm(normed_, at.x, norm, at.count, hidden, eps, stream);
  }
  multiply(normed_, branch, w, at.count, hidden, k, stream);
  add_rms_norm(normed_, at.x, normed_, norm, at.count, hidden, eps, stream);
}

Decoder::LastRows Decoder::forward_blas(const DecoderBatch& batch, cudaStream_t stream) {
  const Config& config = model_.config();
  const int64_t hidden = config.hidden_size, ffn = config.ffn_size;
  LastRows at{x_, mixed_, batch.num_rows};
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const Layer& layer = model_.layer(i);
    const bool is_rotated = is_fused_qkv(batch);
    if (is_rotated) {
      multiply_qkv(i, batch, stream);
    } else {
      multiply(qkv_, normed_, layer.qkv.bf16(), at.count, config.qkv_size(), hidden, stream);
    }
    attend(i, batch, is_rotated, stream);
    const bool is_last = i + 1 == config.num_layers;
    if (is_last) at = pick_rows(batch, stream);
    if (at.count == 0) break;
    add_branch(at, at.mixed, layer.o.bf16(), config.q_size(), layer.ffn_norm, stream);
    if (is_fused(at.count)) {
      prompt_gated(gated_, prompt_view_, model_.tiled_layer(i).gate_up.values, at.count, 2 * ffn, hidden,
                   prompt_clusters_, stream);
    } else {
      multiply(gate_up_, normed_, layer.gate_up.bf16(), at.count, 2 * ffn, hidden, stream);
      silu_mul(gated_, gate_up_, at.count, ffn, stream);
    }
    if (is_last) {
      multiply(normed_, gated_, layer.down.bf16(), at.count, hidden, ffn, stream);
    } else {
      add_branch(at, gated_, layer.down.bf16(), ffn, model_.layer(i + 1).attn_norm, stream);
    }
  }
  return at;
}

// The same with few rows: products at the pace of their weights, in one chain of dependent launches.
void Decoder::forward_streamed(const DecoderBatch& batch, cudaStream_t stream) {
  const Config& config = model_.config();
  const int64_t rows = batch.num_rows, hidden = config.hidden_size, ffn = config.ffn_size;
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const Layer& layer = model_.layer(i);
    const TiledLayer& tiled = model_.tiled_layer(i);
    this->stream(qkv_, StreamOutput::bf16, normed_view_, tiled.qkv, rows, config.qkv_size(), hidden, stream);
    attend(i, batch, false, stream);
    // Attention reads little: meanwhile memory has time for the largest matrix.
    this->stream(normed_, StreamOutput::bf16, mixed_view_, tiled.o, rows, hidden, config.q_size(), stream,
                 {tiled.gate_up.values, 2 * ffn, hidden});
    add_rms_norm(normed_, x_, normed_, layer.ffn_norm, rows, hidden, config.rms_eps, stream);
    this->stream(gated_, StreamOutput::silu_mul, normed_view_, tiled.gate_up, rows, 2 * ffn, hidden, stream);
    this->stream(normed_, StreamOutput::bf16, gated_view_, tiled.down, rows, hidden, ffn, stream);
    if (i + 1 == config.num_layers) return;
    add_rms_norm(normed_, x_, normed_, model_.layer(i + 1).attn_norm, rows, hidden, config.rms_eps, stream);
  }
}

void Decoder::stream(void* y, StreamOutput output, const StreamInput& x, const Matrix& w, int64_t rows,
                     int64_t n, int64_t k, cudaStream_t stream, const StreamNext& next) {
  stream_gemm(y, output, x, {w.values, w.scales}, rows, n, k, streaming_, stream_device_, stream, next);
}

}  // namespace ion::cuda
