// Sixteen query rows against sixteen tokens of the paged cache, on mma.m16n8k16 (sm_80 and newer), straight
// from global memory to registers: a warp, no shared memory.
//
// The order of the contracted index of a product is free, so each thread takes eight neighbouring dims of a
// token (16 bytes) where the instruction's own layout would take pairs: thread i of a quad holds dims 8 i ..
// 8 i + 7 of each group of 32, of queries and keys alike. Output columns are free in the same way: column n
// of tile t of a group of 64 dims is dim 8 n + t. Fragment layouts: PTX ISA, "Matrix fragments for
// mma.m16n8k16".
#pragma once

#include <cmath>
#include <cstdint>

#include "vec.cuh"

namespace ion::cuda {

constexpr int kTileRows = 16;    // query rows of a warp
constexpr int kTileTokens = 16;  // a KV block

// Which tokens a query row sees: low <= token <= high.
struct Sight {
  int low, high;
};

__device__ __forceinline__ void mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                    uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// A warp's sixteen rows of queries, and what attention over the tokens so far gave them. A thread has rows
// lane / 4 (index 0) and lane / 4 + 8 (index 1). `l` is this thread's share of a row's sum: quad_sum it at
// the end.
template <int D>
struct AttentionTile {
  static constexpr int kGroups = D / 32;         // of 32 dims, for the scores
  static constexpr int kWide = D / 64;           // of 64 dims, for the output
  static constexpr bool kHasTail = D % 64 != 0;  // and one of 32
  static constexpr int kColumns = D / 8;         // output tiles

  uint32_t q[kGroups][8];
  float acc[kColumns][4];
  float m[2], l[2];

  // Row pointers may be null: zeros.
  __device__ void load(const bf16* row0, const bf16* row1) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int dim = 32 * g + 8 * (lane % 4);
      const uint4 none = make_uint4(0, 0, 0, 0);
      const uint4 a = row0 ? *reinterpret_cast<const uint4*>(row0 + dim) : none;
      const uint4 b = row1 ? *reinterpret_cast<const uint4*>(row1 + dim) : none;
      q[g][0] = a.x, q[g][1] = b.x, q[g][2] = a.y, q[g][3] = b.y;
      q[g][4] = a.z, q[g][5] = b.z, q[g][6] = a.w, q[g][7] = b.w;
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[c][i] = 0.0f;
    }
    m[0] = m[1] = -INFINITY;
    l[0] = l[1] = 0.0f;
  }

  // k, v: [16][D] of one head and block, whose first token is `token`; nothing after `last` has been written.
  // `scale` includes log2(e). kMasked false: every row sees every token.
  template <bool kMasked>
  __device__ void fold(const bf16* k, const bf16* v, int token, int last, float scale,
                       const Sight (&sight)[2]) {
    float s[2][4];
    scores(s, k);
    if constexpr (kMasked) hide(s, token, sight);
    uint32_t p[4];
    weigh(p, s, scale);
    const int quad = threadIdx.x % kWarp / 4, pair = 2 * (threadIdx.x % 4);
    const int tokens[4] = {pair, pair + 1, pair + 8, pair + 9};
#pragma unroll
    for (int h = 0; h < kWide; ++h) {
      uint32_t x[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint4 piece = *reinterpret_cast<const uint4*>(v + tokens[i] * D + 64 * h + 8 * quad);
        if (kMasked && token + tokens[i] > last) piece = make_uint4(0, 0, 0, 0);
        x[i][0] = piece.x, x[i][1] = piece.y, x[i][2] = piece.z, x[i][3] = piece.w;
      }
      add_columns<4>(8 * h, x, p);
    }
    if constexpr (kHasTail) {
      uint32_t x[4][2];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint2 piece = *reinterpret_cast<const uint2*>(v + tokens[i] * D + 64 * kWide + 4 * quad);
        if (kMasked && token + tokens[i] > last) piece = make_uint2(0, 0);
        x[i][0] = piece.x, x[i][1] = piece.y;
      }
      add_columns<2>(8 * kWide, x, p);
    }
  }

  // Calls store(row index 0 or 1, first dim, values) for every run of neighbouring dims: 8 of a wide group, 4
  // of a tail.
  template <typename Store>
  __device__ void each_run(Store store) const {
    const int pair = 2 * (threadIdx.x % 4);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
#pragma unroll
        for (int h = 0; h < kWide; ++h) {
          float run[8];
#pragma unroll
          for (int t = 0; t < 8; ++t) run[t] = acc[8 * h + t][2 * r + e];
          store(r, 64 * h + 8 * (pair + e), run);
        }
        if constexpr (kHasTail) {
          float run[4];
#pragma unroll
          for (int t = 0; t < 4; ++t) run[t] = acc[8 * kWide + t][2 * r + e];
          store(r, 64 * kWide + 4 * (pair + e), run);
        }
      }
    }
  }

 private:
  __device__ void scores(float (&s)[2][4], const bf16* k) const {
    const int lane = threadIdx.x % kWarp;
    uint4 keys[2][kGroups];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        keys[n][g] = *reinterpret_cast<const uint4*>(k + (8 * n + lane / 4) * D + 32 * g + 8 * (lane % 4));
      }
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = 0.0f;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        mma(s[n], q[g][0], q[g][1], q[g][2], q[g][3], keys[n][g].x, keys[n][g].y);
        mma(s[n], q[g][4], q[g][5], q[g][6], q[g][7], keys[n][g].z, keys[n][g].w);
      }
    }
  }

  __device__ static void hide(float (&s)[2][4], int token, const Sight (&sight)[2]) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = token + 8 * n + 2 * static_cast<int>(threadIdx.x % 4) + i % 2;
        const Sight& of = sight[i / 2];
        if (at < of.low || at > of.high) s[n][i] = -INFINITY;
      }
    }
  }

  // Scores to weights relative to the rows' new maxima; what was summed before is scaled to them.
  __device__ void weigh(uint32_t (&p)[4], float (&s)[2][4], float scale) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float largest =
          quad_max(fmaxf(fmaxf(s[0][2 * r], s[0][2 * r + 1]), fmaxf(s[1][2 * r], s[1][2 * r + 1]))) * scale;
      const float now = fmaxf(m[r], largest);
      const float base = now == -INFINITY ? 0.0f : now;
      const float shrink = exp2f(m[r] - base);
      m[r] = now;
      l[r] *= shrink;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float first = exp2f(fmaf(s[n][2 * r], scale, -base));
        const float second = exp2f(fmaf(s[n][2 * r + 1], scale, -base));
        l[r] += first + second;
        p[2 * n + r] = pack(first, second);
      }
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        acc[c][2 * r] *= shrink;
        acc[c][2 * r + 1] *= shrink;
      }
    }
  }

  // x[i][w]: dims 2 w, 2 w + 1 of this thread's run, of token i; tiles 2 w and 2 w + 1 behind `first`.
  template <int kWords>
  __device__ void add_columns(int first, const uint32_t (&x)[4][kWords], const uint32_t (&p)[4]) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      mma(acc[first + 2 * w], p[0], p[1], p[2], p[3], __byte_perm(x[0][w], x[1][w], 0x5410),
          __byte_perm(x[2][w], x[3][w], 0x5410));
      mma(acc[first + 2 * w + 1], p[0], p[1], p[2], p[3], __byte_perm(x[0][w], x[1][w], 0x7632),
          __byte_perm(x[2][w], x[3][w], 0x7632));
    }
  }
};

}  // namespace ion::cuda
