// Gate and up on their way out of a consumer warpgroup.
//
// A thread holds of a warp's sixteen rows row lane / 4 in sums 4 i and 4 i + 1, the one eight further down in
// the two behind, columns 8 i + 2 (lane % 4) and the next.
#pragma once

#include "prompt_tile.cuh"

namespace ion::cuda {

// To y [m, n / 2] = silu(gate) * up of pairs of eight weights each.
class PromptGated {
 public:
  struct Args {
    CUtensorMap y;  // in boxes of kStoreRows x kStoreColumns
  };
  using Ring = PromptRing<kStoreRows * kStoreColumns * 2, 0>;

#if __CUDA_ARCH_FEAT_SM90_ALL
  static __device__ void share(const Args& /*of_output*/, const Ring& /*ring*/) {}

  __device__ PromptGated(const Args& of_output, const Ring& ring, int group)
      : y_(&of_output.y), lane_(threadIdx.x % kWarp), box_(ring.store_of(group)) {}

  __device__ void prepare(int /*first_row*/) {}

  // By way of shared memory, a warp's rows in boxes of 64 columns; nobody waits for them to arrive.
  template <int N>
  __device__ __forceinline__ void take(const float (&sums)[N / 2], int weight, int first_row) const {
    const int in_box = lane_ % kStoreRows;
#pragma unroll
    for (int box = 0; box < N / 2 / kStoreColumns; ++box) {
      if (lane_ == 0) store_wait_read<0>();
      __syncwarp();
#pragma unroll
      for (int j = 0; j < kStoreColumns / 8; j += 2) {
        const uint32_t chunk = (j + lane_ / kStoreRows) ^ (in_box % 8);
        const int c = box * (kStoreColumns / 8) + j;
        store_matrices(box_ + in_box * kStreamBytes + (chunk << 4), output(sums, c, false),
                       output(sums, c, true), output(sums, c + 1, false), output(sums, c + 1, true));
      }
      fence_async_shared();
      __syncwarp();
      if (lane_ != 0) continue;
      store_box(y_, weight / 2 + box * kStoreColumns, first_row, box_);
      store_commit();
    }
  }

  __device__ void finish(int /*width*/, int /*weight*/, int /*first_row*/) {}

 private:
  const CUtensorMap* y_;
  const int lane_;
  const uint32_t box_;  // of shared memory, this warp's

  // The j-th eight columns of the tile's output, a thread's two of them.
  template <int N>
  static __device__ __forceinline__ uint32_t output(const float (&sums)[N], int j, bool is_below) {
    const float* at = sums + 8 * j + 2 * is_below;
    return pack(silu(at[0]) * at[4], silu(at[1]) * at[5]);
  }
#endif
};

}  // namespace ion::cuda
