// One head of one row between the q, k, v product and attention, a warp for it: bias, the norm per head,
// rotation of halves (arXiv:2104.09864).
#pragma once

#include "kernels.h"
#include "vec.cuh"

namespace ion::cuda {

// A lane holds pairs (i, i + D / 2) for i = lane, lane + 32, ...; lanes past the last pair hold none.
template <int D>
struct RopedHead {
  static constexpr int kHalf = D / 2, kPairs = (kHalf + kWarp - 1) / kWarp;

  float low[kPairs], high[kPairs];

  // `head` counts q heads, then k heads, then v heads; only q and k are normed and rotated.
  __device__ RopedHead(const RopeKvArgs& args, int32_t num_kv_heads, int64_t row, int head, int position) {
    const int heads = args.num_heads + 2 * num_kv_heads, lane = threadIdx.x % kWarp;
    const bf16* from = args.qkv + (row * heads + head) * D;
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      const int i = p * kWarp + lane;
      low[p] = high[p] = 0.0f;
      if (i >= kHalf) continue;
      low[p] = __bfloat162float(from[i]);
      high[p] = __bfloat162float(from[i + kHalf]);
      if (args.bias == nullptr) continue;
      low[p] += args.bias[head * D + i];
      high[p] += args.bias[head * D + i + kHalf];
    }
    if (head >= args.num_heads + num_kv_heads) return;
    const float* norm = head < args.num_heads ? args.q_norm : args.k_norm;
    if (norm != nullptr) {
      float squares = 0.0f;
#pragma unroll
      for (int p = 0; p < kPairs; ++p) squares += low[p] * low[p] + high[p] * high[p];
      const float scale = rsqrtf(warp_sum(squares) / D + args.eps);
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        const int i = p * kWarp + lane;
        if (i >= kHalf) continue;
        low[p] *= scale * norm[i];
        high[p] *= scale * norm[i + kHalf];
      }
    }
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      const int i = p * kWarp + lane;
      if (i >= kHalf) continue;
      const float2 turn = args.rotations[static_cast<int64_t>(position) * kHalf + i];
      const float x = low[p], y = high[p];
      low[p] = x * turn.x - y * turn.y;
      high[p] = x * turn.y + y * turn.x;
    }
  }

  __device__ void store(bf16* to) const {
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      const int i = p * kWarp + static_cast<int>(threadIdx.x) % kWarp;
      if (i >= kHalf) continue;
      to[i] = __float2bfloat16(low[p]);
      to[i + kHalf] = __float2bfloat16(high[p]);
    }
  }
};

// Where the cache keeps a position's K (plane 0) or V (plane 1) of a head.
template <int D>
__device__ __forceinline__ bf16* cache_row(const KvCache& cache, int slot, int plane, int kv_head,
                                           int position) {
  const int64_t block =
      cache.block_tables[static_cast<int64_t>(slot) * cache.table_stride + position / kKvBlock];
  return cache.base + block * cache.block_stride + cache.layer_offset +
         (static_cast<int64_t>(plane * cache.num_kv_heads + kv_head) * kKvBlock + position % kKvBlock) * D;
}

}  // namespace ion::cuda
