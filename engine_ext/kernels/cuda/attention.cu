// Attention over the paged cache. Decode: pieces of 256 tokens on a fixed grid, a warp for every fourth block
// of a piece, the four merged in shared memory, the pieces of a row in global memory by the last one to
// arrive; of many rows see attention_narrow.cu. Prefill: a warp for sixteen packed rows, alone over all
// blocks that they see.
#include <algorithm>
#include <type_traits>

#include "attention_narrow.h"
#include "attention_tile.cuh"
#include "attention_units.cuh"
#include "check.h"
#include "decode_task.cuh"
#include "kernels.h"
#include "pdl.cuh"

namespace ion::cuda {
namespace {

constexpr int kWarps = 4;      // of a block of prefill, and of decode where there is much to do
constexpr int kWideWarps = 8;  // of decode where there is little
constexpr int kThreads = kWarps * kWarp;
static_assert(kPrefillRows == kWarps * kTileRows);

// What a block's warps found for one piece, added up in the order of the warps.
template <int D, int kWarps>
struct Merged {
  float acc[kTileHeads][D];
  float m[kTileHeads], l[kTileHeads];
  float warp_m[kWarps][kTileHeads], warp_l[kWarps][kTileHeads];
  int is_last;
};

template <int D, int kWarps>
__device__ void merge_warps(Merged<D, kWarps>& to, const DecodeTile<D>& tile) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const float sum[2] = {column_sum(tile.l[0]), column_sum(tile.l[1])};
  if (lane < 4) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      to.warp_m[warp][2 * lane + e] = tile.m[e];
      to.warp_l[warp][2 * lane + e] = sum[e];
    }
  }
  __syncthreads();
  float factor[2];
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int head = 2 * (lane % 4) + e;
    float m = to.warp_m[0][head], l = 0.0f;
    for (int w = 1; w < kWarps; ++w) m = fmaxf(m, to.warp_m[w][head]);
    const float base = m == -INFINITY ? 0.0f : m;
    for (int w = 0; w < kWarps; ++w) l += to.warp_l[w][head] * exp2f(to.warp_m[w][head] - base);
    factor[e] = exp2f(tile.m[e] - base);
    if (warp == 0 && lane < 4) to.m[head] = m, to.l[head] = l;
  }
  for (int w = 0; w < kWarps; ++w) {
    if (warp == w) {
      tile.each_run([&](int e, int dim, const auto& run) {
        constexpr int kSize = sizeof(run) / sizeof(float);
        float* at = to.acc[2 * (lane % 4) + e] + dim;
#pragma unroll
        for (int i = 0; i < kSize; ++i) at[i] = (w == 0 ? 0.0f : at[i]) + run[i] * factor[e];
      });
    }
    __syncthreads();
  }
}

// The parts of a row, in order, over the sums' common maximum. A part: m and l of each head, then acc
// [heads][D].
template <int D, int kThreads>
__device__ void merge_parts(bf16* dst, const float* parts, int64_t stride, int num_parts, int num_heads) {
  for (int i = threadIdx.x; i < num_heads * D; i += kThreads) {
    const int head = i / D;
    float m = -INFINITY, l = 0.0f, value = 0.0f;
    for (int p = 0; p < num_parts; ++p) m = fmaxf(m, __ldcg(parts + p * stride + head));
    const float base = m == -INFINITY ? 0.0f : m;
    for (int p = 0; p < num_parts; ++p) {
      const float* part = parts + p * stride;
      const float factor = exp2f(__ldcg(part + head) - base);
      l += __ldcg(part + num_heads + head) * factor;
      value += __ldcg(part + 2 * num_heads + i) * factor;
    }
    dst[i] = __float2bfloat16(value / l);
  }
}

