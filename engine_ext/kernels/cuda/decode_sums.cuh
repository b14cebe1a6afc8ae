// What a warp of decode attention keeps of up to eight heads while it goes over the tokens they see: running
// maxima, sums, and sums of values, on the layout of mma.m16n8k16 with heads on the side of eight.
#pragma once

#include <cmath>
#include <cstdint>

#include "async.cuh"
#include "attention_tile.cuh"
#include "attention_units.cuh"
#include "vec.cuh"

namespace ion::cuda {

constexpr int kTileHeads = 8;

// A thread's columns are heads 2 (lane % 4) (index 0) and the next (index 1); `l` is its share of a head's
// sum: column_sum it at the end. acc[t]: two rows of output tile t, of both heads each.
template <int D>
struct DecodeSums {
  static constexpr int kTiles = D / 16;
  // Weights are relative to a maximum that may be behind by so much (as a power of two): to follow it costs
  // shuffles and a pass over all sums.
  static constexpr float kSlack = 8.0f;

  float acc[kTiles][4];
  float m[2], l[2];

  __device__ void clear() {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[t][i] = 0.0f;
    }
    m[0] = m[1] = -INFINITY;
    l[0] = l[1] = 0.0f;
  }

  // Products of sixteen tokens from `token` on, at least one of which is seen, to the weights of their
  // values: p[0] of the first eight, p[1] of the others. A thread's s[0], s[1] are token lane / 4, s[2], s[3]
  // the one eight behind. `scale` includes log2(e).
  __device__ void weigh(uint32_t (&p)[2], float (&s)[4], int token, float scale, const Sight& sight) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[i] *= scale;
    hide(s, token, sight);
    follow(s);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      s[e] = power_of_2(s[e] - m[e]);
      s[2 + e] = power_of_2(s[2 + e] - m[e]);
      l[e] += s[e] + s[2 + e];
    }
    p[0] = transposed(pack(s[0], s[1]));
    p[1] = transposed(pack(s[2], s[3]));
  }

  __device__ static void hide(float (&s)[4], int token, const Sight& sight) {
    if (token >= sight.low && token + kTileTokens - 1 <= sight.high) return;
    const int first = token + static_cast<int>(threadIdx.x) % kWarp / 4, second = first + 8;
    if (first < sight.low || first > sight.high) s[0] = s[1] = -INFINITY;
    if (second < sight.low || second > sight.high) s[2] = s[3] = -INFINITY;
  }

  // The maxima follow scores that are too far above them.
  __device__ void follow(const float (&s)[4]) {
    const bool grows = fmaxf(s[0], s[2]) > m[0] + kSlack || fmaxf(s[1], s[3]) > m[1] + kSlack;
    if (__any_sync(0xffffffffu, grows)) raise(s);
  }

  // What the head of a part is, in RowParts: the heads' maxima, then their sums.
  __device__ void write_weights(float* part, int num_heads) const {
    const int lane = threadIdx.x % kWarp, pair = 2 * (lane % 4);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float sum = column_sum(l[e]);
      if (lane >= 4 || pair + e >= num_heads) continue;
      __stcg(part + pair + e, m[e]);
      __stcg(part + num_heads + pair + e, sum);
    }
  }

 private:
  // What was summed is relative to the maxima.
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
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[t][i] *= shrink[i % 2];
    }
  }
};

// A row's only piece, by a tile that has runs of neighbouring dims: the heads' outputs, [num_heads][D].
template <int D, typename Tile>
__device__ void write_row_of_runs(const Tile& tile, bf16* dst, int num_heads) {
  const int pair = 2 * static_cast<int>(threadIdx.x % 4);
  const float factor[2] = {1.0f / column_sum(tile.l[0]), 1.0f / column_sum(tile.l[1])};
  tile.each_run([&](int e, int dim, const auto& run) {
    if (pair + e >= num_heads) return;
    store_run(dst + (pair + e) * D + dim, run, factor[e]);
  });
}

// One of several, as RowParts has it.
template <int D, typename Tile>
__device__ void write_part_of_runs(const Tile& tile, float* part, int num_heads) {
  tile.write_weights(part, num_heads);
  const int pair = 2 * static_cast<int>(threadIdx.x % 4);
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

}  // namespace ion::cuda
