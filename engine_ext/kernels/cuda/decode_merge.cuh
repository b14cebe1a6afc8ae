// What the pieces of one row found, brought together.
#pragma once

#include <cmath>

#include "attention_units.cuh"
#include "decode_tile.cuh"

namespace ion::cuda {

// Where the pieces of a row leave what they found for the last of them to arrive. A part: m and l of each
// head, then acc [heads][D], float32.
template <int D>
struct RowParts {
  float* own;
  const float* first;
  int64_t stride;  // from part to part
  uint32_t* arrived;

  template <typename Task>
  __device__ RowParts(const AttentionArgs& args, const Task& task, int units, int work) {
    const int64_t floats = static_cast<int64_t>(min(kTileHeads, args.num_heads)) * (D + 2);
    stride = floats * units;
    own = args.partial + work * floats;
    first = own - (task.piece.part - task.first_part) * stride;
    arrived = args.arrivals + task.piece.span * units + work % units;
  }
};

// The parts of a row, in order, over the sums' common maximum, by kThreads threads. A thread has four dims of
// some heads, and what it asks for of a part is on its way together: a part costs one way to L2 and not one
// for each head.
template <int D, int kThreads>
__device__ void merge_parts(bf16* dst, const RowParts<D>& row, int num_parts, int num_heads) {
  const float* parts = row.first;
  const int64_t stride = row.stride;
  constexpr int kOfHead = D / 4;  // threads
  constexpr int kAtOnce = kThreads / kOfHead < kTileHeads ? kThreads / kOfHead : kTileHeads;
  constexpr int kWanted = (kTileHeads + kAtOnce - 1) / kAtOnce, kHeads = kWanted < 4 ? kWanted : 4;
  const int thread = static_cast<int>(threadIdx.x) % kThreads, dim = thread % kOfHead * 4;
  if (thread / kOfHead >= kAtOnce) return;
#pragma unroll 1
  for (int first = thread / kOfHead; first < num_heads; first += kHeads * kAtOnce) {
    float m[kHeads], l[kHeads];
    float2 low[kHeads], high[kHeads];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      m[h] = -INFINITY, l[h] = 0.0f;
      low[h] = high[h] = make_float2(0.0f, 0.0f);
    }
#pragma unroll(4 / kHeads)
    for (int p = 0; p < num_parts; ++p) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const int head = first + h * kAtOnce;
        if (head < num_heads) m[h] = fmaxf(m[h], __ldcg(parts + p * stride + head));
      }
    }
#pragma unroll(4 / kHeads)
    for (int p = 0; p < num_parts; ++p) {
      const float* part = parts + p * stride;
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const int head = first + h * kAtOnce;
        if (head >= num_heads) continue;
        const auto* acc = reinterpret_cast<const float2*>(part + 2 * num_heads + head * D + dim);
        const float2 a = __ldcg(acc), b = __ldcg(acc + 1);
        const float factor = exp2f(__ldcg(part + head) - (m[h] == -INFINITY ? 0.0f : m[h]));
        l[h] += __ldcg(part + num_heads + head) * factor;
        low[h].x += a.x * factor, low[h].y += a.y * factor;
        high[h].x += b.x * factor, high[h].y += b.y * factor;
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const int head = first + h * kAtOnce;
      if (head >= num_heads) continue;
      const float scale = 1.0f / l[h];
      *reinterpret_cast<uint2*>(dst + head * D + dim) =
          make_uint2(pack(low[h].x * scale, low[h].y * scale), pack(high[h].x * scale, high[h].y * scale));
    }
  }
}

}  // namespace ion::cuda