// What a piece found, to dst where it is the row's only one, else to the others' merging.
template <int D, int kWarps>
__device__ void finish_piece(Merged<D, kWarps>& merged, const AttentionArgs& args,
                             const Task<D, kWarps>& task, int units, int work) {
  constexpr int kThreads = kWarps * kWarp;
  const Unit& unit = task.unit;
  bf16* dst = task.output(args);
  if (task.num_parts == 1) {
    for (int i = threadIdx.x; i < unit.num_heads * D; i += kThreads) {
      dst[i] = __float2bfloat16(merged.acc[i / D][i % D] / merged.l[i / D]);
    }
    return;
  }
  const int64_t unit_floats = static_cast<int64_t>(min(kTileHeads, args.num_heads)) * (D + 2);
  float* part = args.partial + work * unit_floats;
  for (int i = threadIdx.x; i < unit.num_heads; i += kThreads) {
    __stcg(part + i, merged.m[i]);
    __stcg(part + unit.num_heads + i, merged.l[i]);
  }
  for (int i = threadIdx.x; i < unit.num_heads * D; i += kThreads) {
    __stcg(part + 2 * unit.num_heads + i, merged.acc[i / D][i % D]);
  }
  __threadfence();
  __syncthreads();
  uint32_t* arrived = args.arrivals + task.piece.span * units + work % units;
  if (threadIdx.x == 0) {
    merged.is_last = atomicAdd(arrived, 1u) == static_cast<uint32_t>(task.num_parts - 1);
    if (merged.is_last) *arrived = 0;
    __threadfence();
  }
  __syncthreads();
  if (!merged.is_last) return;
  const int64_t stride = unit_floats * units;
  merge_parts<D, kThreads>(dst, part - (task.piece.part - task.first_part) * stride, stride, task.num_parts,
                           unit.num_heads);
}

constexpr int kResidentWarps = 12;  // of a multiprocessor, by their registers

// Of a multiprocessor; one where few rows are to be fast.
constexpr int blocks_per_sm(int warps) {
  return warps == kWideWarps ? 1 : kResidentWarps / warps;
}

template <int D, bool kRopes, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarp, blocks_per_sm(kWarps))
    decode_kernel(const AttentionArgs args, const KvCache cache, const AttentionPlan plan,
                  const RopeKvArgs rope) {
  __shared__ Merged<D, kWarps> merged;
  __shared__ __align__(16) bf16 queries[kRopes ? kTileHeads + 2 : 1][D];
  let_successor_start();
  const int group = args.num_heads / cache.num_kv_heads, warp_lane = threadIdx.x % kWarp;
  const int units = cache.num_kv_heads * ((group + kTileHeads - 1) / kTileHeads);
  const int total = plan.counts[0] * units;
  bool has_waited = false;
  for (int work = blockIdx.x; work < total; work += gridDim.x) {
    Task<D, kWarps> task(args, cache, plan, units, work, static_cast<int>(threadIdx.x) / kWarp);
    if (!task.is_seen()) continue;  // other layers see it
    DecodeTile<D> tile;
    const FirstBlock<D, kWarps, kRopes> first(tile, task);
    if (!has_waited) wait_for_predecessor(), has_waited = true;
    const bf16* q = task.queries(args);
    if constexpr (kRopes) {
      rotate_row<D, kWarps>(queries, rope, cache, task);
      __syncthreads();
      q = queries[0];
    }
    first.complete(tile, task, queries + (kRopes ? kTileHeads : 0));
    tile.load(warp_lane / 4 < task.unit.num_heads ? q + warp_lane / 4 * D : nullptr);
    fold_blocks<D, kWarps>(tile, task, args.scale * kLog2E);
    merge_warps<D, kWarps>(merged, tile);
    finish_piece<D, kWarps>(merged, args, task, units, work);
    __syncthreads();
  }
  if (!has_waited) wait_for_predecessor();  // every kernel of the chain does
}

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
    constexpr int kSize = sizeof(run) / sizeof(float);
    uint32_t words[kSize / 2];
#pragma unroll
    for (int i = 0; i < kSize / 2; ++i) words[i] = pack(run[2 * i] * sum[r], run[2 * i + 1] * sum[r]);
    bf16* at = args.dst + outputs[r] + dim;
    if constexpr (kSize == 8) {
      *reinterpret_cast<uint4*>(at) = make_uint4(words[0], words[1], words[2], words[3]);
    } else {
      *reinterpret_cast<uint2*>(at) = make_uint2(words[0], words[1]);
    }
  });
}

}  // namespace

