// Embedding rows and RMS norms, a block a row. The residual stream is float32: rounding it to bf16 at each of
// its sums would cost more accuracy than all of bf16's products.
#include "check.h"
#include "kernels.h"
#include "pdl.cuh"
#include "vec.cuh"

namespace ion::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kHeld = 4;  // pieces of 8 values that a thread keeps: rows up to 8192 are read once

__device__ __forceinline__ void load8(float (&to)[kPiece], const float* from) {
  const float4 a = *reinterpret_cast<const float4*>(from), b = *reinterpret_cast<const float4*>(from + 4);
  to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
  to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
}

__device__ __forceinline__ void store8(float* to, const float (&from)[kPiece]) {
  *reinterpret_cast<float4*>(to) = make_float4(from[0], from[1], from[2], from[3]);
  *reinterpret_cast<float4*>(to + 4) = make_float4(from[4], from[5], from[6], from[7]);
}

__global__ void embed_kernel(float* x, const int32_t* ids, const int32_t* slots, const int32_t* last_ids,
                             const bf16* table, int64_t hidden) {
  join_chain();
  const int64_t row = blockIdx.x;
  float* to = x + row * hidden;
  const int slot = slots[row];
  const int64_t id = ids[row] >= 0 ? ids[row] : slot >= 0 ? last_ids[slot] : 0;
  for (int64_t i = threadIdx.x * kPiece; i < hidden; i += blockDim.x * kPiece) {
    float values[kPiece] = {};
    if (slot >= 0) unpack8(values, *reinterpret_cast<const uint4*>(table + id * hidden + i));
    store8(to + i, values);
  }
}

// One row: x (+ delta) -> norm -> dst. kAdds: delta is added; kKeeps: the sum goes back to x.
template <bool kAdds, bool kKeeps>
__device__ void norm_row(bf16* dst, float* x, const bf16* delta, const float* weight, int64_t cols,
                         float eps) {
  __shared__ float scratch[kThreads / kWarp];
  float held[kHeld][kPiece];
  float squares = 0.0f;
  const auto read = [&](float (&values)[kPiece], int64_t i) {
    load8(values, x + i);
    if constexpr (kAdds) {
      float more[kPiece];
      unpack8(more, *reinterpret_cast<const uint4*>(delta + i));
#pragma unroll
      for (int j = 0; j < kPiece; ++j) values[j] += more[j];
    }
  };
  const auto add_up = [&](const float (&values)[kPiece], int64_t i) {
#pragma unroll
    for (int j = 0; j < kPiece; ++j) squares = fmaf(values[j], values[j], squares);
    if constexpr (kKeeps) store8(x + i, values);
  };
  const int64_t begin = threadIdx.x * kPiece, step = kThreads * kPiece;
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const int64_t i = begin + h * step;
    if (i >= cols) break;
    read(held[h], i);
    add_up(held[h], i);
  }
  for (int64_t i = begin + kHeld * step; i < cols; i += step) {
    float values[kPiece];
    read(values, i);
    add_up(values, i);
  }
  const float scale = rsqrtf(block_sum<kThreads>(squares, scratch) / static_cast<float>(cols) + eps);
  const auto write = [&](const float (&values)[kPiece], int64_t i) {
    float weights[kPiece], out[kPiece];
    load8(weights, weight + i);
#pragma unroll
    for (int j = 0; j < kPiece; ++j) out[j] = values[j] * scale * weights[j];
    *reinterpret_cast<uint4*>(dst + i) = pack8(out);
  };
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const int64_t i = begin + h * step;
    if (i >= cols) break;
    write(held[h], i);
  }
  for (int64_t i = begin + kHeld * step; i < cols; i += step) {
    float values[kPiece];
    load8(values, x + i);  // with kKeeps the sum, by this thread
    if constexpr (kAdds && !kKeeps) read(values, i);
    write(values, i);
  }
}

__global__ void __launch_bounds__(kThreads)
    norm_kernel(bf16* dst, const float* x, const float* weight, int64_t cols, float eps) {
  join_chain();
  const int64_t at = blockIdx.x * cols;
  norm_row<false, false>(dst + at, const_cast<float*>(x) + at, nullptr, weight, cols, eps);
}

__global__ void __launch_bounds__(kThreads)
    add_norm_kernel(bf16* dst, float* x, const bf16* delta, const float* weight, int64_t cols, float eps) {
  join_chain();
  const int64_t at = blockIdx.x * cols;
  norm_row<true, true>(dst + at, x + at, delta + at, weight, cols, eps);
}

__global__ void __launch_bounds__(kThreads, 2)
    add_norm_picked_kernel(bf16* dst, const float* x, const bf16* delta, const float* weight,
                           const int32_t* picked, int64_t cols, float eps) {
  join_chain();
  const int64_t from = max(picked[blockIdx.x], 0) * cols;
  norm_row<true, false>(dst + blockIdx.x * cols, const_cast<float*>(x) + from, delta + from, weight, cols,
                        eps);
}

}  // namespace

void embed(float* x, const int32_t* ids, const int32_t* slots, const int32_t* last_ids, const bf16* table,
           int64_t rows, int64_t hidden, cudaStream_t stream) {
  launch_in_chain("embedding", embed_kernel, dim3(rows), dim3(kThreads), 0, stream, x, ids, slots, last_ids,
                  table, hidden);
}

void rms_norm(bf16* dst, const float* x, const float* weight, int64_t rows, int64_t cols, float eps,
              cudaStream_t stream) {
  launch_in_chain("norm", norm_kernel, dim3(rows), dim3(kThreads), 0, stream, dst, x, weight, cols, eps);
}

void add_rms_norm(bf16* dst, float* x, const bf16* delta, const float* weight, int64_t rows, int64_t cols,
                  float eps, cudaStream_t stream) {
  launch_in_chain("norm of a sum", add_norm_kernel, dim3(rows), dim3(kThreads), 0, stream, dst, x, delta,
                  weight, cols, eps);
}

void add_rms_norm_picked(bf16* dst, const float* x, const bf16* delta, const float* weight,
                         const int32_t* picked, int64_t count, int64_t cols, float eps, cudaStream_t stream) {
  if (count == 0) return;
  launch_in_chain("norm of picked rows", add_norm_picked_kernel, dim3(count), dim3(kThreads), 0, stream, dst,
                  x, delta, weight, picked, cols, eps);
}

}  // namespace ion::cuda
