// Up to eight query heads against sixteen tokens that the copy engine brought to shared memory: a warp,
// mma.m16n8k16, transposed like decode_tile.cuh, operands by ldmatrix.
//
// A tile: keys, then values, each [D / 64][16 tokens][64 dims] with the 128-byte swizzle.
#pragma once

#include <cmath>
#include <cstdint>

#include "attention_tile.cuh"
#include "decode_tile.cuh"
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

// A thread's columns are heads 2 (lane % 4) (index 0) and the next (index 1); `l` is its share of a head's
// sum: column_sum it at the end. acc[t]: dims 16 t + lane / 4 of both, then the same of dims + 8.
template <int D>
struct RingTile {
  static constexpr int kHalfBytes = kKvBlock * 128, kPlaneBytes = D / 64 * kHalfBytes;

  uint32_t q[D / 16][2];
  float acc[D / 16][4];
  float m[2], l[2];

  // heads [8][D] in shared memory; those from num_heads on count as zeros.
  __device__ void load(const bf16 (*heads)[D], int num_heads) {
    const int lane = threadIdx.x % kWarp, head = lane / 4;
    const auto* words = reinterpret_cast<const uint32_t*>(heads[head]) + lane % 4;
#pragma unroll
    for (int s = 0; s < D / 16; ++s) {
      q[s][0] = head < num_heads ? words[8 * s] : 0;
      q[s][1] = head < num_heads ? words[8 * s + 4] : 0;
    }
#pragma unroll
    for (int t = 0; t < D / 16; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[t][i] = 0.0f;
    }
    m[0] = m[1] = -INFINITY;
    l[0] = l[1] = 0.0f;
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
    for (int i = 0; i < 4; ++i) s[i] = (s[i] + more[i]) * scale;
    if (token < sight.low || token + kKvBlock - 1 > sight.high) {
      const int first = token + lane / 4, second = first + 8;
      if (first < sight.low || first > sight.high) s[0] = s[1] = -INFINITY;
      if (second < sight.low || second > sight.high) s[2] = s[3] = -INFINITY;
    }
    const bool grows = fmaxf(s[0], s[2]) > m[0] + kSlack || fmaxf(s[1], s[3]) > m[1] + kSlack;
    if (__any_sync(0xffffffffu, grows)) raise(s);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      s[e] = power_of_2(s[e] - m[e]);
      s[2 + e] = power_of_2(s[2 + e] - m[e]);
      l[e] += s[e] + s[2 + e];
    }
    const uint32_t low = transposed(pack(s[0], s[1])), high = transposed(pack(s[2], s[3]));
#pragma unroll
    for (int t = 0; t < D / 16; ++t) mma(acc[t], v[t][0], v[t][1], v[t][2], v[t][3], low, high);
  }

 private:
  static constexpr float kSlack = DecodeTile<D>::kSlack;

  // The maxima follow the scores, and what was summed is relative to them.
  __device__ void raise(const float (&s)[4]) {
    float shrink[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float now = fmaxf(m[e], column_max(fmaxf(s[e], s[2 + e])));
      shrink[e] = power_of_2(m[e] - now);
      l[e] *= shrink[e];
      m[e] = now;
    }
#pragma unroll
    for (int t = 0; t < D / 16; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[t][i] *= shrink[i % 2];
    }
  }
};

}  // namespace ion::cuda
