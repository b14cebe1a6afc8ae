// Attention over the paged cache. Decode: pieces of 256 tokens on a fixed grid, a warp for every fourth block
// of a piece, the four added up in shared memory, the pieces of a row in global memory by the last one to
// arrive; of many rows see attention_narrow.cu. Prefill: a warp for sixteen packed rows, alone over all
// blocks that they see.
#include <algorithm>
#include <type_traits>

#include "attention_narrow.h"
#include "attention_tile.cuh"
#include "attention_units.cuh"
#include "check.h"
#include "decode_merge.cuh"
#include "decode_task.cuh"
#include "kernels.h"
#include "pdl.cuh"

namespace ion::cuda {
namespace {

constexpr int kWarps = 4;      // of a block of prefill, and of decode where there is much to do
constexpr int kWideWarps = 8;  // of decode where there is little
constexpr int kThreads = kWarps * kWarp;
static_assert(kPrefillRows == kWarps * kTileRows);

// What a block's warps found for one piece: every thread's sums of half the heads at a time, four dims a
// chunk, so that no two threads of a warp meet in a bank, and maximum and sum of all heads.
template <int D, int kWarps>
struct Found {
  static constexpr int kChunks = D / 32;  // of a thread and head
  float4 acc[kWarps][kChunks][kWarp];
  float m[kWarps][kTileHeads], l[kWarps][kTileHeads];
  int is_last;
};

// One head's sums over the warps, in their order.
template <int kWarps>
struct HeadSums {
  float m, l = 0.0f, factor[kWarps];  // of each warp's sums

  template <int D>
  __device__ HeadSums(const Found<D, kWarps>& found, int head) : m(found.m[0][head]) {
#pragma unroll
    for (int w = 1; w < kWarps; ++w) m = fmaxf(m, found.m[w][head]);
    const float base = m == -INFINITY ? 0.0f : m;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      factor[w] = exp2f(found.m[w][head] - base);
      l += found.l[w][head] * factor[w];
    }
  }

  __device__ float4 add_up(const float4* acc, int stride) const {
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float4 more = acc[w * stride];
      sum.x += more.x * factor[w], sum.y += more.y * factor[w];
      sum.z += more.z * factor[w], sum.w += more.w * factor[w];
    }
    return sum;
  }
};

template <int D, int kWarps>
__device__ void leave_sums(Found<D, kWarps>& found, const DecodeTile<D>& tile) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const float sum[2] = {column_sum(tile.l[0]), column_sum(tile.l[1])};
  if (lane >= 4) return;
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    found.m[warp][2 * lane + e] = tile.m[e];
    found.l[warp][2 * lane + e] = sum[e];
  }
}

// Half the heads: those that threads hold at index e.
template <int D, int kWarps>
__device__ void leave_heads(Found<D, kWarps>& found, const DecodeTile<D>& tile, int half) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  int chunk = 0;
  tile.each_run([&](int e, int, const auto& run) {
    if (e != half) return;
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(run) / sizeof(float)); i += 4) {
      found.acc[warp][chunk++][lane] = make_float4(run[i], run[i + 1], run[i + 2], run[i + 3]);
    }
  });
}

// The first dim of a chunk, as DecodeTile::each_run has them.
template <int D>
__device__ __forceinline__ int dim_of(int chunk) {
  const int quad = static_cast<int>(threadIdx.x) % kWarp / 4, group = chunk / 2;
  return group < D / 64 ? 64 * group + 8 * quad + chunk % 2 * 4 : 64 * group + 4 * quad;
}