bool is_attention_shape(int32_t num_heads, int32_t num_kv_heads, int32_t head_dim) {
  const bool is_size = head_dim == 32 || head_dim == 64 || head_dim == 96 || head_dim == 128;
  return is_size && num_kv_heads > 0 && num_heads % num_kv_heads == 0;
}

int32_t attention_decode_units(int32_t num_heads, int32_t num_kv_heads) {
  return units_of(num_heads, num_kv_heads, kTileHeads);
}

int64_t attention_partial_floats(int64_t max_pieces, int32_t num_heads, int32_t num_kv_heads,
                                 int32_t head_dim) {
  const int64_t heads = num_heads < kTileHeads ? num_heads : kTileHeads;
  return max_pieces * attention_decode_units(num_heads, num_kv_heads) * heads * (head_dim + 2);
}

int32_t resident_pieces(DecodeWidth width, int32_t num_sms) {
  const int warps = width == DecodeWidth::one ? 1 : width == DecodeWidth::two ? 2 : kWarps;
  return kResidentWarps / warps * num_sms;
}

DecodeWidth decode_width(int64_t num_pieces, int32_t num_sms) {
  if (num_pieces <= resident_pieces(DecodeWidth::four, num_sms)) return DecodeWidth::four;
  return num_pieces <= resident_pieces(DecodeWidth::two, num_sms) ? DecodeWidth::two : DecodeWidth::one;
}

void attention_decode(const AttentionArgs& args, const KvCache& cache, const AttentionPlan& plan,
                      const RopeKvArgs* rope, int32_t num_pieces, int32_t num_sms, DecodeWidth width,
                      cudaStream_t stream) {
  if (!is_attention_shape(args.num_heads, cache.num_kv_heads, args.head_dim)) {
    throw std::runtime_error("attention: no kernel for these heads");
  }
  const int32_t pieces = num_pieces * attention_decode_units(args.num_heads, cache.num_kv_heads);
  if (width == DecodeWidth::one) {
    return attention_decode_narrow(args, cache, plan, rope, pieces, num_sms, stream);
  }
  const auto start = [&](auto* kernel, int warps) {
    const int32_t blocks = std::min(pieces, kResidentWarps / std::min(warps, kWarps) * num_sms);
    launch_in_chain("attention of decode rows", kernel, dim3(blocks), dim3(warps * kWarp), 0, stream, args,
                    cache, plan, rope != nullptr ? *rope : RopeKvArgs{});
  };
  const auto launch = [&](auto dim) {
    constexpr int D = decltype(dim)::value;
    if (width == DecodeWidth::two) {
      return rope == nullptr ? start(decode_kernel<D, false, 2>, 2) : start(decode_kernel<D, true, 2>, 2);
    }
    if (rope == nullptr) return start(decode_kernel<D, false, kWarps>, kWarps);
    if (width == DecodeWidth::eight) return start(decode_kernel<D, true, kWideWarps>, kWideWarps);
    return start(decode_kernel<D, true, kWarps>, kWarps);
  };
  switch (args.head_dim) {
    case 32:
      return launch(std::integral_constant<int, 32>{});
    case 64:
      return launch(std::integral_constant<int, 64>{});
    case 96:
      return launch(std::integral_constant<int, 96>{});
    case 128:
      return launch(std::integral_constant<int, 128>{});
    default:
      throw std::runtime_error("attention: no kernel for this head_dim");
  }
}

void attention_prefill(const AttentionArgs& args, const KvCache& cache, const AttentionPlan& plan,
                       int32_t num_pieces, cudaStream_t stream) {
  const int grid = num_pieces * units_of(args.num_heads, cache.num_kv_heads, kPackedHeads);
  if (grid == 0) return;
  const auto launch = [&](auto* kernel) {
    launch_in_chain("attention of prefill rows", kernel, dim3(grid), dim3(kThreads), 0, stream, args, cache,
                    plan);
  };
  switch (args.head_dim) {
    case 32:
      return launch(prefill_kernel<32>);
    case 64:
      return launch(prefill_kernel<64>);
    case 96:
      return launch(prefill_kernel<96>);
    case 128:
      return launch(prefill_kernel<128>);
    default:
      throw std::runtime_error("attention: no kernel for this head_dim");
  }
}

}  // namespace ion::cuda
