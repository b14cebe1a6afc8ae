// What the cuts of a piece of prompts found, brought together: each warp's sixteen packed rows by themselves.
#pragma once

#include <cmath>
#include <type_traits>

#include "attention_sm90_feed.cuh"
#include "attention_units.cuh"
#include "kernels.h"
#include "vec.cuh"

namespace ion::cuda {

constexpr int kWarpRows = kGroupRows / kGroupWarps;
static_assert(kMostCuts <= kWarp);

// Where a warp leaves what its rows' tiles came to: maximum and sum of weights of each row, then sums of
// values [kWarpRows][D], float32. The cuts of a piece are a cluster: when all have left theirs, each brings
// its share of the rows together.
template <int D>
struct CutRows {
  static constexpr int kFloats = kWarpRows * (D + 2);
  float* own;
  const float* first;
  int64_t stride;  // from part to part
  int part, num_parts;

  __device__ CutRows(const AttentionArgs& args, const PrefillTask& task, int cuts, int warp)
      : stride(int64_t{kGroups} * kGroupWarps * kFloats), part(task.part), num_parts(task.num_parts) {
    float* whole = args.partial + task.whole * cuts * stride + warp * kFloats;
    first = whole;
    own = whole + part * stride;
  }
  __device__ const float2* weights(int of_part) const {
    return reinterpret_cast<const float2*>(first + of_part * stride);
  }
  __device__ const float* sums(int of_part) const { return first + of_part * stride + 2 * kWarpRows; }
  __device__ float2* own_weights() const { return reinterpret_cast<float2*>(own); }
  __device__ float* own_sums() const { return own + 2 * kWarpRows; }
};

// This part's share of the warp's rows, all parts in order, over their common maxima: row r to dst + to[r /
// 8] of lane 4 (r % 8), nowhere where that is -1. A lane finds what one part weighs.
template <int D>
__device__ void merge_cuts(bf16* dst, const CutRows<D>& rows, const int64_t (&to)[2]) {
  constexpr int kDims = D / kWarp, kRows = 4, kParts = 6;
  using Run = std::conditional_t<kDims == 4, float4, float2>;
  const int lane = threadIdx.x % kWarp, num_parts = rows.num_parts;
  const int end = kWarpRows * (rows.part + 1) / num_parts;
#pragma unroll 1
  for (int row = kWarpRows * rows.part / num_parts; row < end; row += kRows) {
    float2 left[kRows];
    float weight[kRows], acc[kRows][kDims] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      left[r] = __ldcg(rows.weights(min(lane, num_parts - 1)) + min(row + r, end - 1));
      if (lane >= num_parts) left[r] = make_float2(-INFINITY, 0.0f);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      weight[r] = power_of_2(left[r].x - warp_max(left[r].x));
      weight[r] /= warp_sum(left[r].y * weight[r]);
    }
    add_parts<kParts>(acc, weight, num_parts, [&](float (&values)[kDims], int part, int r) {
      const float* sums = rows.sums(part) + lane * kDims + min(row + r, end - 1) * D;
      reinterpret_cast<Run&>(values) = __ldcg(reinterpret_cast<const Run*>(sums));
    });
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t upper = __shfl_sync(0xffffffffu, to[0], (row + r) % 8 * 4);
      const int64_t lower = __shfl_sync(0xffffffffu, to[1], (row + r) % 8 * 4);
      const int64_t at = row + r < 8 ? upper : lower;
      if (row + r >= end || at < 0) continue;
      auto* words = reinterpret_cast<uint32_t*>(dst + at + lane * kDims);
      if constexpr (kDims == 4) {
        *reinterpret_cast<uint2*>(words) = make_uint2(pack(acc[r][0], acc[r][1]), pack(acc[r][2], acc[r][3]));
      } else {
        *words = pack(acc[r][0], acc[r][1]);
      }
    }
  }
}

}  // namespace ion::cuda
