// Attention over prompts on Hopper: a block a multiprocessor takes piece after piece, 128 packed rows of a
// head group. A producer warp brings tiles of 128 tokens of the paged cache by the copy engine, two
// warpgroups of 64 packed rows each multiply by wgmma.
//
// Tiles are anchored at position 0 and masked ones change nothing, bit for bit: a row's result depends on
// that row alone, and on how often its launch is cut. Few pieces are: each block then has a run of a piece's
// tiles, and a share of its rows to merge (split-KV, as for decode rows).
#include <cuda.h>

#include <algorithm>
#include <stdexcept>

#include "async.cuh"
#include "attention_sm90_feed.cuh"
#include "attention_sm90_rows.cuh"
#include "attention_units.cuh"
#include "box_view.h"
#include "check.h"
#include "kernels.h"
#include "pdl.cuh"

namespace ion::cuda {
namespace {

template <int D, bool kIsCut>
__global__ void __launch_bounds__(kThreads, 1)
    prefill_sm90_kernel(const AttentionArgs args, const KvCache cache, const AttentionPlan plan,
                        const __grid_constant__ CUtensorMap view, const PrefillWork work) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint8_t raw[];
  let_successor_start();
  const Tiles<D> tiles(raw);
  if (threadIdx.x == 0) tiles.init();
  __syncthreads();
  if (threadIdx.x < 128) {
    leave_registers<40>();
    if (threadIdx.x == kWarp) plan_pieces<D>(tiles, args, cache, plan, work);
    wait_for_predecessor();
    if (threadIdx.x < kWarp) fetch<D>(tiles, view, cache);
    if (threadIdx.x >= 2 * kWarp) load_queries<D>(tiles, args);
  } else {
    take_registers<232>();
    wait_for_predecessor();
    Rows<D, kIsCut> rows(tiles, args, work.cuts);
    rows.run();
  }
#endif
}

// The cuts of a piece are a cluster.
template <int D>
ChainLaunch prefill_launch(int32_t blocks, int32_t cuts, cudaStream_t stream) {
  return {dim3(blocks), dim3(kThreads), static_cast<size_t>(Tiles<D>::kSharedBytes), stream, cuts};
}

}  // namespace

bool is_wide_prefill_shape(int32_t head_dim) {
  int device = 0, major = 0;
  check(cudaGetDevice(&device), "device");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "device");
  return major == 9 && (head_dim == 64 || head_dim == 128);
}

int64_t prefill_partial_floats(int32_t num_sms, int32_t head_dim) {
  return int64_t{num_sms} * kWidePrefillRows * (head_dim + 2);
}

int32_t prefill_room(int32_t head_dim, int32_t cuts) {
  int clusters = 0;
  for_wide_head_dim(head_dim, [&](auto dim) {
    constexpr int D = decltype(dim)::value;
    const ChainLaunch one = prefill_launch<D>(cuts, cuts, nullptr);
    allow_shared(prefill_sm90_kernel<D, true>, Tiles<D>::kSharedBytes);
    check(cudaOccupancyMaxActiveClusters(&clusters, prefill_sm90_kernel<D, true>, &one.config), "clusters");
  });
  return clusters;
}

CUtensorMap kv_view(const bf16* base, int64_t num_elements, int32_t head_dim) {
  return block_view(base, num_elements / head_dim, head_dim);
}

void attention_prefill_wide(const AttentionArgs& args, const KvCache& cache, const AttentionPlan& plan,
                            const CUtensorMap& view, int32_t num_pieces, int32_t cuts, int32_t num_sms,
                            cudaStream_t stream) {
  PrefillWork work{prefill_units(args.num_heads, cache.num_kv_heads), cuts, 0};
  work.total = num_pieces * work.units * cuts;
  if (work.total == 0) return;
  if (cuts > 1 && work.total > num_sms) {
    throw std::logic_error("attention: more cuts of prompts than there is room for");
  }
  for_wide_head_dim(args.head_dim, [&](auto dim) {
    constexpr int D = decltype(dim)::value;
    const ChainLaunch launch = prefill_launch<D>(std::min(work.total, num_sms), cuts, stream);
    auto* kernel = cuts > 1 ? prefill_sm90_kernel<D, true> : prefill_sm90_kernel<D, false>;
    allow_shared(kernel, Tiles<D>::kSharedBytes);
    check(cudaLaunchKernelEx(&launch.config, kernel, args, cache, plan, view, work),
          "attention of prefill rows");
  });
}

}  // namespace ion::cuda
