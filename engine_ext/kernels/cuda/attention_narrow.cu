// Decode attention for many rows: a warp for each piece and unit of heads, alone over the piece's blocks.
// With as many pieces as warps that can be resident, nothing needs to be shared between warps but memory.
#include <algorithm>
#include <type_traits>

#include "attention_narrow.h"
#include "check.h"
#include "decode_merge.cuh"
#include "decode_task.cuh"
#include "pdl.cuh"

namespace ion::cuda {
namespace {

constexpr int kWarps = 4;  // of a block, each for itself
constexpr int kBlocksPerSm = 3;

// A row's only piece.
template <int D>
__device__ void write_row(bf16* dst, const DecodeTile<D>& tile, int num_heads) {
  const int pair = 2 * static_cast<int>(threadIdx.x % 4);
  const float factor[2] = {1.0f / column_sum(tile.l[0]), 1.0f / column_sum(tile.l[1])};
  tile.each_run([&](int e, int dim, const auto& run) {
    if (pair + e >= num_heads) return;
    store_run(dst + (pair + e) * D + dim, run, factor[e]);
  });
}

// One of several, as RowParts has it.
template <int D>
__device__ void write_part(float* part, const DecodeTile<D>& tile, int num_heads) {
  const int lane = threadIdx.x % kWarp, pair = 2 * (lane % 4);
  const float sum[2] = {column_sum(tile.l[0]), column_sum(tile.l[1])};
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    if (lane >= 4 || pair + e >= num_heads) continue;
    __stcg(part + pair + e, tile.m[e]);
    __stcg(part + num_heads + pair + e, sum[e]);
  }
  tile.each_run([&](int e, int dim, const auto& run) {
    constexpr int kSize = sizeof(run) / sizeof(float);
    if (pair + e >= num_heads) return;
    float* at = part + 2 * num_heads + (pair + e) * D + dim;
#pragma unroll
    for (int i = 0; i < kSize; i += 2) {
      __stcg(reinterpret_cast<float2*>(at + i), make_float2(run[i], run[i + 1]));
    }
  });
}

template <int D>
__device__ void finish_piece(const DecodeTile<D>& tile, const AttentionArgs& args, const Task<D, 1>& task,
                             int units, int work) {
  const int num_heads = task.unit.num_heads;
  if (task.num_parts == 1) return write_row<D>(task.output(args), tile, num_heads);
  const RowParts<D> parts(args, task, units, work);
  write_part<D>(parts.own, tile, num_heads);
  __threadfence();
  __syncwarp();
  int is_last = 0;
  if (threadIdx.x % kWarp == 0) is_last = is_last_to_arrive(parts.arrived, task.num_parts);
  if (__shfl_sync(0xffffffffu, is_last, 0) == 0) return;
  merge_parts<D, kWarp>(task.output(args), parts, task.num_parts, num_heads);
}

template <int D, bool kRopes>
__global__ void __launch_bounds__(kWarps* kWarp, kBlocksPerSm)
    narrow_kernel(const AttentionArgs args, const KvCache cache, const AttentionPlan plan,
                  const RopeKvArgs rope) {
  __shared__ __align__(16) RowSpace<D> spaces[kRopes ? kWarps : 1];
  let_successor_start();
  const int group = args.num_heads / cache.num_kv_heads, lane = threadIdx.x % kWarp;
  const int units = cache.num_kv_heads * ((group + kTileHeads - 1) / kTileHeads);
  const int total = plan.counts[0] * units, warp = static_cast<int>(threadIdx.x) / kWarp;
  bool has_waited = false;
  // Neighbouring blocks take neighbouring pieces, so that few pieces still occupy every multiprocessor.
#pragma unroll 1
  for (int work = blockIdx.x + warp * gridDim.x; work < total; work += gridDim.x * kWarps) {
    Task<D, 1> task(args, cache, plan, units, work, 0);
    if (!task.is_seen()) continue;  // other layers see it
    if (!has_waited) wait_for_predecessor(), has_waited = true;
    DecodeTile<D> tile;
    const bf16* q = task.queries(args);
    const auto first = [&] {
      if constexpr (kRopes) {
        // Before the cache's first block: what is asked for later comes later, and these are needed first.
        const RowHeads<D, 1> heads(spaces[warp], rope, cache, task);
        heads.fetch();
        const FirstBlock<D, 1, kRopes> block(tile, task);
        heads.await();
        __syncwarp();
        heads.rotate();
        __syncwarp();
        q = spaces[warp].heads[0];
        return block;
      } else {
        return FirstBlock<D, 1, kRopes>(tile, task);
      }
    }();
    first.complete(tile, task, spaces[kRopes ? warp : 0].heads + kTileHeads);
    tile.load(lane / 4 < task.unit.num_heads ? q + lane / 4 * D : nullptr);
    fold_blocks<D, 1>(tile, task, args.scale * kLog2E);
    finish_piece<D>(tile, args, task, units, work);
    __syncwarp();
  }
  if (!has_waited) wait_for_predecessor();  // every kernel of the chain does
}

}  // namespace

void attention_decode_narrow(const AttentionArgs& args, const KvCache& cache, const AttentionPlan& plan,
                             const RopeKvArgs* rope, int32_t pieces, int32_t num_sms, cudaStream_t stream) {
  const int32_t grid = std::min(pieces, kBlocksPerSm * num_sms);
  const auto launch = [&](auto dim) {
    constexpr int D = decltype(dim)::value;
    auto* kernel = rope != nullptr ? narrow_kernel<D, true> : narrow_kernel<D, false>;
    launch_in_chain("attention of many decode rows", kernel, dim3(grid), dim3(kWarps * kWarp), 0, stream,
                    args, cache, plan, rope != nullptr ? *rope : RopeKvArgs{});
  };
  for_head_dim(args.head_dim, launch);
}

}  // namespace ion::cuda
