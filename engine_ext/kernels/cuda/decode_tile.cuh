// Up to eight query heads against sixteen tokens of the paged cache: a warp, mma.m16n8k16, keys and values
// straight from global memory to registers. The products are transposed, tokens and dims on the side of
// sixteen rows, heads on the side of eight, so that few heads waste little.
//
// As in attention_tile.cuh the contracted index and the output's rows are taken in the order that lets a
// thread read sixteen bytes at a time: thread i of a quad holds dims 8 i .. 8 i + 7 of each 32, of queries
// and keys; row n of the output's tile t of a group of 64 dims is dim 8 n + 2 t, row n + 8 dim 8 n + 2 t + 1.
// Loads run ahead: a block's keys are asked for when the ones before are used up, values likewise.
#pragma once

#include <cstdint>

#include "decode_sums.cuh"
#include "vec.cuh"

namespace ion::cuda {

template <int D>
struct DecodeTile : DecodeSums<D> {
  using Sums = DecodeSums<D>;
  using Kv = bf16;
  using Sums::acc, Sums::l, Sums::m;
  static constexpr int kGroups = D / 32, kWide = D / 64;
  static constexpr bool kHasTail = D % 64 != 0;

  uint32_t q[kGroups][4];
  uint4 keys[2][kGroups];
  uint4 values[4][kWide > 0 ? kWide : 1];
  uint2 tails[4];

  // The queries of head lane / 4; null: zeros.
  __device__ void load(const bf16* head) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      uint4 piece = make_uint4(0, 0, 0, 0);
      if (head != nullptr) piece = *reinterpret_cast<const uint4*>(head + 32 * g + 8 * (lane % 4));
      q[g][0] = piece.x, q[g][1] = piece.y, q[g][2] = piece.z, q[g][3] = piece.w;
    }
    Sums::clear();
  }

  // keys: [16][D] of one head and block.
  __device__ void load_keys(const bf16* k, const Blocks<D>&) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        keys[n][g] = *reinterpret_cast<const uint4*>(k + (8 * n + lane / 4) * D + 32 * g + 8 * (lane % 4));
      }
    }
  }

  __device__ void load_values(const bf16* of_keys, const Blocks<D>& blocks) {
    const bf16* v = of_keys + blocks.v_offset;
    const int quad = threadIdx.x % kWarp / 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int h = 0; h < kWide; ++h) {
        values[i][h] = *reinterpret_cast<const uint4*>(v + token_of(i) * D + 64 * h + 8 * quad);
      }
      if constexpr (kHasTail) {
        tails[i] = *reinterpret_cast<const uint2*>(v + token_of(i) * D + 64 * kWide + 4 * quad);
      }
    }
  }

  // Of one token of the block, 0 .. 15: the loaded one is not right yet. The rows are as RowSlots leaves
  // them.
  __device__ void replace_key(const bf16* key, int token) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      if (8 * n + lane / 4 != token) continue;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        keys[n][g] = *reinterpret_cast<const uint4*>(key + 32 * g + 8 * (lane % 4));
      }
    }
  }

  __device__ void replace_value(const bf16* value, int token) {
    const int quad = threadIdx.x % kWarp / 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (token_of(i) != token) continue;
#pragma unroll
      for (int h = 0; h < kWide; ++h) {
        values[i][h] = *reinterpret_cast<const uint4*>(value + 64 * h + 8 * quad);
      }
      if constexpr (kHasTail) tails[i] = *reinterpret_cast<const uint2*>(value + 64 * kWide + 4 * quad);
    }
  }

  // Scores of the loaded keys, sixteen tokens from `token` on, as weights for `add_values`. At least one of
  // them is seen.
  __device__ void score(uint32_t (&p)[2], int token, float scale, const Sight& sight) {
    float s[4] = {}, more[4] = {};  // two chains of products, since one waits for its last
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      mma(s, keys[0][g].x, keys[1][g].x, keys[0][g].y, keys[1][g].y, q[g][0], q[g][1]);
      mma(more, keys[0][g].z, keys[1][g].z, keys[0][g].w, keys[1][g].w, q[g][2], q[g][3]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) s[i] += more[i];
    Sums::weigh(p, s, token, scale, sight);
  }

  // Nothing behind `last` has been written: zeros instead.
  __device__ void hide_values(int token, int last) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (token + token_of(i) <= last) continue;
#pragma unroll
      for (int h = 0; h < kWide; ++h) values[i][h] = make_uint4(0, 0, 0, 0);
      tails[i] = make_uint2(0, 0);
    }
  }

  __device__ void add_values(const uint32_t (&p)[2]) {
#pragma unroll
    for (int h = 0; h < kWide; ++h) {
      add(4 * h, values[0][h].x, values[1][h].x, values[2][h].x, values[3][h].x, p);
      add(4 * h + 1, values[0][h].y, values[1][h].y, values[2][h].y, values[3][h].y, p);
      add(4 * h + 2, values[0][h].z, values[1][h].z, values[2][h].z, values[3][h].z, p);
      add(4 * h + 3, values[0][h].w, values[1][h].w, values[2][h].w, values[3][h].w, p);
    }
    if constexpr (kHasTail) {
      add(4 * kWide, tails[0].x, tails[1].x, tails[2].x, tails[3].x, p);
      add(4 * kWide + 1, tails[0].y, tails[1].y, tails[2].y, tails[3].y, p);
    }
  }

  // Calls store(index 0 or 1 of the head, first dim, values) for every run of neighbouring dims: 8 of a wide
  // group, 4 of a tail.
  template <typename Store>
  __device__ void each_run(Store store) const {
    const int quad = threadIdx.x % kWarp / 4;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
#pragma unroll
      for (int h = 0; h < kWide; ++h) {
        float run[8];
#pragma unroll
        for (int t = 0; t < 4; ++t) run[2 * t] = acc[4 * h + t][e], run[2 * t + 1] = acc[4 * h + t][2 + e];
        store(e, 64 * h + 8 * quad, run);
      }
      if constexpr (kHasTail) {
        float run[4];
#pragma unroll
        for (int t = 0; t < 2; ++t)
          run[2 * t] = acc[4 * kWide + t][e], run[2 * t + 1] = acc[4 * kWide + t][2 + e];
        store(e, 64 * kWide + 4 * quad, run);
      }
    }
  }

  __device__ void write_row(bf16* dst, int num_heads) const { write_row_of_runs<D>(*this, dst, num_heads); }
  __device__ void write_part(float* part, int num_heads) const {
    write_part_of_runs<D>(*this, part, num_heads);
  }

  // The first dim of the i-th four that each_run has of a head.
  __device__ static int dim_of(int i) {
    const int quad = static_cast<int>(threadIdx.x) % kWarp / 4, group = i / 2;
    return group < kWide ? 64 * group + 8 * quad + i % 2 * 4 : 64 * group + 4 * quad;
  }

 private:
  __device__ static int token_of(int i) { return 2 * static_cast<int>(threadIdx.x % 4) + i % 2 + i / 2 * 8; }

  // Two dims of four tokens: tile t's rows of this thread.
  __device__ void add(int t, uint32_t x0, uint32_t x1, uint32_t x2, uint32_t x3, const uint32_t (&p)[2]) {
    mma(acc[t], __byte_perm(x0, x1, 0x5410), __byte_perm(x0, x1, 0x7632), __byte_perm(x2, x3, 0x5410),
        __byte_perm(x2, x3, 0x7632), p[0], p[1]);
  }
};

}  // namespace ion::cuda
