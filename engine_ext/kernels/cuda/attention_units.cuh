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

template <int D>
struct Blocks {
  const bf16* layer;
  const int32_t* table;
  int64_t block_stride, v_offset, head_offset;

  __device__ Blocks(const KvCache& cache, int slot, int kv_head)
      : layer(cache.base + cache.layer_offset),
        table(cache.block_tables + static_cast<int64_t>(slot) * cache.table_stride),
        block_stride(cache.block_stride),
        v_offset(static_cast<int64_t>(cache.num_kv_heads) * kKvBlock * D),
        head_offset(static_cast<int64_t>(kv_head) * kKvBlock * D) {}

  __device__ const bf16* keys(int block) const { return keys_at(table[block]); }
  // Of a block of the pool.
  __device__ const bf16* keys_at(int place) const { return layer + place * block_stride + head_offset; }
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

inline int units_of(int32_t num_heads, int32_t num_kv_heads, int most) {
  return num_kv_heads * ((num_heads / num_kv_heads + most - 1) / most);
}

}  // namespace ion::cuda
