// Attention of a pass: how its rows are cut, which kernels take the pieces, and which rows matter behind the
// last layer's.
#include <algorithm>
#include <cmath>
#include <optional>

#include "cuda/decoder.h"

namespace ion::cuda {
namespace {

constexpr int32_t kLargeHidden = 2048;  // PlanSizes::is_large (measured: docs/performance.md)

// What a plan's steps have no say in.
std::optional<DecodeWidth> fixed_width(const DecoderLimits& limits, bool has_ring) {
  switch (limits.decode_warps) {
    case -1:
      return has_ring ? DecodeWidth::ring : DecodeWidth::one;
    case 1:
      return DecodeWidth::one;
    case 2:
      return DecodeWidth::two;
    case 4:
      return DecodeWidth::four;
    default:
      break;
  }
  // Another number of warps would add up in another order.
  if (limits.is_deterministic) return DecodeWidth::four;
  return std::nullopt;
}

}  // namespace

PlanSizes Decoder::plan_sizes() const {
  const Config& config = model_.config();
  const std::vector<int32_t>& windows = config.windows;
  PlanSizes sizes;
  sizes.packed_heads = std::min(kPackedHeads, config.num_heads / config.num_kv_heads);
  sizes.prefill_rows = is_wide_prefill_ ? kWidePrefillRows : kPrefillRows;
  const bool sees_all = std::find(windows.begin(), windows.end(), 0) != windows.end();
  sizes.window = sees_all ? 0 : *std::max_element(windows.begin(), windows.end());
  sizes.decode_units = attention_decode_units(config.num_heads, config.num_kv_heads);
  sizes.num_sms = num_sms_;
  sizes.has_ring = has_ring_;
  sizes.is_large = config.hidden_size >= kLargeHidden;
  sizes.width = fixed_width(limits_, has_ring_);
  sizes.prefill_units = prefill_units(config.num_heads, config.num_kv_heads);
  for (int32_t cuts = 2; cuts <= kMostCuts && is_wide_prefill_; ++cuts) {
    sizes.prefill_room[cuts] = prefill_room(config.head_dim, cuts);
  }
  sizes.is_deterministic = limits_.is_deterministic;
  sizes.pieces_a_launch = pieces_a_launch_;
  sizes.unpacked_blocks = unpacked_blocks_;
  return sizes;
}

KvCache Decoder::cache_of(int64_t layer) const {
  const Config& config = model_.config();
  KvCache cache;
  cache.base = kv_.as<void>();
  cache.is_e4m3 = config.is_kv_e4m3;
  cache.block_stride = config.block_values();
  cache.layer_offset = layer * kv_layer_values(config.num_kv_heads, config.head_dim, config.is_kv_e4m3);
  cache.block_tables = block_tables_;
  cache.table_stride = table_stride_;
  cache.num_kv_heads = config.num_kv_heads;
  return cache;
}

RopeKvArgs Decoder::rope_of(int64_t index, const DecoderBatch& batch) const {
  const Config& config = model_.config();
  const Layer& layer = model_.layer(index);
  RopeKvArgs rope{};
  rope.qkv = qkv_;
  rope.bias = layer.qkv_bias;
  rope.q_norm = layer.q_norm;
  rope.k_norm = layer.k_norm;
  rope.rotations = rotations_;
  rope.slots = batch.slots;
  rope.positions = batch.positions;
  rope.num_heads = config.num_heads;
  rope.head_dim = config.head_dim;
  rope.eps = config.rms_eps;
  return rope;
}

// normed_ -> q in qkv_, rotated, and k and v in the layer's cache. The last layer's q of a row whose logits
// nobody wants is left out.
void Decoder::multiply_qkv(int64_t index, const DecoderBatch& batch, cudaStream_t stream) {
  const Config& config = model_.config();
  const RopeKvArgs rope = rope_of(index, batch);
  const int32_t num_heads = config.num_heads, all_heads = num_heads + 2 * config.num_kv_heads;
  const auto product = [&](const QkvPart& part) {
    prompt_qkv(rope, cache_of(index), batch.first_rotated, batch.num_rotated, prompt_view_,
               model_.tiled_layer(index).qkv.values, part, config.hidden_size, prompt_clusters_, stream);
  };
  const bool is_last = index + 1 == config.num_layers;
  if (!is_last || !batch.wanted.has_value() || config.q_size() % kPromptTileWeights != 0) {
    return product({0, batch.num_rows, 0, all_heads});
  }
  product({0, batch.num_rows, num_heads, all_heads});
  for (const RowRun& run : *batch.wanted) product({run.first, run.end, 0, num_heads});
}

// qkv_ -> the layer's cache and mixed_. is_rotated: what the batch says is rotated first has been.
void Decoder::attend(int64_t index, const DecoderBatch& batch, bool is_rotated, cudaStream_t stream) {
  const Config& config = model_.config();
  const KvCache cache = cache_of(index);
  const RopeKvArgs rope = rope_of(index, batch);
  if (batch.num_rotated > 0 && !is_rotated) {
    RopeKvArgs rotated = rope;
    rotated.qkv += batch.first_rotated * config.qkv_size();
    rotated.slots += batch.first_rotated;
    rotated.positions += batch.first_rotated;
    rope_kv(rotated, cache, batch.num_rotated, stream);
  }

  AttentionArgs args{};
  args.dst = mixed_;
  args.qkv = qkv_;
  args.qkv_stride = static_cast<int32_t>(config.qkv_size());
  args.num_heads = config.num_heads;
  args.head_dim = config.head_dim;
  args.window = config.windows[index];
  args.scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim));
  args.awaits_rows = batch.has_chunks;
  args.partial = partial_;
  args.arrivals = arrivals_;
  if (batch.num_decode_pieces > 0) {
    const bool are_rotated = batch.num_rotated == batch.num_rows;
    attend_decode(args, cache, batch, are_rotated ? nullptr : &rope, stream);
  }
  attend_prompts(args, cache, batch, index + 1 == config.num_layers, stream);
}

