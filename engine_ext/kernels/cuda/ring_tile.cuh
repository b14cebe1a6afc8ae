// Up to eight query heads against sixteen tokens that the copy engine brought to shared memory: a warp,
// mma.m16n8k16, transposed like decode_tile.cuh, operands by ldmatrix.
//
// A tile: keys, then values, each [D / 64][16 tokens][64 dims] with the 128-byte swizzle.
#pragma once

#include <cstdint>

#include "decode_sums.cuh"
#include "kernels.h"
#include "vec.cuh"

namespace ion::cuda {

// Four 8 x 8 matrices of 16-bit values; lanes 8 i .. 8 i + 7 say where the rows of the i-th are.
__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

// acc[t]: dims 16 t + lane / 4 of both heads, then the same of dims + 8.
template <int D>
struct RingTile : DecodeSums<D> {
  using Sums = DecodeSums<D>;
  using Sums::acc, Sums::l, Sums::m;
  static constexpr int kHalfBytes = kKvBlock * 128, kPlaneBytes = D / 64 * kHalfBytes;

  uint32_t q[D / 16][2];

  // heads [8][D] in shared memory; those from num_heads on count as zeros.
  __device__ void load(const bf16 (*heads)[D], int num_heads) {
    const int lane = threadIdx.x % kWarp, head = lane / 4;
    const auto* words = reinterpret_cast<const uint32_t*>(heads[head]) + lane % 4;
#pragma unroll
    for (int s = 0; s < D / 16; ++s) {
      q[s][0] = head < num_heads ? words[8 * s] : 0;
      q[s][1] = head < num_heads ? words[8 * s + 4] : 0;
    }
    Sums::clear();
  }

  // Sixteen tokens from `token` on, at least one of which is seen.
  __device__ void fold(uint32_t tile, int token, float scale, const Sight& sight) {
    const int lane = threadIdx.x % kWarp, x = lane % 8;
    const uint32_t keys = tile + (lane / 8 % 2 * 8 + x) * 128;
    const uint32_t values = tile + kPlaneBytes + (lane / 16 * 8 + x) * 128;
    float s[4] = {}, more[4] = {};  // two chains of products, since one waits for its last
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
      uint32_t k[4];
      load_matrices(k, keys + step / 4 * kHalfBytes + ((step % 4 * 2 + lane / 16) ^ x) * 16);
      mma(step % 2 == 0 ? s : more, k[0], k[1], k[2], k[3], q[step][0], q[step][1]);
    }
    uint32_t v[D / 16][4];
#pragma unroll
    for (int t = 0; t < D / 16; ++t) {
      load_matrices_transposed(v[t], values + t / 4 * kHalfBytes + ((t % 4 * 2 + lane / 8 % 2) ^ x) * 16);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) s[i] += more[i];
    uint32_t p[2];
    Sums::weigh(p, s, token, scale, sight);
#pragma unroll
    for (int t = 0; t < D / 16; ++t) mma(acc[t], v[t][0], v[t][1], v[t][2], v[t][3], p[0], p[1]);
  }

  // As of DecodeTile.
  __device__ void write_row(bf16* dst, int num_heads) const {
    const float factor[2] = {1.0f / column_sum(l[0]), 1.0f / column_sum(l[1])};
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int t = 0; t < D / 16; ++t) {
      const uint32_t low = transposed(pack(acc[t][0] * factor[0], acc[t][1] * factor[1]));
      const uint32_t high = transposed(pack(acc[t][2] * factor[0], acc[t][3] * factor[1]));
      if (lane / 4 >= num_heads) continue;
      auto* to = reinterpret_cast<uint32_t*>(dst + lane / 4 * D + 16 * t) + lane % 4;
      to[0] = low, to[4] = high;
    }
  }

  __device__ void write_part(float* part, int num_heads) const {
    Sums::write_weights(part, num_heads);
    const int lane = threadIdx.x % kWarp, pair = 2 * (lane % 4);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (pair + e >= num_heads) continue;
      float* to = part + 2 * num_heads + (pair + e) * D + lane / 4;
#pragma unroll
      for (int t = 0; t < D / 16; ++t) {
        __stcg(to + 16 * t, acc[t][e]);
        __stcg(to + 16 * t + 8, acc[t][2 + e]);
      }
    }
  }
};

}  // namespace ion::cuda
