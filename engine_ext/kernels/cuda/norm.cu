// Embedding rows, gathered rows and RMS norms, a block a row. The residual stream is float32: rounding it to
// bf16 at each of its sums would cost more accuracy than all of bf16's products.
#include <type_traits>

#include "check.h"
#include "kernels.h"
#include "pdl.cuh"
#include "vec.cuh"

namespace ion::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kFour = 4;      // values of a piece: 16 bytes of float32, and a warp's pieces lie side by side
constexpr int kMostHeld = 8;  // pieces that a thread keeps: rows up to 8192 are read once

__device__ __forceinline__ void load4(float (&to)[kFour], const float* from) {
  const float4 a = *reinterpret_cast<const float4*>(from);
  to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
}

__device__ __forceinline__ void load4(float (&to)[kFour], const bf16* from) {
  const uint2 words = *reinterpret_cast<const uint2*>(from);
  const float2 a = unpack(words.x), b = unpack(words.y);
  to[0] = a.x, to[1] = a.y, to[2] = b.x, to[3] = b.y;
}

__device__ __forceinline__ void store4(float* to, const float (&from)[kFour]) {
  *reinterpret_cast<float4*>(to) = make_float4(from[0], from[1], from[2], from[3]);
}

__device__ __forceinline__ void store4(bf16* to, const float (&from)[kFour]) {
  *reinterpret_cast<uint2*>(to) = make_uint2(pack(from[0], from[1]), pack(from[2], from[3]));
}

__global__ void embed_kernel(float* x, const int32_t* ids, const int32_t* slots, const int32_t* last_ids,
                             const bf16* table, int64_t hidden) {
  join_chain();
  const int64_t row = blockIdx.x;
  float* to = x + row * hidden;
  const int slot = slots[row];
  const int64_t id = ids[row] >= 0 ? ids[row] : slot >= 0 ? last_ids[slot] : 0;
  for (int64_t i = threadIdx.x * kFour; i < hidden; i += blockDim.x * kFour) {
    float values[kFour] = {};
    if (slot >= 0) load4(values, table + id * hidden + i);
    store4(to + i, values);
  }
}

// Rows of the residual stream and of a branch's input, side by side.
__global__ void gather_kernel(float* x_to, const float* x, bf16* to, const bf16* from, const int32_t* picked,
                              int64_t hidden, int64_t cols) {
  join_chain();
  const int64_t dst = blockIdx.x, src = max(picked[dst], 0);
  const auto copy = [](auto* at, const auto* values, int64_t bytes) {
#pragma unroll 2
    for (int64_t i = threadIdx.x; i < bytes / 16; i += kThreads) {
      reinterpret_cast<uint4*>(at)[i] = reinterpret_cast<const uint4*>(values)[i];
    }
  };
  copy(x_to + dst * hidden, x + src * hidden, hidden * static_cast<int64_t>(sizeof(float)));
  copy(to + dst * cols, from + src * cols, cols * static_cast<int64_t>(sizeof(bf16)));
}

// One row: x (+ delta) -> norm -> dst. kAdds: delta is added; kKeeps: the sum goes back to x. A thread keeps
// kHeld pieces.
template <int kHeld, bool kAdds, bool kKeeps>
__device__ void norm_row(bf16* dst, float* x, const bf16* delta, const float* weight, int64_t cols,
                         float eps) {
  __shared__ float scratch[kThreads / kWarp];
  float held[kHeld][kFour], weights[kHeld][kFour];
  const int64_t begin = threadIdx.x * kFour, step = kThreads * kFour;
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    if (begin + h * step < cols) load4(weights[h], weight + begin + h * step);  // nobody writes them
  }
  wait_for_predecessor();
  float squares = 0.0f;
  const auto read = [&](float (&values)[kFour], int64_t i) {
    load4(values, x + i);
    if constexpr (kAdds) {
      float more[kFour];
      load4(more, delta + i);
#pragma unroll
      for (int j = 0; j < kFour; ++j) values[j] += more[j];
    }
  };
  const auto add_up = [&](const float (&values)[kFour], int64_t i) {
#pragma unroll
    for (int j = 0; j < kFour; ++j) squares = fmaf(values[j], values[j], squares);
    if constexpr (kKeeps) store4(x + i, values);
  };
  // All loads first: the compiler may not move one over the sums' stores.
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    if (begin + h * step < cols) read(held[h], begin + h * step);
  }
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    if (begin + h * step < cols) add_up(held[h], begin + h * step);
  }