// is_last: of the layers; what logits are not wanted of stays as it was in mixed_.
void Decoder::attend_prompts(const AttentionArgs& args, const KvCache& cache, const DecoderBatch& batch,
                             bool is_last, cudaStream_t stream) {
  KvCache read = cache;
  if (cache.is_e4m3) {
    read.base = unpacked_;
    read.is_e4m3 = false;
    read.block_stride = kv_layer_values(cache.num_kv_heads, args.head_dim, false);
    read.layer_offset = 0;
    read.block_tables = unpacked_tables_;
  }
  AttentionPlan plan = batch.plan;
  const UnpackSpan* unpacked = batch.unpacked;
  for (const PrefillLaunch& launch : batch.prefill_launches) {
    const int32_t pieces = is_last ? launch.wanted : launch.pieces;
    if (pieces > 0) {
      unpack_kv(unpacked_, unpacked_tables_, cache, unpacked, launch.blocks, args.window, args.head_dim,
                stream);
    }
    if (is_wide_prefill_) {
      attention_prefill_wide(args, read, plan, kv_view_, pieces, is_last ? launch.wanted_cuts : launch.cuts,
                             num_sms_, stream);
    } else {
      attention_prefill(args, read, plan, pieces, stream);
    }
    plan.prefill_pieces += launch.pieces;
    unpacked += launch.unpacked;
  }
}

void Decoder::attend_decode(const AttentionArgs& args, const KvCache& cache, const DecoderBatch& batch,
                            const RopeKvArgs* rope, cudaStream_t stream) {
  const auto all = static_cast<int32_t>(batch.num_decode_pieces);
  const std::span<const int32_t> launches =
      batch.decode_launches.empty() ? std::span(&all, 1) : batch.decode_launches;
  AttentionPlan plan = batch.plan;
  for (const int32_t pieces : launches) {
    attention_decode(args, cache, plan, rope, &kv_planes_, pieces, num_sms_, batch.width, stream);
    plan.decode_pieces += pieces;
    plan.counts += 4;
  }
}

}  // namespace ion::cuda