// What a piece found, to dst where it is the row's only one, else to the others' merging.
template <int D, int kWarps>
__device__ void finish_piece(Found<D, kWarps>& found, const DecodeTile<D>& tile, const AttentionArgs& args,
                             const Task<D, kWarps>& task, int units, int work) {
  constexpr int kChunks = Found<D, kWarps>::kChunks;
  const int num_heads = task.unit.num_heads, warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const bool is_only = task.num_parts == 1;
  bf16* dst = task.output(args);
  const RowParts<D> parts(args, task, units, work);
  leave_sums(found, tile);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (half > 0) __syncthreads();
    leave_heads(found, tile, half);
    __syncthreads();
    const int head = 2 * (lane % 4) + half;
    if (head >= num_heads) continue;
    const HeadSums<kWarps> sums(found, head);
#pragma unroll
    for (int chunk = warp; chunk < kChunks; chunk += kWarps) {
      const float4 sum = sums.add_up(&found.acc[0][chunk][lane], kChunks * kWarp);
      const int64_t at = head * D + dim_of<D>(chunk);
      if (is_only) {
        const float factor = 1.0f / sums.l;
        *reinterpret_cast<uint2*>(dst + at) =
            make_uint2(pack(sum.x * factor, sum.y * factor), pack(sum.z * factor, sum.w * factor));
      } else {
        auto* to = reinterpret_cast<float2*>(parts.own + 2 * num_heads + at);
        __stcg(to, make_float2(sum.x, sum.y));
        __stcg(to + 1, make_float2(sum.z, sum.w));
      }
    }
    if (is_only || warp > 0 || lane >= 4) continue;
    __stcg(parts.own + head, sums.m);
    __stcg(parts.own + num_heads + head, sums.l);
  }
  if (is_only) return;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) found.is_last = is_last_to_arrive(parts.arrived, task.num_parts);
  __syncthreads();
  if (!found.is_last) return;
  merge_parts<D, kWarps * kWarp>(dst, parts, task.num_parts, num_heads);
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
  __shared__ Found<D, kWarps> found;
  __shared__ __align__(16) RowSpace<D> space;
  let_successor_start();
  const int group = args.num_heads / cache.num_kv_heads, warp_lane = threadIdx.x % kWarp;
  const int units = cache.num_kv_heads * ((group + kTileHeads - 1) / kTileHeads);
  const int total = plan.counts[0] * units;
  bool has_waited = false;
#pragma unroll 1
  for (int work = blockIdx.x; work < total; work += gridDim.x) {
    Task<D, kWarps> task(args, cache, plan, units, work, static_cast<int>(threadIdx.x) / kWarp);
    if (!task.is_seen()) continue;  // other layers see it
    DecodeTile<D> tile;
    const bf16* q = task.queries(args);
    const auto first = [&] {
      if constexpr (kRopes) {
        const RowHeads<D, kWarps> heads(space, rope, cache, task);
        const FirstBlock<D, kWarps, kRopes> block(tile, task);
        if (!has_waited) wait_for_predecessor(), has_waited = true;
        heads.fetch();
        heads.await();
        __syncthreads();
        heads.rotate();
        __syncthreads();
        q = space.heads[0];
        return block;
      } else {
        if (args.awaits_rows && !has_waited) wait_for_predecessor(), has_waited = true;
        const FirstBlock<D, kWarps, kRopes> block(tile, task);
        if (!has_waited) wait_for_predecessor(), has_waited = true;
        return block;
      }
    }();
    first.complete(tile, task, space.heads + kTileHeads);
    tile.load(warp_lane / 4 < task.unit.num_heads ? q + warp_lane / 4 * D : nullptr);
    fold_blocks<D, kWarps>(tile, task, args.scale * kLog2E);
    finish_piece<D, kWarps>(found, tile, args, task, units, work);
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
    store_run(args.dst + outputs[r] + dim, run, sum[r]);
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
  if (width == DecodeWidth::ring) return ring_warps() * num_sms;
  const int warps = width == DecodeWidth::one ? 1 : width == DecodeWidth::two ? 2 : kWarps;
  return kResidentWarps / warps * num_sms;
}

DecodeWidth decode_width(int64_t num_pieces, int32_t num_sms, bool has_ring) {
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
  for_head_dim(args.head_dim, launch);
}

void attention_prefill(const AttentionArgs& args, const KvCache& cache, const AttentionPlan& plan,
                       int32_t num_pieces, cudaStream_t stream) {
  const int grid = num_pieces * units_of(args.num_heads, cache.num_kv_heads, kPackedHeads);
  if (grid == 0) return;
  const auto launch = [&](auto* kernel) {
    launch_in_chain("attention of prefill rows", kernel, dim3(grid), dim3(kThreads), 0, stream, args, cache,
                    plan);
  };
  for_head_dim(args.head_dim, [&](auto dim) { launch(prefill_kernel<decltype(dim)::value>); });
}

}  // namespace ion::cuda
