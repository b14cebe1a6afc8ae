// Up to eight query heads against sixteen tokens of a paged cache of e4m3 codes: a warp, mma.m16n8k16 of
// halves, keys and values straight from global memory to registers. As in decode_tile.cuh the products are
// transposed and loads run ahead; a half holds every code, and queries in halves lose nothing.
//
// The contracted index and the output's rows are taken in the order that lets a thread read sixteen codes at
// a time: thread i of a quad holds dims 16 i .. 16 i + 15 of each 64, of queries and keys; of values quad q
// holds D / 8 dims from q D / 8 on, and row n of the output's tiles 2 w and 2 w + 1 is its dim 4 w and 4 w +
// 2, row n + 8 the one behind.
//
// A token's codes are to be multiplied with its scales. A key's goes into the score. A value's joins its
// weight, as a power of two beside the score's, so that the weights stay within what a half can hold: the
// maxima are those of weighted scales, and the sum of weights is divided by what was put into them.
#pragma once

#include <cstdint>
#include <type_traits>

#include "attention_units.cuh"
#include "decode_sums.cuh"
#include "e4m3.cuh"
#include "vec.cuh"

namespace ion::cuda {

__device__ __forceinline__ void mma_halves(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                           uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t pack_halves(float lower, float upper) {
  uint32_t out;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(upper), "f"(lower));
  return out;
}

template <int D>
struct CodeTile : DecodeSums<D> {
  using Sums = DecodeSums<D>;
  using Kv = uint8_t;
  using Sums::acc, Sums::l, Sums::m;
  static constexpr int kGroups = D / 64;  // of 64 dims
  static constexpr int kWords = D / 32;   // of a token's values, four codes each
  static_assert(D % 64 == 0);
  using Run = std::conditional_t<kWords == 4, uint4, uint2>;

  uint32_t q[kGroups][8];
  uint4 keys[2][kGroups];
  Run values[4];
  float key_scales[2], value_scales[2];  // of tokens lane / 4 and the one eight behind

