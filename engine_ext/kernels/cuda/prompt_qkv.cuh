// The q, k, v product's tiles on their way out: what rope_kv does. q goes to the matrix, k and v to the
// cache.
//
// A tile of 256 weights is whole heads. Of each, a warp puts eight rows at a time into shared memory, in
// bfloat16, and takes them out again four lanes a row: as they lie, what they are to be multiplied with would
// want more registers than there are beside the sums. The rounds stay a loop (unrolled, a product of 1,024
// rows took 4 us longer).
#pragma once

#include "attention_units.cuh"
#include "kernels.h"
#include "prompt_tile.cuh"

namespace ion::cuda {

struct PromptQkvArgs {
  RopeKvArgs rope;
  KvCache cache;
  int32_t first, count;  // rows that are rotated; q, k and v of the others go to the matrix as they are
  int32_t end_row, first_head, end_head;
};

template <int D>
class PromptQkv {
 public:
  using Args = PromptQkvArgs;
  using Ring = PromptRing<8 * D * 2, 2 * D * 4>;

#if __CUDA_ARCH_FEAT_SM90_ALL
  // By all threads of a block, before they meet: norms go to shared memory, where each tile asks for them.
  static __device__ void share(const Args& of_output, const Ring& ring) {
    const RopeKvArgs& rope = of_output.rope;
    for (int i = threadIdx.x; i < 2 * D; i += blockDim.x) {
      const float* from = i < D ? rope.q_norm : rope.k_norm;
      if (from != nullptr) store_shared(ring.extra + 4 * i, from[i % D]);
    }
  }

  __device__ PromptQkv(const Args& of_output, const Ring& ring, int group)
      : args_(of_output), lane_(threadIdx.x % kWarp), box_(ring.store_of(group)), norms_(ring.extra) {}

  // Loads where this thread's two rows are to go, and the first one's angles; nobody writes those. No load
  // but the last ones waits for another: a tile's turn comes when they are there.
  __device__ __forceinline__ void prepare(int first_row) {
    const KvCache& cache = args_.cache;
    int slots[2];
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      const int row = min(max(first_row + lane_ / 4 + 8 * below, args_.first), args_.first + args_.count - 1);
      slots[below] = args_.rope.slots[row];
      positions_[below] = args_.rope.positions[row];
    }
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      const int32_t* table =
          cache.block_tables + static_cast<int64_t>(max(slots[below], 0)) * cache.table_stride;
      places_[below] = table[positions_[below] / kKvBlock];
      if (slots[below] < 0 || !is_rotated(first_row + lane_ / 4 + 8 * below)) positions_[below] = -1;
    }
    load_turns(turns_, positions_[0]);
  }

  template <int N>
  __device__ __forceinline__ void take(const float (&sums)[N / 2], int /*weight*/, int /*first_row*/) {
#pragma unroll
    for (int i = 0; i < N / 8; ++i) {
      waiting_[i] = pack(sums[4 * i], sums[4 * i + 1]);
      waiting_[N / 8 + i] = pack(sums[4 * i + 2], sums[4 * i + 3]);
    }
#pragma unroll
    for (int i = N / 4; i < kWaiting; ++i) waiting_[i] = 0;
  }

  __device__ __forceinline__ void finish(int width, int weight, int first_row) {
    const int heads = width / D;
    float4 turns[kEights][kPiece / 2];  // the second row's
    load_turns(turns, positions_[1]);
#pragma unroll 1
    for (int round = 0; round < 2 * heads; ++round) {
      const bool is_below = round >= heads;
      if (round == heads) {
#pragma unroll
        for (int e = 0; e < kEights; ++e) {
#pragma unroll
          for (int i = 0; i < kPiece / 2; ++i) turns_[e][i] = turns[e][i];
        }
      }
      pass_on();
      const int head = args_.first_head + weight / D + (is_below ? round - heads : round);
      if (head < args_.end_head) put(head, first_row + lane_ / 4 + (is_below ? 8 : 0), is_below);
    }
  }

 private:
  // A lane has of its row eight columns of the head's lower half and the eight that are rotated with them,
  // and those 32 columns further on.
  static constexpr int kEights = D / 64, kStride = 4 * kPiece;

  const Args& args_;
  const int lane_;
  const uint32_t box_;    // [8][D] bf16 of shared memory
  const uint32_t norms_;  // [2][D] float32, of q and k
  // Of rows lane / 4 and lane / 4 + 8 of the warp's. Without a position they are not rotated.
  int positions_[2] = {-1, -1}, places_[2] = {};
  float4 turns_[kEights][kPiece / 2];  // of one of them: (cos, sin) of two neighbouring columns
  // The upper row's outputs, two of each eight columns, then the lower row's; what is next comes first.
  static constexpr int kWaiting = kPromptWeights / 4;
  uint32_t waiting_[kWaiting];

  __device__ __forceinline__ int num_heads() const {
    return args_.rope.num_heads + 2 * args_.cache.num_kv_heads;
  }
  __device__ __forceinline__ bool is_rotated(int row) const {
    return row >= args_.first && row < args_.first + args_.count;
  }
  __device__ __forceinline__ int column() const { return lane_ % 4 * kPiece; }

  __device__ __forceinline__ void load_turns(float4 (&turns)[kEights][kPiece / 2], int position) const {
    const float2* angles = args_.rope.rotations + static_cast<int64_t>(max(position, 0)) * (D / 2) + column();
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
#pragma unroll
      for (int i = 0; i < kPiece / 2; ++i) {
        turns[e][i] = *reinterpret_cast<const float4*>(angles + e * kStride + 2 * i);
      }
    }
  }

  // Where eight columns of a row lie: neither who puts them nor who takes them meets others at a bank.
  __device__ __forceinline__ uint32_t place(int row, int eight) const {
    return box_ + row * D * 2 + ((eight ^ (row % 2 * 4 + row / 2)) << 4);
  }

  // A head of eight rows to shared memory.
  __device__ __forceinline__ void pass_on() {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < D / 8; i += 4) {
      store_matrices(place(lane_ % 8, i + lane_ / 8), waiting_[i], waiting_[i + 1], waiting_[i + 2],
                     waiting_[i + 3]);
    }
