// Decode attention for many rows: a warp for each piece and unit of heads, alone over the piece's blocks.
// With as many pieces as warps that can be resident, nothing needs to be shared between warps but memory.
#include <algorithm>
#include <type_traits>

#include "attention_decode.h"
#include "check.h"
#include "decode_merge.cuh"
#include "decode_task.cuh"
#include "pdl.cuh"

namespace ion::cuda {
namespace {

constexpr int kWarps = 4;  // of a block, each for itself
constexpr int kBlocksPerSm = 3;

template <int D, typename Kv, bool kRopes>
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
    Task<D, 1, Kv> task(args, cache, plan, units, work, 0);
    if (!task.is_seen()) continue;  // other layers see it
    if (!has_waited) wait_for_predecessor(), has_waited = true;
    TileOf<D, Kv> tile;
    const bf16* q = task.queries(args);
    const auto first = [&] {
      if constexpr (kRopes) {
        // Before the cache's first block: what is asked for later comes later, and these are needed first.
        const RowHeads<D, 1, Kv> heads(spaces[warp], rope, cache, task);
        heads.fetch();
        const FirstBlock<D, 1, Kv, kRopes> block(tile, task);
        heads.await();
        __syncwarp();
        heads.rotate();
        __syncwarp();
        q = spaces[warp].heads[0];
        return block;
      } else {
        return FirstBlock<D, 1, Kv, kRopes>(tile, task);
      }
    }();
    first.complete(tile, task, spaces[kRopes ? warp : 0].heads + kTileHeads);
    tile.load(lane / 4 < task.unit.num_heads ? q + lane / 4 * D : nullptr);
    fold_blocks<D, 1, Kv>(tile, task, args.scale * kLog2E);
    finish_piece<D>(tile, args, task, units, work);
    __syncwarp();
  }
  if (!has_waited) wait_for_predecessor();  // every kernel of the chain does
}

}  // namespace

void attention_decode_narrow(const AttentionArgs& args, const KvCache& cache, const AttentionPlan& plan,
                             const RopeKvArgs* rope, int32_t pieces, int32_t num_sms, cudaStream_t stream) {
  const int32_t grid = std::min(pieces, kBlocksPerSm * num_sms);
  const auto launch = [&](auto dim, auto value) {
    constexpr int D = decltype(dim)::value;
    using Kv = decltype(value);
    auto* kernel = rope != nullptr ? narrow_kernel<D, Kv, true> : narrow_kernel<D, Kv, false>;
    launch_in_chain("attention of many decode rows", kernel, dim3(grid), dim3(kWarps * kWarp), 0, stream,
                    args, cache, plan, rope != nullptr ? *rope : RopeKvArgs{});
  };
  for_cache(args.head_dim, cache.is_e4m3, launch);
}

}  // namespace ion::cuda
