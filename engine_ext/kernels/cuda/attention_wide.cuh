// Decode attention with several warps for a piece: each takes every so many-th block, and what they found is
// added up in shared memory. Each file that includes it has kernels of its own.
#pragma once

#include <algorithm>
#include <type_traits>

#include "attention_units.cuh"
#include "check.h"
#include "decode_merge.cuh"
#include "decode_task.cuh"
#include "kernels.h"
#include "pdl.cuh"

namespace ion::cuda {
namespace {

constexpr int kWideWarps = 8;       // of a block where there is little to do
constexpr int kMostPieceWarps = 4;  // and where there is much

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
__device__ void leave_sums(Found<D, kWarps>& found, const DecodeSums<D>& tile) {
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
template <int D, int kWarps, typename Tile>
__device__ void leave_heads(Found<D, kWarps>& found, const Tile& tile, int half) {
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

// What a piece found, to dst where it is the row's only one, else to the others' merging.
template <int D, int kWarps, typename Kv>
__device__ void finish_piece(Found<D, kWarps>& found, const TileOf<D, Kv>& tile, const AttentionArgs& args,
                             const Task<D, kWarps, Kv>& task, int units, int work) {
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
      const int64_t at = head * D + tile.dim_of(chunk);
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

template <int D, typename Kv, bool kRopes, int kWarps>
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
    Task<D, kWarps, Kv> task(args, cache, plan, units, work, static_cast<int>(threadIdx.x) / kWarp);
    if (!task.is_seen()) continue;  // other layers see it
    TileOf<D, Kv> tile;
    const bf16* q = task.queries(args);
    const auto first = [&] {
      if constexpr (kRopes) {
        const RowHeads<D, kWarps, Kv> heads(space, rope, cache, task);
        const FirstBlock<D, kWarps, Kv, kRopes> block(tile, task);
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
        const FirstBlock<D, kWarps, Kv, kRopes> block(tile, task);
        if (!has_waited) wait_for_predecessor(), has_waited = true;
        return block;
      }
    }();
    first.complete(tile, task, space.heads + kTileHeads);
    tile.load(warp_lane / 4 < task.unit.num_heads ? q + warp_lane / 4 * D : nullptr);
    fold_blocks<D, kWarps, Kv>(tile, task, args.scale * kLog2E);
    finish_piece<D, kWarps, Kv>(found, tile, args, task, units, work);
    __syncthreads();
  }
  if (!has_waited) wait_for_predecessor();  // every kernel of the chain does
}

// `pieces`: of all units.
template <typename Kv>
void launch_decode(const AttentionArgs& args, const KvCache& cache, const AttentionPlan& plan,
                   const RopeKvArgs* rope, int32_t pieces, int32_t num_sms, DecodeWidth width,
                   cudaStream_t stream) {
  const auto start = [&](auto* kernel, int warps) {
    const int32_t blocks = std::min(pieces, kResidentWarps / std::min(warps, kMostPieceWarps) * num_sms);
    launch_in_chain("attention of decode rows", kernel, dim3(blocks), dim3(warps * kWarp), 0, stream, args,
                    cache, plan, rope != nullptr ? *rope : RopeKvArgs{});
  };
  const auto launch = [&](auto dim) {
    constexpr int D = decltype(dim)::value;
    if (width == DecodeWidth::two) {
      return rope == nullptr ? start(decode_kernel<D, Kv, false, 2>, 2)
                             : start(decode_kernel<D, Kv, true, 2>, 2);
    }
    if (rope == nullptr) return start(decode_kernel<D, Kv, false, kMostPieceWarps>, kMostPieceWarps);
    if (width == DecodeWidth::eight) return start(decode_kernel<D, Kv, true, kWideWarps>, kWideWarps);
    return start(decode_kernel<D, Kv, true, kMostPieceWarps>, kMostPieceWarps);
  };
  for_dim_of<Kv>(args.head_dim, launch);
}

}  // namespace
}  // namespace ion::cuda
