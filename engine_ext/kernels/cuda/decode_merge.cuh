// What the pieces of one row found, brought together.
#pragma once

#include <cmath>

#include "attention_units.cuh"
#include "decode_sums.cuh"
#include "decode_task.cuh"

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

// The parts of a row, in order, over the sums' common maximum, by kThreads threads: a warp for a head. What
// the parts weigh is found for 32 of them at once, a lane each.
template <int D, int kThreads>
__device__ void merge_parts(bf16* dst, const RowParts<D>& row, int num_parts, int num_heads) {
  constexpr int kDims = D / kWarp, kParts = 8;
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) % kThreads / kWarp;
#pragma unroll 1
  for (int head = warp; head < num_heads; head += kThreads / kWarp) {
    float m = -INFINITY, l = 0.0f, acc[1][kDims] = {};
#pragma unroll 1
    for (int first = 0; first < num_parts; first += kWarp) {
      const float* part = row.first + first * row.stride;
      const int count = min(kWarp, num_parts - first);
      const float* own = part + min(lane, count - 1) * row.stride + head;
      const float own_m = lane < count ? __ldcg(own) : -INFINITY, own_l = __ldcg(own + num_heads);
      const float now = fmaxf(m, warp_max(own_m)), base = now == -INFINITY ? 0.0f : now;
      const float weight[1] = {power_of_2(own_m - base)}, shrink = power_of_2(m - base);
      m = now;
      l = l * shrink + warp_sum(own_l * weight[0]);
#pragma unroll
      for (int i = 0; i < kDims; ++i) acc[0][i] *= shrink;
      const float* sums = part + 2 * num_heads + head * D + lane;
      add_parts<kParts>(acc, weight, count, [&](float (&values)[kDims], int of_part, int /*row*/) {
#pragma unroll
        for (int i = 0; i < kDims; ++i) values[i] = __ldcg(sums + of_part * row.stride + i * kWarp);
      });
    }
    const float scale = 1.0f / l;
#pragma unroll
    for (int i = 0; i < kDims; ++i) dst[head * D + lane + i * kWarp] = __float2bfloat16(acc[0][i] * scale);
  }
}

// What a warp found for one piece, to the output where it is the row's only one, else to the others' merging.
template <int D, typename Tile, typename Kv>
__device__ void finish_piece(const Tile& tile, const AttentionArgs& args, const Task<D, 1, Kv>& task,
                             int units, int work) {
  const int num_heads = task.unit.num_heads;
  if (task.num_parts == 1) return tile.write_row(task.output(args), num_heads);
  const RowParts<D> parts(args, task, units, work);
  tile.write_part(parts.own, num_heads);
  __threadfence();
  __syncwarp();
  int is_last = 0;
  if (threadIdx.x % kWarp == 0) is_last = is_last_to_arrive(parts.arrived, task.num_parts);
  if (__shfl_sync(0xffffffffu, is_last, 0) == 0) return;
  merge_parts<D, kWarp>(task.output(args), parts, task.num_parts, num_heads);
}

}  // namespace ion::cuda
