// Attention over the paged cache. Decode: pieces on a fixed grid, by which kernels is said in
// attention_decode.h. Prefill: a warp for sixteen packed rows, alone over all blocks that they see.
#include <algorithm>
#include <type_traits>

#include "attention_decode.h"
#include "attention_tile.cuh"
#include "attention_units.cuh"
#include "attention_wide.cuh"
#include "check.h"
#include "kernels.h"
#include "pdl.cuh"

namespace ion::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
// From so many tokens of all units on the cache is what attention waits for, although there are few rows; of
// fewer units than these a row would have too many parts to merge (docs/decisions/0054).
constexpr int64_t kRingTokens = 1 << 17, kRingPieces = 48;
static_assert(kPrefillRows == kWarps * kTileRows);

template <int D>
__global__ void __launch_bounds__(kThreads)
    prefill_kernel(const AttentionArgs args, const KvCache cache, const AttentionPlan plan) {
  join_chain();
  const int group = args.num_heads / cache.num_kv_heads;
  const int units = cache.num_kv_heads * ((group + kPackedHeads - 1) / kPackedHeads);
  const Piece piece = plan.prefill_pieces[blockIdx.x / units];
  const Span span = plan.spans[piece.span];
  const Unit unit(args, cache, kPackedHeads, blockIdx.x % units);
  const int lane = threadIdx.x % kWarp;
  const int base = piece.part * kPrefillRows + static_cast<int>(threadIdx.x) / kWarp * kTileRows;
  if (base / unit.num_heads >= span.count) return;
  const Blocks<D> blocks(cache, span.slot, unit.kv_head);
  const bf16* rows[2] = {};
  int64_t outputs[2] = {-1, -1};
  Sight sight[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int packed = base + lane / 4 + 8 * r, token = packed / unit.num_heads;
    const int head = unit.first_head + packed % unit.num_heads;
    const int position = span.start + min(token, span.count - 1);
    sight[r] = {first_seen(position, args.window), position};
    if (token >= span.count) continue;
    const int64_t row = span.first_row + token;
    rows[r] = args.qkv + row * args.qkv_stride + head * D;
    outputs[r] = (row * args.num_heads + head) * D;
  }
  AttentionTile<D> tile;
  tile.load(rows[0], rows[1]);
  const int lowest = span.start + base / unit.num_heads;
  const int highest = span.start + min(span.count - 1, (base + kTileRows - 1) / unit.num_heads);
  const int all_seen_from = first_seen(highest, args.window);
  const float scale = args.scale * kLog2E;
  for (int block = first_seen(lowest, args.window) / kKvBlock; block <= highest / kKvBlock; ++block) {
    const bf16* k = blocks.keys(block);
    const int token = block * kKvBlock;
    if (token >= all_seen_from && token + kKvBlock - 1 <= lowest) {
      tile.template fold<false>(k, k + blocks.v_offset, token, highest, scale, sight);
    } else {
      tile.template fold<true>(k, k + blocks.v_offset, token, highest, scale, sight);
    }
  }
  const float sum[2] = {1.0f / quad_sum(tile.l[0]), 1.0f / quad_sum(tile.l[1])};
  tile.each_run([&](int r, int dim, const auto& run) {
    if (outputs[r] < 0) return;
    store_run(args.dst + outputs[r] + dim, run, sum[r]);
  });
}

}  // namespace

bool is_e4m3_kv_shape(int32_t head_dim) {
  return head_dim == 64 || head_dim == 128;
}

bool is_attention_shape(int32_t num_heads, int32_t num_kv_heads, int32_t head_dim) {
  const bool is_size = head_dim == 32 || head_dim == 64 || head_dim == 96 || head_dim == 128;
  return is_size && num_kv_heads > 0 && num_heads % num_kv_heads == 0;
}

int32_t attention_decode_units(int32_t num_heads, int32_t num_kv_heads) {
  return units_of(num_heads, num_kv_heads, kTileHeads);
}

int32_t prefill_units(int32_t num_heads, int32_t num_kv_heads) {
  return units_of(num_heads, num_kv_heads, kPackedHeads);
}

int64_t attention_partial_floats(int64_t max_pieces, int32_t num_heads, int32_t num_kv_heads,
                                 int32_t head_dim) {
  const int64_t heads = num_heads < kTileHeads ? num_heads : kTileHeads;
  return max_pieces * attention_decode_units(num_heads, num_kv_heads) * heads * (head_dim + 2);
}

int32_t resident_pieces(DecodeWidth width, int32_t num_sms) {
  if (width == DecodeWidth::ring) return ring_warps() * num_sms;
  const int warps = width == DecodeWidth::one ? 1 : width == DecodeWidth::two ? 2 : kMostPieceWarps;
  return kResidentWarps / warps * num_sms;
}

DecodeWidth decode_width(int64_t num_pieces, int64_t num_tokens, int32_t num_sms, bool has_ring) {
  if (has_ring && num_pieces >= kRingPieces && num_tokens >= kRingTokens) return DecodeWidth::ring;
  if (num_pieces <= resident_pieces(DecodeWidth::four, num_sms)) return DecodeWidth::four;
  if (has_ring) return DecodeWidth::ring;
  return num_pieces <= resident_pieces(DecodeWidth::two, num_sms) ? DecodeWidth::two : DecodeWidth::one;
}

void attention_decode(const AttentionArgs& args, const KvCache& cache, const AttentionPlan& plan,
                      const RopeKvArgs* rope, const CUtensorMap* planes, int32_t num_pieces, int32_t num_sms,
                      DecodeWidth width, cudaStream_t stream) {
  if (!is_attention_shape(args.num_heads, cache.num_kv_heads, args.head_dim)) {
    throw std::runtime_error("attention: no kernel for these heads");
  }
  const int32_t pieces = num_pieces * attention_decode_units(args.num_heads, cache.num_kv_heads);
  if (width == DecodeWidth::ring && rope != nullptr) {
    return attention_decode_ring(args, cache, plan, *rope, *planes, pieces, num_sms, stream);
  }
  if (width == DecodeWidth::one || width == DecodeWidth::ring) {
    return attention_decode_narrow(args, cache, plan, rope, pieces, num_sms, stream);
  }
  const auto launch = cache.is_e4m3 ? attention_decode_codes : launch_decode<bf16>;
  launch(args, cache, plan, rope, pieces, num_sms, width, stream);
}

void attention_prefill(const AttentionArgs& args, const KvCache& cache, const AttentionPlan& plan,
                       int32_t num_pieces, cudaStream_t stream) {
  const int grid = num_pieces * prefill_units(args.num_heads, cache.num_kv_heads);
  if (grid == 0) return;
  const auto launch = [&](auto* kernel) {
    launch_in_chain("attention of prefill rows", kernel, dim3(grid), dim3(kThreads), 0, stream, args, cache,
                    plan);
  };
  for_head_dim(args.head_dim, [&](auto dim) { launch(prefill_kernel<decltype(dim)::value>); });
}

}  // namespace ion::cuda
