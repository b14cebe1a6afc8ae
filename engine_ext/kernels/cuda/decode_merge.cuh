// What the pieces of one row found, brought together.
#pragma once

#include <cmath>

#include "decode_tile.cuh"

namespace ion::cuda {

// The parts of a row, in order, over the sums' common maximum, by kThreads threads. A part: m and l of each
// head, then acc [heads][D], float32. A thread has four dims of some heads, and what it asks for of a part is
// on its way together: a part costs one way to L2 and not one for each head.
template <int D, int kThreads>
__device__ void merge_parts(bf16* dst, const float* parts, int64_t stride, int num_parts, int num_heads) {
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
