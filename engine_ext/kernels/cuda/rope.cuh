// One head of one row between the q, k, v product and attention, a warp for it: bias, the norm per head,
// rotation of halves (arXiv:2104.09864), codes where the cache holds those. Several kernels do it and must
// find the same bits: where a compiler might fuse either of two products with a sum, it is said which.
#pragma once

#include <type_traits>

#include "e4m3.cuh"
#include "kernels.h"
#include "vec.cuh"

namespace ion::cuda {

// Neighbouring values that a lane holds, one or two.
template <int kCount>
struct Lane {
  float at[kCount];

  __device__ static Lane load(const float* from) {
    if constexpr (kCount == 2) {
      const float2 two = *reinterpret_cast<const float2*>(from);
      return {{two.x, two.y}};
    } else {
      return {{*from}};
    }
  }
};

// The same in bf16, as they come and go.
template <int kCount>
struct PackedLane {
  using Bits = std::conditional_t<kCount == 2, uint32_t, bf16>;
  Bits bits{};

  __device__ static PackedLane load(const bf16* from) { return {*reinterpret_cast<const Bits*>(from)}; }
  __device__ void store(bf16* to) const { *reinterpret_cast<Bits*>(to) = bits; }

  __device__ Lane<kCount> unpacked() const {
    if constexpr (kCount == 2) {
      const float2 two = unpack(bits);
      return {{two.x, two.y}};
    } else {
      return {{__bfloat162float(bits)}};
    }
  }
  __device__ static PackedLane packed(const Lane<kCount>& values) {
    if constexpr (kCount == 2) {
      return {pack(values.at[0], values.at[1])};
    } else {
      return {__float2bfloat16(values.at[0])};
    }
  }
};

// The angles of one position, as a lane needs them.
template <int D>
struct Rotation {
  static constexpr int kHalf = D / 2, kPairs = (kHalf + kWarp - 1) / kWarp;
  float2 turn[kPairs] = {};

  __device__ Rotation(const float2* rotations, int position) {
    const int i = static_cast<int>(threadIdx.x) % kWarp * kPairs;
    if (i >= kHalf) return;
#pragma unroll
    for (int p = 0; p < kPairs; ++p) turn[p] = rotations[static_cast<int64_t>(position) * kHalf + i + p];
  }
};

// The least of a row's largest value that its scale follows: below, codes lose digits.
constexpr float kSmallestKv = kLargestCode / (1 << 24);

// A lane holds pairs (i, i + D / 2) for neighbouring i; lanes past the last pair hold none. Loading is apart
// from rotating: who has several heads has them all on their way at once.
template <int D>
class RopedHead {
  static constexpr int kHalf = Rotation<D>::kHalf, kPairs = Rotation<D>::kPairs;
  static_assert(kHalf % kPairs == 0);
  using Values = Lane<kPairs>;
  using Packed = PackedLane<kPairs>;

 public:
  RopedHead() = default;

  __device__ explicit RopedHead(const bf16* head) {
    const int i = first();
    if (i >= kHalf) return;
    low_ = Packed::load(head + i);
    high_ = Packed::load(head + i + kHalf);
  }

  // `head` counts q heads, then k heads, then v heads; only q and k are normed and rotated. bias: [D] or
  // null.
  __device__ void rotate(const RopeKvArgs& args, int32_t num_kv_heads, int head, const float* bias,
                         const Rotation<D>& by) {
    const bool is_value = head >= args.num_heads + num_kv_heads;
    if (is_value && bias == nullptr) return;
    Values low = low_.unpacked(), high = high_.unpacked();
    const int i = first();
    if (bias != nullptr && i < kHalf) {
      add(low, Values::load(bias + i));
      add(high, Values::load(bias + i + kHalf));
    }
    if (!is_value) {
      const float* weights = head < args.num_heads ? args.q_norm : args.k_norm;
      if (weights != nullptr) norm(low, high, weights, args.eps);
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        const float x = low.at[p], y = high.at[p];
        low.at[p] = fmaf(x, by.turn[p].x, -__fmul_rn(y, by.turn[p].y));
        high.at[p] = fmaf(x, by.turn[p].y, __fmul_rn(y, by.turn[p].x));
      }
    }
    low_ = Packed::packed(low);
    high_ = Packed::packed(high);
  }

  __device__ void store(bf16* to) const {
    const int i = first();
    if (i >= kHalf) return;
    low_.store(to + i);
    high_.store(to + i + kHalf);
  }

  // What a cache of codes keeps of it, to one place or two; its scale, in every lane.
  __device__ float store_codes(uint8_t* to, uint8_t* and_to = nullptr) const {
    const Values low = low_.unpacked(), high = high_.unpacked();
    float most = kSmallestKv;
#pragma unroll
    for (int p = 0; p < kPairs; ++p) most = fmaxf(most, fmaxf(fabsf(low.at[p]), fabsf(high.at[p])));
    const float scale = warp_max(most) / kLargestCode, inverse = 1.0f / scale;
    const int i = first();
    if (i >= kHalf) return scale;
    for (uint8_t* place : {to, and_to}) {
      if (place == nullptr) continue;
      encode(place + i, low, inverse);
      encode(place + i + kHalf, high, inverse);
    }
    return scale;
  }

 private:
  Packed low_{}, high_{};

  __device__ static int first() { return static_cast<int>(threadIdx.x) % kWarp * kPairs; }

  __device__ static void add(Values& to, const Values& more) {
#pragma unroll
    for (int p = 0; p < kPairs; ++p) to.at[p] += more.at[p];
  }

  __device__ static void encode(uint8_t* to, const Values& values, float inverse) {
    const uint32_t codes = encode2(values.at[0] * inverse, values.at[kPairs - 1] * inverse);
    if constexpr (kPairs == 2) {
      *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(codes);
    } else {
      *to = static_cast<uint8_t>(codes);
    }
  }

  __device__ static void norm(Values& low, Values& high, const float* weights, float eps) {
    float squares = 0.0f;
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      squares = fmaf(low.at[p], low.at[p], fmaf(high.at[p], high.at[p], squares));
    }
    const float scale = rsqrtf(warp_sum(squares) / D + eps);
    const int i = first();
    if (i >= kHalf) return;
    const Values of_low = Values::load(weights + i), of_high = Values::load(weights + i + kHalf);
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      low.at[p] *= scale * of_low.at[p];
      high.at[p] *= scale * of_high.at[p];
    }
  }
};

}  // namespace ion::cuda