#pragma unroll 1
  for (int64_t i = begin + kHeld * step; i < cols; i += step) {
    float values[kFour];
    read(values, i);
    add_up(values, i);
  }
  const float scale = rsqrtf(block_sum<kThreads>(squares, scratch) / static_cast<float>(cols) + eps);
  const auto write = [&](const float (&values)[kFour], const float (&factors)[kFour], int64_t i) {
    float out[kFour];
#pragma unroll
    for (int j = 0; j < kFour; ++j) out[j] = values[j] * scale * factors[j];
    store4(dst + i, out);
  };
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    if (begin + h * step < cols) write(held[h], weights[h], begin + h * step);
  }
#pragma unroll 1
  for (int64_t i = begin + kHeld * step; i < cols; i += step) {
    float values[kFour], factors[kFour];
    load4(values, x + i);  // with kKeeps the sum, by this thread
    if constexpr (kAdds && !kKeeps) read(values, i);
    load4(factors, weight + i);
    write(values, factors, i);
  }
}

template <int kHeld>
__global__ void __launch_bounds__(kThreads, kHeld > 4 ? 2 : 3)
    norm_kernel(bf16* dst, const float* x, const float* weight, int64_t cols, float eps) {
  let_successor_start();
  const int64_t at = blockIdx.x * cols;
  norm_row<kHeld, false, false>(dst + at, const_cast<float*>(x) + at, nullptr, weight, cols, eps);
}

template <int kHeld>
__global__ void __launch_bounds__(kThreads, kHeld > 4 ? 2 : 3)
    add_norm_kernel(bf16* dst, float* x, const bf16* delta, const float* weight, int64_t cols, float eps) {
  let_successor_start();
  const int64_t at = blockIdx.x * cols;
  norm_row<kHeld, true, true>(dst + at, x + at, delta + at, weight, cols, eps);
}

template <int kHeld>
__global__ void __launch_bounds__(kThreads, kHeld > 4 ? 2 : 3)
    add_norm_picked_kernel(bf16* dst, const float* x, const bf16* delta, const float* weight,
                           const int32_t* picked, int64_t cols, float eps) {
  let_successor_start();
  const int64_t from = max(picked[blockIdx.x], 0) * cols;
  norm_row<kHeld, true, false>(dst + blockIdx.x * cols, const_cast<float*>(x) + from, delta + from, weight,
                               cols, eps);
}

// Calls launch(pieces that a thread keeps).
template <typename F>
void for_width(int64_t cols, F launch) {
  if (cols <= 4 * kThreads * kFour) {
    launch(std::integral_constant<int, 4>());
  } else {
    launch(std::integral_constant<int, kMostHeld>());
  }
}

}  // namespace

void embed(float* x, const int32_t* ids, const int32_t* slots, const int32_t* last_ids, const bf16* table,
           int64_t rows, int64_t hidden, cudaStream_t stream) {
  launch_in_chain("embedding", embed_kernel, dim3(rows), dim3(kThreads), 0, stream, x, ids, slots, last_ids,
                  table, hidden);
}

void gather_rows(float* x_to, const float* x, bf16* to, const bf16* from, const int32_t* picked,
                 int64_t count, int64_t hidden, int64_t cols, cudaStream_t stream) {
  launch_in_chain("picked rows", gather_kernel, dim3(count), dim3(kThreads), 0, stream, x_to, x, to, from,
                  picked, hidden, cols);
}

void rms_norm(bf16* dst, const float* x, const float* weight, int64_t rows, int64_t cols, float eps,
              cudaStream_t stream) {
  for_width(cols, [&](auto held) {
    launch_in_chain("norm", norm_kernel<held>, dim3(rows), dim3(kThreads), 0, stream, dst, x, weight, cols,
                    eps);
  });
}

void add_rms_norm(bf16* dst, float* x, const bf16* delta, const float* weight, int64_t rows, int64_t cols,
                  float eps, cudaStream_t stream) {
  for_width(cols, [&](auto held) {
    launch_in_chain("norm of a sum", add_norm_kernel<held>, dim3(rows), dim3(kThreads), 0, stream, dst, x,
                    delta, weight, cols, eps);
  });
}

void add_rms_norm_picked(bf16* dst, const float* x, const bf16* delta, const float* weight,
                         const int32_t* picked, int64_t count, int64_t cols, float eps, cudaStream_t stream) {
  if (count == 0) return;
  for_width(cols, [&](auto held) {
    launch_in_chain("norm of picked rows", add_norm_picked_kernel<held>, dim3(count), dim3(kThreads), 0,
                    stream, dst, x, delta, weight, picked, cols, eps);
  });
}

}  // namespace ion::cuda
