// What attention's kernels share: which heads a block has, where a head's cache lies, what a position sees.
#pragma once

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

inline int units_of(int32_t num_heads, int32_t num_kv_heads, int most) {
  return num_kv_heads * ((num_heads / num_kv_heads + most - 1) / most);
}

}  // namespace ion::cuda
