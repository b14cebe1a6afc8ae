// Decode attention for many rows: a warp for each piece and unit of heads, alone over the piece's blocks.
// With as many pieces as warps that can be resident, nothing needs to be shared between warps but memory.
#include <algorithm>
#include <type_traits>

#include "attention_narrow.cuh"
#include "attention_narrow.h"
#include "check.h"
#include "pdl.cuh"

namespace ion::cuda {
namespace {

constexpr int kWarps = 4;  // of a block, each for itself
constexpr int kBlocksPerSm = 3;

template <int D, bool kRopes>
__global__ void __launch_bounds__(kWarps* kWarp, kBlocksPerSm)
    narrow_kernel(const AttentionArgs args, const KvCache cache, const AttentionPlan plan,
                  const RopeKvArgs rope) {
  __shared__ __align__(16) bf16 queries[kRopes ? kWarps : 1][kRopes ? kTileHeads + 2 : 1][D];
  let_successor_start();
  const int group = args.num_heads / cache.num_kv_heads, lane = threadIdx.x % kWarp;
  const int units = cache.num_kv_heads * ((group + kTileHeads - 1) / kTileHeads);
  const int total = plan.counts[0] * units, warp = static_cast<int>(threadIdx.x) / kWarp;
  bool has_waited = false;
  // Neighbouring blocks take neighbouring pieces, so that few pieces still occupy every multiprocessor.
  for (int work = blockIdx.x + warp * gridDim.x; work < total; work += gridDim.x * kWarps) {
    Task<D, 1> task(args, cache, plan, units, work, 0);
    if (!task.is_seen()) continue;  // other layers see it
    DecodeTile<D> tile;
    const FirstBlock<D, 1, kRopes> first(tile, task);
    if (!has_waited) wait_for_predecessor(), has_waited = true;
    const bf16* q = task.queries(args);
    if constexpr (kRopes) {
      rotate_row<D, 1>(queries[warp], rope, cache, task);
      __syncwarp();
      q = queries[warp][0];
    }
    first.complete(tile, task, queries[kRopes ? warp : 0] + (kRopes ? kTileHeads : 0));
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
  switch (args.head_dim) {
    case 32:
      return launch(std::integral_constant<int, 32>{});
    case 64:
      return launch(std::integral_constant<int, 64>{});
    case 96:
      return launch(std::integral_constant<int, 96>{});
    default:
      return launch(std::integral_constant<int, 128>{});
  }
}

}  // namespace ion::cuda