#pragma unroll
    for (int i = D / 8; i < kWaiting; ++i) waiting_[i - D / 8] = waiting_[i];
    __syncwarp();
  }

  // The same from there to where it goes. `row`: this lane's.
  __device__ __forceinline__ void put(int head, int row, bool is_below) const {
    const RopeKvArgs& rope = args_.rope;
    const bool is_value = head >= rope.num_heads + args_.cache.num_kv_heads;
    const int position = is_below ? positions_[1] : positions_[0];
    float4 low[kEights], high[kEights];
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      low[e] = load_shared(place(lane_ / 4, lane_ % 4 + 4 * e));
      high[e] = load_shared(place(lane_ / 4, lane_ % 4 + 4 * e + D / 2 / kPiece));
    }
    if (!is_value || rope.bias != nullptr) change(low, high, head, is_value, position >= 0);
    bf16* to = destination(head, row, position, is_below ? places_[1] : places_[0]);
    if (to != nullptr) {
#pragma unroll
      for (int e = 0; e < kEights; ++e) {
        *reinterpret_cast<float4*>(to + column() + e * kStride) = low[e];
        *reinterpret_cast<float4*>(to + column() + e * kStride + D / 2) = high[e];
      }
    }
    if (is_value) clear_behind(to, row, position);
  }

  // Bias, the norm per head, rotation of halves; without a position a row stays.
  __device__ __forceinline__ void change(float4 (&low)[kEights], float4 (&high)[kEights], int head,
                                         bool is_value, bool is_rotated) const {
    const RopeKvArgs& rope = args_.rope;
    float x[kEights][kPiece], y[kEights][kPiece];
    const float* bias = rope.bias == nullptr ? nullptr : rope.bias + head * D + column();
    float squares = 0.0f, more = 0.0f;
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      unpack8(x[e], reinterpret_cast<const uint4&>(low[e]));
      unpack8(y[e], reinterpret_cast<const uint4&>(high[e]));
      if (bias != nullptr) {
        add8(x[e], bias + e * kStride);
        add8(y[e], bias + e * kStride + D / 2);
      }
#pragma unroll
      for (int i = 0; i < kPiece; ++i) {
        squares = fmaf(x[e][i], x[e][i], squares);
        more = fmaf(y[e][i], y[e][i], more);
      }
    }
    const bool is_query = head < rope.num_heads;
    if (!is_value && (is_query ? rope.q_norm : rope.k_norm) != nullptr) {
      const uint32_t weights = norms_ + 4 * ((is_query ? 0 : D) + column());
      const float scale = rsqrtf(quad_sum(squares + more) / D + rope.eps);
#pragma unroll
      for (int e = 0; e < kEights; ++e) {
        scale8(x[e], weights + 4 * e * kStride, scale);
        scale8(y[e], weights + 4 * (e * kStride + D / 2), scale);
      }
    }
    if (!is_value) turn(x, y);
    if (!is_rotated) return;
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      reinterpret_cast<uint4&>(low[e]) = pack8(x[e]);
      reinterpret_cast<uint4&>(high[e]) = pack8(y[e]);
    }
  }

  __device__ __forceinline__ void turn(float (&x)[kEights][kPiece], float (&y)[kEights][kPiece]) const {
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
#pragma unroll
      for (int i = 0; i < kPiece; ++i) {
        const float4& two = turns_[e][i / 2];
        const float cosine = i % 2 == 0 ? two.x : two.z, sine = i % 2 == 0 ? two.y : two.w;
        const float a = x[e][i], b = y[e][i];
        x[e][i] = fmaf(a, cosine, -__fmul_rn(b, sine));
        y[e][i] = fmaf(a, sine, __fmul_rn(b, cosine));
      }
    }
  }

  static __device__ __forceinline__ void add8(float (&to)[kPiece], const float* more) {
#pragma unroll
    for (int i = 0; i < kPiece; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(more + i);
      to[i] += four.x;
      to[i + 1] += four.y;
      to[i + 2] += four.z;
      to[i + 3] += four.w;
    }
  }

  // weights: in shared memory.
  static __device__ __forceinline__ void scale8(float (&to)[kPiece], uint32_t weights, float scale) {
#pragma unroll
    for (int i = 0; i < kPiece; i += 4) {
      const float4 four = load_shared(weights + 4 * i);
      to[i] *= scale * four.x;
      to[i + 1] *= scale * four.y;
      to[i + 2] *= scale * four.z;
      to[i + 3] *= scale * four.w;
    }
  }

  // Where a head of a row goes; null: there is no such row. `place`: of its block.
  __device__ __forceinline__ bf16* destination(int head, int row, int position, int place) const {
    const KvCache& cache = args_.cache;
    const int of_cache = head - args_.rope.num_heads;
    if (of_cache >= 0 && position >= 0) {
      const int in_layer = of_cache * kKvBlock + position % kKvBlock;
      return static_cast<bf16*>(cache.base) + place * cache.block_stride + cache.layer_offset + in_layer * D;
    }
    return row < args_.end_row ? args_.rope.qkv + (static_cast<int64_t>(row) * num_heads() + head) * D
                               : nullptr;
  }

  // Zeros behind the last value of a block that a slot's last row lies in, as rope_kv leaves them; all of
  // this lane's.
  __device__ __forceinline__ void clear_behind(bf16* to, int row, int position) const {
    const int32_t* slot = args_.rope.slots + row;
    if (position < 0 || (is_rotated(row + 1) && slot[1] == slot[0])) return;
    const int left = kKvBlock - 1 - position % kKvBlock;
#pragma unroll 1
    for (int i = lane_ % 4; i < left * D / kPiece; i += 4) {
      reinterpret_cast<uint4*>(to + D)[i] = make_uint4(0, 0, 0, 0);
    }
  }
#endif
};

}  // namespace ion::cuda
