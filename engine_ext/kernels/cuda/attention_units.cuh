// What attention's kernels share: which heads a block has, where a head's cache lies, what a position sees.
#pragma once

#include <stdexcept>
#include <type_traits>

#include "kernels.h"
#include "vec.cuh"

namespace ion::cuda {

[[maybe_unused]] constexpr float kLog2E = 1.4426950408889634f;

// The heads of a KV head, cut into units of at most `most`.
struct Unit {
  int kv_head, first_head, num_heads;

  __device__ Unit(const AttentionArgs& args, const KvCache& cache, int most, int unit) {
    const int group = args.num_heads / cache.num_kv_heads, cuts = (group + most - 1) / most,
              cut = unit % cuts;
    kv_head = unit / cuts;
    first_head = kv_head * group + cut * most;
    num_heads = min(most, group - cut * most);
  }
};

// Where a head's part of the cache lies; Kv: bf16, or uint8_t for codes.
template <int D, typename Kv = bf16>
struct Blocks {
  const Kv* layer;
  const int32_t* table;
  int64_t block_stride;
  int32_t v_offset, head_offset;
  int32_t to_scales;    // bytes from a block's keys to the floats that they are to be multiplied with
  int32_t v_of_scales;  // from those to the values'

  __device__ Blocks(const KvCache& cache, int slot, int kv_head)
      : layer(static_cast<const Kv*>(cache.base) + cache.layer_offset),
        table(cache.block_tables + static_cast<int64_t>(slot) * cache.table_stride),
        block_stride(cache.block_stride),
        v_offset(cache.num_kv_heads * kKvBlock * D),
        head_offset(kv_head * kKvBlock * D),
        to_scales(2 * v_offset - head_offset + kv_head * kKvBlock * static_cast<int32_t>(sizeof(float))),
        v_of_scales(cache.num_kv_heads * kKvBlock) {}

  __device__ const Kv* keys(int block) const { return keys_at(table[block]); }
  // Of a block of the pool.
  __device__ const Kv* keys_at(int place) const { return layer + place * block_stride + head_offset; }
  // [16] of these keys, where they are codes; the values' come v_of_scales behind.
  __device__ const float* scales_of(const Kv* keys) const {
    return reinterpret_cast<const float*>(keys + to_scales);
  }
};

__device__ __forceinline__ int first_seen(int position, int window) {
  return window > 0 ? max(0, position - window + 1) : 0;
}

// Eight or four neighbouring values, times `factor`.
template <int kSize>
__device__ __forceinline__ void store_run(bf16* at, const float (&run)[kSize], float factor) {
  uint32_t words[kSize / 2];
#pragma unroll
  for (int i = 0; i < kSize / 2; ++i) words[i] = pack(run[2 * i] * factor, run[2 * i + 1] * factor);
  if constexpr (kSize == 8) {
    *reinterpret_cast<uint4*>(at) = make_uint4(words[0], words[1], words[2], words[3]);
  } else {
    *reinterpret_cast<uint2*>(at) = make_uint2(words[0], words[1]);
  }
}

// By one thread, all that its piece left being written: whether the row's other pieces have come before. Then
// the counter is 0 again.
__device__ __forceinline__ bool is_last_to_arrive(uint32_t* arrived, int num_parts) {
  const bool is_last = atomicAdd(arrived, 1u) == static_cast<uint32_t>(num_parts - 1);
  if (is_last) *arrived = 0;
  __threadfence();
  return is_last;
}

// To the sums of kRows rows of a head's dims, by a warp, what `count` parts found, in their order, times what
// lane p says that part p weighs. kParts of them are on their way together: they come from L2, and one after
// the other would take longer than what they are the parts of. find(values, part, row) fetches some.
template <int kParts, int kRows, int kDims, typename Find>
__device__ __forceinline__ void add_parts(float (&acc)[kRows][kDims], const float (&weight)[kRows], int count,
                                          Find find) {
#pragma unroll 1
  for (int first = 0; first < count; first += kParts) {
    float found[kParts][kRows][kDims] = {};
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (first + p < count) find(found[p][r], first + p, r);
      }
    }
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float of_part = __shfl_sync(0xffffffffu, weight[r], (first + p) % kWarp);
#pragma unroll
        for (int i = 0; i < kDims; ++i) acc[r][i] = fmaf(found[p][r][i], of_part, acc[r][i]);
      }
    }
  }
}

// Calls launch(the size, a compile-time constant).
template <typename F>
void for_head_dim(int32_t head_dim, F launch) {
  switch (head_dim) {
    case 32:
      return launch(std::integral_constant<int, 32>{});
    case 64:
      return launch(std::integral_constant<int, 64>{});
    case 96:
      return launch(std::integral_constant<int, 96>{});
    case 128:
      return launch(std::integral_constant<int, 128>{});
    default:
      throw std::runtime_error("attention: no kernel for this head_dim");
  }
}

// The same where no other sizes are.
template <typename F>
void for_wide_head_dim(int32_t head_dim, F launch) {
  if (head_dim == 64) return launch(std::integral_constant<int, 64>{});
  if (head_dim == 128) return launch(std::integral_constant<int, 128>{});
  throw std::runtime_error("attention: no such kernel for a head_dim other than 64 and 128");
}

// The same for what a cache of Kv may have.
template <typename Kv, typename F>
void for_dim_of(int32_t head_dim, F launch) {
  if constexpr (std::is_same_v<Kv, bf16>) {
    for_head_dim(head_dim, launch);
  } else {
    for_wide_head_dim(head_dim, launch);
  }
}

// Calls launch(the size, a value of the cache's type).
template <typename F>
void for_cache(int32_t head_dim, bool is_e4m3, F launch) {
  if (is_e4m3) return for_dim_of<uint8_t>(head_dim, [&](auto dim) { launch(dim, uint8_t{}); });
  for_dim_of<bf16>(head_dim, [&](auto dim) { launch(dim, bf16{}); });
}

inline int units_of(int32_t num_heads, int32_t num_kv_heads, int most) {
  return num_kv_heads * ((num_heads / num_kv_heads + most - 1) / most);
}

}  // namespace ion::cuda