  // The queries of head lane / 4; null: zeros.
  __device__ void load(const bf16* head) {
    const int first = static_cast<int>(threadIdx.x) % 4 * 16;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint4 piece = make_uint4(0, 0, 0, 0);
        if (head != nullptr) piece = *reinterpret_cast<const uint4*>(head + 64 * g + first + 8 * i);
        const uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const float2 two = unpack(words[w]);
          q[g][4 * i + w] = pack_halves(two.x, two.y);
        }
      }
    }
    Sums::clear();
  }

  // keys: [16][D] of one head and block.
  __device__ void load_keys(const uint8_t* k, const Blocks<D, uint8_t>& blocks) {
    const int lane = threadIdx.x % kWarp;
    const float* scales = blocks.scales_of(k) + lane / 4;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        keys[n][g] = *reinterpret_cast<const uint4*>(k + (8 * n + lane / 4) * D + 64 * g + 16 * (lane % 4));
      }
      key_scales[n] = scales[8 * n];
      value_scales[n] = scales[blocks.v_of_scales + 8 * n];  // the scores want them
    }
  }

  __device__ void load_values(const uint8_t* of_keys, const Blocks<D, uint8_t>& blocks) {
    const int quad = static_cast<int>(threadIdx.x) % kWarp / 4;
    const uint8_t* v = of_keys + blocks.v_offset;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[i] = *reinterpret_cast<const Run*>(v + token_of(i) * D + 4 * kWords * quad);
    }
  }

  // Of one token of the block, 0 .. 15: the loaded one is not right yet. The rows are as RowSlots leaves
  // them, codes and behind them their scale.
  __device__ void replace_key(const bf16* row, int token) {
    const auto* codes = reinterpret_cast<const uint8_t*>(row);
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      if (8 * n + lane / 4 != token) continue;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        keys[n][g] = *reinterpret_cast<const uint4*>(codes + 64 * g + 16 * (lane % 4));
      }
      key_scales[n] = *reinterpret_cast<const float*>(codes + D);
    }
  }

  __device__ void replace_value(const bf16* row, int token) {
    const auto* codes = reinterpret_cast<const uint8_t*>(row);
    const int quad = static_cast<int>(threadIdx.x) % kWarp / 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (token_of(i) == token) values[i] = *reinterpret_cast<const Run*>(codes + 4 * kWords * quad);
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      if (8 * n + quad == token) value_scales[n] = *reinterpret_cast<const float*>(codes + D);
    }
  }

  // Scores of the loaded keys, sixteen tokens from `token` on, as weights for `add_values`. At least one of
  // them is seen.
  __device__ void score(uint32_t (&p)[2], int token, float scale, const Sight& sight) {
    float s[4] = {}, more[4] = {};  // two chains of products, since one waits for its last
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const uint4 &first = keys[0][g], &second = keys[1][g];
      multiply(s, first.x, second.x, q[g][0], q[g][1]);
      multiply(more, first.y, second.y, q[g][2], q[g][3]);
      multiply(s, first.z, second.z, q[g][4], q[g][5]);
      multiply(more, first.w, second.w, q[g][6], q[g][7]);
    }
    float inverse[2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float of_key = scale * key_scales[n], of_value = __log2f(value_scales[n]);
      const bool is_written = token + 8 * n + static_cast<int>(threadIdx.x) % kWarp / 4 <= sight.high;
      inverse[n] = is_written ? __fdividef(1.0f, value_scales[n]) : 0.0f;
#pragma unroll
      for (int e = 0; e < 2; ++e) s[2 * n + e] = fmaf(s[2 * n + e] + more[2 * n + e], of_key, of_value);
    }
    Sums::hide(s, token, sight);
    Sums::follow(s);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      s[e] = power_of_2(s[e] - m[e]);
      s[2 + e] = power_of_2(s[2 + e] - m[e]);
      l[e] = fmaf(s[e], inverse[0], fmaf(s[2 + e], inverse[1], l[e]));
    }
    p[0] = transposed(pack_halves(s[0], s[1]));
    p[1] = transposed(pack_halves(s[2], s[3]));
  }

  // Nothing behind `last` has been written: zeros instead.
  __device__ void hide_values(int token, int last) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (token + token_of(i) > last) values[i] = Run{};
    }
  }

  __device__ void add_values(const uint32_t (&p)[2]) {
    const auto* first = reinterpret_cast<const uint32_t*>(&values[0]);
    const auto* second = reinterpret_cast<const uint32_t*>(&values[1]);
    const auto* third = reinterpret_cast<const uint32_t*>(&values[2]);
    const auto* fourth = reinterpret_cast<const uint32_t*>(&values[3]);
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      add(2 * w, __byte_perm(first[w], second[w], 0x5140), __byte_perm(third[w], fourth[w], 0x5140), p);
      add(2 * w + 1, __byte_perm(first[w], second[w], 0x7362), __byte_perm(third[w], fourth[w], 0x7362), p);
    }
  }

  // Calls store(index 0 or 1 of the head, first dim, values) for every run of eight neighbouring dims.
  template <typename Store>
  __device__ void each_run(Store store) const {
    const int quad = static_cast<int>(threadIdx.x) % kWarp / 4;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
#pragma unroll
      for (int r = 0; r < kWords / 2; ++r) {
        float run[8];
#pragma unroll
        for (int t = 0; t < 4; ++t) run[2 * t] = acc[4 * r + t][e], run[2 * t + 1] = acc[4 * r + t][2 + e];
        store(e, 4 * kWords * quad + 8 * r, run);
      }
    }
  }

  __device__ void write_row(bf16* dst, int num_heads) const { write_row_of_runs<D>(*this, dst, num_heads); }
  __device__ void write_part(float* part, int num_heads) const {
    write_part_of_runs<D>(*this, part, num_heads);
  }

  // The first dim of the i-th four that each_run has of a head.
  __device__ static int dim_of(int i) {
    return 4 * kWords * (static_cast<int>(threadIdx.x) % kWarp / 4) + 4 * i;
  }

 private:
  __device__ static int token_of(int i) { return 2 * static_cast<int>(threadIdx.x % 4) + i % 2 + i / 2 * 8; }

  // Four dims of two tokens with those of the heads.
  __device__ static void multiply(float (&d)[4], uint32_t first, uint32_t second, uint32_t low,
                                  uint32_t high) {
    mma_halves(d, decode_low(first), decode_low(second), decode_high(first), decode_high(second), low, high);
  }

  // Two dims of four tokens, two tokens a word, a dim in its lower half: tile t's rows of this thread.
  __device__ void add(int t, uint32_t x01, uint32_t x23, const uint32_t (&p)[2]) {
    mma_halves(acc[t], decode_low(x01), decode_high(x01), decode_low(x23), decode_high(x23), p[0], p[1]);
  }
};

}  // namespace ion::cuda
