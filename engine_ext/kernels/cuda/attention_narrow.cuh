// What a warp that has a piece to itself does with what it found.
#pragma once

#include "decode_task.cuh"

namespace ion::cuda {

// A row's only piece.
template <int D>
__device__ void write_row(bf16* dst, const DecodeTile<D>& tile, int num_heads) {
  const int pair = 2 * static_cast<int>(threadIdx.x % 4);
  const float factor[2] = {1.0f / column_sum(tile.l[0]), 1.0f / column_sum(tile.l[1])};
  tile.each_run([&](int e, int dim, const auto& run) {
    constexpr int kSize = sizeof(run) / sizeof(float);
    if (pair + e >= num_heads) return;
    uint32_t words[kSize / 2];
#pragma unroll
    for (int i = 0; i < kSize / 2; ++i) words[i] = pack(run[2 * i] * factor[e], run[2 * i + 1] * factor[e]);
    bf16* at = dst + (pair + e) * D + dim;
    if constexpr (kSize == 8) {
      *reinterpret_cast<uint4*>(at) = make_uint4(words[0], words[1], words[2], words[3]);
    } else {
      *reinterpret_cast<uint2*>(at) = make_uint2(words[0], words[1]);
    }
  });
}

// One of several: m and l of each head, then acc [heads][D], as in attention.cu.
template <int D>
__device__ void write_part(float* part, const DecodeTile<D>& tile, int num_heads) {
  const int lane = threadIdx.x % kWarp, pair = 2 * (lane % 4);
  const float sum[2] = {column_sum(tile.l[0]), column_sum(tile.l[1])};
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    if (lane >= 4 || pair + e >= num_heads) continue;
    __stcg(part + pair + e, tile.m[e]);
    __stcg(part + num_heads + pair + e, sum[e]);
  }
  tile.each_run([&](int e, int dim, const auto& run) {
    constexpr int kSize = sizeof(run) / sizeof(float);
    if (pair + e >= num_heads) return;
    float* at = part + 2 * num_heads + (pair + e) * D + dim;
#pragma unroll
    for (int i = 0; i < kSize; i += 2) {
      __stcg(reinterpret_cast<float2*>(at + i), make_float2(run[i], run[i + 1]));
    }
  });
}

// The parts of a row, in order, over the sums' common maximum; a lane has four dims of each head.
template <int D>
__device__ void merge_parts(bf16* dst, const float* parts, int64_t stride, int num_parts, int num_heads) {
  const int dim = 4 * static_cast<int>(threadIdx.x % kWarp);
  if (dim >= D) return;
#pragma unroll 4
  for (int head = 0; head < num_heads; ++head) {
    float m = -INFINITY, l = 0.0f;
    float2 low = make_float2(0.0f, 0.0f), high = low;
    for (int p = 0; p < num_parts; ++p) m = fmaxf(m, __ldcg(parts + p * stride + head));
    const float base = m == -INFINITY ? 0.0f : m;
    for (int p = 0; p < num_parts; ++p) {
      const float* part = parts + p * stride;
      const auto* acc = reinterpret_cast<const float2*>(part + 2 * num_heads + head * D + dim);
      const float factor = exp2f(__ldcg(part + head) - base);
      const float2 a = __ldcg(acc), b = __ldcg(acc + 1);
      l += __ldcg(part + num_heads + head) * factor;
      low.x += a.x * factor, low.y += a.y * factor, high.x += b.x * factor, high.y += b.y * factor;
    }
    const float scale = 1.0f / l;
    *reinterpret_cast<uint2*>(dst + head * D + dim) =
        make_uint2(pack(low.x * scale, low.y * scale), pack(high.x * scale, high.y * scale));
  }
}

template <int D>
__device__ void finish_piece(const DecodeTile<D>& tile, const AttentionArgs& args, const Task<D, 1>& task,
                             int units, int work) {
  const int num_heads = task.unit.num_heads;
  if (task.num_parts == 1) return write_row<D>(task.output(args), tile, num_heads);
  const int64_t unit_floats = static_cast<int64_t>(min(kTileHeads, args.num_heads)) * (D + 2);
  float* part = args.partial + work * unit_floats;
  write_part<D>(part, tile, num_heads);
  __threadfence();
  __syncwarp();
  uint32_t* arrived = args.arrivals + task.piece.span * units + work % units;
  int is_last = 0;
  if (threadIdx.x % kWarp == 0) {
    is_last = atomicAdd(arrived, 1u) == static_cast<uint32_t>(task.num_parts - 1);
    if (is_last) *arrived = 0;
    __threadfence();
  }
  if (__shfl_sync(0xffffffffu, is_last, 0) == 0) return;
  const int64_t stride = unit_floats * units;
  const float* first = part - (task.piece.part - task.first_part) * stride;
  merge_parts<D>(task.output(args), first, stride, task.num_parts, num_heads);
}

}  // namespace ion::cuda
