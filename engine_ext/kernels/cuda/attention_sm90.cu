// Attention over prompts on Hopper: a block a multiprocessor takes piece after piece, 128 packed rows of a
// head group. A producer warp brings tiles of 128 tokens of the paged cache by the copy engine, two
// warpgroups of 64 packed rows each multiply by wgmma.
//
// Tiles are anchored at position 0 and masked ones change nothing, bit for bit: a row's result depends on
// that row alone.
#include <cuda.h>

#include <algorithm>
#include <stdexcept>

#include "attention_sm90_feed.cuh"
#include "attention_sm90_rows.cuh"
#include "attention_units.cuh"
#include "box_view.h"
#include "check.h"
#include "kernels.h"
#include "pdl.cuh"
#include "wgmma.cuh"

namespace ion::cuda {
namespace {

template <int D>
__global__ void __launch_bounds__(kThreads, 1)
    prefill_sm90_kernel(const AttentionArgs args, const KvCache cache, const AttentionPlan plan,
                        const __grid_constant__ CUtensorMap view, int units, int total) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint8_t raw[];
  let_successor_start();
  const Tiles<D> tiles(raw);
  if (threadIdx.x == 0) tiles.init();
  __syncthreads();
  if (threadIdx.x < 128) {
    leave_registers<40>();
    if (threadIdx.x == kWarp) plan_pieces<D>(tiles, args, cache, plan, units, total);
    wait_for_predecessor();
    if (threadIdx.x < kWarp) fetch<D>(tiles, view, cache);
    if (threadIdx.x >= 2 * kWarp) load_queries<D>(tiles, args);
  } else {
    take_registers<232>();
    wait_for_predecessor();
    Rows<D> rows(tiles, args);
    rows.run();
  }
#endif
}

}  // namespace

bool is_wide_prefill_shape(int32_t head_dim) {
  int device = 0, major = 0;
  check(cudaGetDevice(&device), "device");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "device");
  return major == 9 && (head_dim == 64 || head_dim == 128);
}

CUtensorMap kv_view(const bf16* base, int64_t num_elements, int32_t head_dim) {
  return block_view(base, num_elements / head_dim, head_dim);
}

void attention_prefill_wide(const AttentionArgs& args, const KvCache& cache, const AttentionPlan& plan,
                            const CUtensorMap& view, int32_t num_pieces, int32_t num_sms,
                            cudaStream_t stream) {
  const int units = units_of(args.num_heads, cache.num_kv_heads, kPackedHeads);
  const int total = num_pieces * units;
  if (total == 0) return;
  const auto launch = [&](auto* kernel, int shared_bytes) {
    allow_shared(kernel, shared_bytes);
    launch_in_chain("attention of prefill rows", kernel, dim3(std::min(total, num_sms)), dim3(kThreads),
                    shared_bytes, stream, args, cache, plan, view, units, total);
  };
  if (args.head_dim == 64) return launch(prefill_sm90_kernel<64>, Tiles<64>::kSharedBytes);
  if (args.head_dim == 128) return launch(prefill_sm90_kernel<128>, Tiles<128>::kSharedBytes);
  throw std::runtime_error("attention: no wide kernel for this head_dim");
}

}  // namespace ion::cuda
