// A block a row: the row is read once and kept in registers, its largest value found, its codes written.
#include <algorithm>

#include "check.h"
#include "e4m3.cuh"
#include "pdl.cuh"
#include "quantise.h"
#include "vec.cuh"

namespace ion::cuda {
namespace {

constexpr float kSmallest = 1e-20f;  // a row of zeros: any scale does
constexpr int kBlocks = 2;           // a multiprocessor: 256 rows are done at once

__device__ __forceinline__ void store_codes(uint8_t* to, const float (&values)[kPiece], float inverse) {
  float v[kPiece];
#pragma unroll
  for (int j = 0; j < kPiece; ++j) v[j] = values[j] * inverse;
  *reinterpret_cast<uint2*>(to) =
      make_uint2(encode4(v[0], v[1], v[2], v[3]), encode4(v[4], v[5], v[6], v[7]));
}

__device__ __forceinline__ float largest(float so_far, const float (&values)[kPiece]) {
#pragma unroll
  for (int j = 0; j < kPiece; ++j) so_far = fmaxf(so_far, fabsf(values[j]));
  return so_far;
}

__device__ __forceinline__ void load8(float (&to)[kPiece], const float* from) {
  const float4 a = *reinterpret_cast<const float4*>(from), b = *reinterpret_cast<const float4*>(from + 4);
  to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
  to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
}

__device__ __forceinline__ void load8(float (&to)[kPiece], const bf16* from) {
  unpack8(to, *reinterpret_cast<const uint4*>(from));
}

__device__ __forceinline__ void store8(bf16* to, const float (&from)[kPiece]) {
  *reinterpret_cast<uint4*>(to) = pack8(from);
}

__device__ __forceinline__ void store8(float* to, const float (&from)[kPiece]) {
  *reinterpret_cast<float4*>(to) = make_float4(from[0], from[1], from[2], from[3]);
  *reinterpret_cast<float4*>(to + 4) = make_float4(from[4], from[5], from[6], from[7]);
}

// The largest x and the sum of all y of a block, in every thread; one fixed tree.
template <int kThreads>
__device__ __forceinline__ float2 block_max_sum(float x, float y) {
  constexpr int kWarps = kThreads / kWarp;
  __shared__ float2 scratch[kWarps];
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
    y += __shfl_xor_sync(0xffffffffu, y, offset);
  }
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = make_float2(x, y);
  __syncthreads();
  float2 out = scratch[0];
#pragma unroll
  for (int i = 1; i < kWarps; ++i) out = make_float2(fmaxf(out.x, scratch[i].x), out.y + scratch[i].y);
  return out;
}

// A product's scales at a row, for the columns from i on.
struct RowScales {
  float x = 1.0f;
  const float* w;

  __device__ RowScales(const ProductScales& scales, int64_t row) : w(scales.w) {
    if (w != nullptr) x = scales.x[row];
  }
  __device__ void apply(float (&values)[kPiece], int64_t i) const {
    if (w == nullptr) return;
    float of_columns[kPiece];
    load8(of_columns, w + i);
#pragma unroll
    for (int j = 0; j < kPiece; ++j) values[j] *= of_columns[j] * x;
  }
};

// Where thread values of a row come from: bf16 as it lies there, or silu(gate) * up rounded to bf16.
struct PlainRow {
  const bf16* x;

  __device__ uint4 read(int64_t i) const { return *reinterpret_cast<const uint4*>(x + i); }
};

struct SiluRow {
  const bf16 *gate, *up;
  RowScales scales;
  int64_t ffn;

  __device__ uint4 read(int64_t i) const {
    float g[kPiece], u[kPiece];
    unpack8(g, *reinterpret_cast<const uint4*>(gate + i));
    unpack8(u, *reinterpret_cast<const uint4*>(up + i));
    scales.apply(g, i);
    scales.apply(u, ffn + i);
#pragma unroll
    for (int j = 0; j < kPiece; ++j) g[j] = silu(g[j]) * u[j];
    return pack8(g);
  }
};

// Rows up to 8 * kThreads * kHeld are read once.
template <int kThreads, int kHeld, typename Row>
__device__ void quantise_row(uint8_t* codes, float* scale, const Row& row, int64_t cols) {
  uint4 held[kHeld];
  float values[kPiece], most = 0.0f;
  const int64_t begin = threadIdx.x * kPiece, step = kThreads * kPiece;
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const int64_t i = begin + h * step;
    const uint4 piece = row.read(min(i, cols - kPiece));  // without branches all loads go out at once
    held[h] = i < cols ? piece : make_uint4(0, 0, 0, 0);
  }
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    unpack8(values, held[h]);
    most = largest(most, values);
  }
#pragma unroll 1
  for (int64_t i = begin + kHeld * step; i < cols; i += step) {
    unpack8(values, row.read(i));
    most = largest(most, values);
  }
  most = fmaxf(block_max_sum<kThreads>(most, 0.0f).x, kSmallest);
  const float inverse = kLargestCode / most;
  if (threadIdx.x == 0) *scale = most / kLargestCode;
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const int64_t i = begin + h * step;
    if (i >= cols) break;
    unpack8(values, held[h]);
    store_codes(codes + i, values, inverse);
  }
#pragma unroll 1
  for (int64_t i = begin + kHeld * step; i < cols; i += step) {
    unpack8(values, row.read(i));
    store_codes(codes + i, values, inverse);
  }
}

template <int kThreads, int kHeld>
__global__ void __launch_bounds__(kThreads, kBlocks)
    quantise_kernel(QuantisedRows dst, const bf16* x, int64_t cols) {
  join_chain();
  const int64_t row = blockIdx.x;
  quantise_row<kThreads, kHeld>(dst.codes + row * cols, dst.scales + row, PlainRow{x + row * cols}, cols);
}

template <int kThreads, int kHeld>
__global__ void __launch_bounds__(kThreads, kBlocks)
    silu_kernel(QuantisedRows dst, const bf16* gate_up, ProductScales scales, int64_t ffn) {
  join_chain();
  const int64_t row = blockIdx.x;
  const bf16* gate = gate_up + row * 2 * ffn;
  quantise_row<kThreads, kHeld>(dst.codes + row * ffn, dst.scales + row,
                                SiluRow{gate, gate + ffn, RowScales(scales, row), ffn}, ffn);
}

// The norm's factor is the same for a whole row: it goes into the row's scale, and the codes are of x *
// weight.
template <int kThreads, int kHeld, bool kAdds>
__global__ void __launch_bounds__(kThreads)
    norm_kernel(QuantisedRows dst, float* x, const bf16* delta, ProductScales scales, const float* weight,
                int64_t cols, float eps) {
  let_successor_start();
  float held[kHeld][kPiece], weights[kPiece], values[kPiece];
  const int64_t begin = threadIdx.x * kPiece, step = kThreads * kPiece, row = blockIdx.x;
  if (begin < cols) load8(weights, weight + begin);  // nobody writes it
  wait_for_predecessor();
  x += row * cols;
  const RowScales of_delta(scales, row);
  const auto read = [&](float (&to)[kPiece], int64_t i) {
    load8(to, x + i);
    if constexpr (kAdds) {
      float more[kPiece];
      unpack8(more, *reinterpret_cast<const uint4*>(delta + row * cols + i));
      of_delta.apply(more, i);
#pragma unroll
      for (int j = 0; j < kPiece; ++j) to[j] += more[j];
      store8(x + i, to);
    }
  };
  float most = 0.0f, squares = 0.0f;
  const auto weigh = [&](float (&to)[kPiece], int64_t i) {
#pragma unroll
    for (int j = 0; j < kPiece; ++j) squares = fmaf(to[j], to[j], squares);
    if (i != begin) load8(weights, weight + i);
#pragma unroll
    for (int j = 0; j < kPiece; ++j) to[j] *= weights[j];
    most = largest(most, to);
  };
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const int64_t i = begin + h * step;
    if (i >= cols) break;
    read(held[h], i);
    weigh(held[h], i);
  }
#pragma unroll 1
  for (int64_t i = begin + kHeld * step; i < cols; i += step) {
    read(values, i);
    weigh(values, i);
  }
  const float2 of_row = block_max_sum<kThreads>(most, squares);
  most = fmaxf(of_row.x, kSmallest);
  const float inverse = kLargestCode / most;
  if (threadIdx.x == 0) {
    dst.scales[row] = rsqrtf(of_row.y / static_cast<float>(cols) + eps) * (most / kLargestCode);
  }
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const int64_t i = begin + h * step;
    if (i >= cols) break;
    store_codes(dst.codes + row * cols + i, held[h], inverse);
  }
#pragma unroll 1
  for (int64_t i = begin + kHeld * step; i < cols; i += step) {
    load8(values, x + i);  // the sum, by this thread
    load8(weights, weight + i);
#pragma unroll
    for (int j = 0; j < kPiece; ++j) values[j] *= weights[j];
    store_codes(dst.codes + row * cols + i, values, inverse);
  }
}

template <typename T>
__global__ void scales_kernel(T* y, ProductScales scales, int64_t cols) {
  join_chain();
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kPiece, row = blockIdx.y;
  if (i >= cols) return;
  float values[kPiece];
  T* at = y + row * cols + i;
  load8(values, at);
  RowScales(scales, row).apply(values, i);
  store8(at, values);
}

// Threads of a block and the pieces that each keeps. A block's registers must fit beside those of a streamed
// product, or it starts only behind it: no more than 512 threads.
template <typename F>
void for_width(int64_t cols, F launch) {
  if (cols <= 256 * kPiece) {
    launch(std::integral_constant<int, 256>(), std::integral_constant<int, 1>());
  } else if (cols <= 512 * kPiece) {
    launch(std::integral_constant<int, 512>(), std::integral_constant<int, 1>());
  } else {
    launch(std::integral_constant<int, 512>(), std::integral_constant<int, 5>());
  }
}

template <bool kAdds>
void launch_norm(const char* what, const QuantisedRows& dst, float* x, const bf16* delta,
                 const ProductScales& scales, const float* weight, int64_t rows, int64_t cols, float eps,
                 cudaStream_t stream) {
  for_width(cols, [&](auto threads, auto held) {
    constexpr int kThreads = threads, kHeld = std::min<int>(held, 2);
    launch_in_chain(what, norm_kernel<kThreads, kHeld, kAdds>, dim3(rows), dim3(kThreads), 0, stream, dst, x,
                    delta, scales, weight, cols, eps);
  });
}

}  // namespace

void quantise_rows(const QuantisedRows& dst, const bf16* x, int64_t rows, int64_t cols, cudaStream_t stream) {
  for_width(cols, [&](auto threads, auto held) {
    launch_in_chain("quantising", quantise_kernel<threads, held>, dim3(rows), dim3(threads), 0, stream, dst,
                    x, cols);
  });
}

void rms_norm_quantised(const QuantisedRows& dst, const float* x, const float* weight, int64_t rows,
                        int64_t cols, float eps, cudaStream_t stream) {
  launch_norm<false>("quantised norm", dst, const_cast<float*>(x), nullptr, {}, weight, rows, cols, eps,
                     stream);
}

void add_rms_norm_quantised(const QuantisedRows& dst, float* x, const bf16* delta,
                            const ProductScales& scales, const float* weight, int64_t rows, int64_t cols,
                            float eps, cudaStream_t stream) {
  launch_norm<true>("quantised norm of a sum", dst, x, delta, scales, weight, rows, cols, eps, stream);
}

void silu_mul_quantised(const QuantisedRows& dst, const bf16* gate_up, const ProductScales& scales,
                        int64_t rows, int64_t ffn, cudaStream_t stream) {
  for_width(ffn, [&](auto threads, auto held) {
    launch_in_chain("quantised silu", silu_kernel<threads, held>, dim3(rows), dim3(threads), 0, stream, dst,
                    gate_up, scales, ffn);
  });
}

namespace {

template <typename T>
void apply(T* y, const ProductScales& scales, int64_t rows, int64_t cols, cudaStream_t stream) {
  if (scales.w == nullptr) return;
  constexpr int kThreads = 256;
  constexpr int64_t kMostRows = 32768;  // of a grid's second dimension, with room
  const auto columns = static_cast<unsigned>((cols + kThreads * kPiece - 1) / (kThreads * kPiece));
  for (int64_t row = 0; row < rows; row += kMostRows) {
    const auto count = static_cast<unsigned>(std::min(rows - row, kMostRows));
    launch_in_chain("scales of a product", scales_kernel<T>, dim3(columns, count), dim3(kThreads), 0, stream,
                    y + row * cols, ProductScales{scales.x + row, scales.w}, cols);
  }
}

}  // namespace

void apply_scales(bf16* y, const ProductScales& scales, int64_t rows, int64_t cols, cudaStream_t stream) {
  apply(y, scales, rows, cols, stream);
}

void apply_scales(float* y, const ProductScales& scales, int64_t rows, int64_t cols, cudaStream_t stream) {
  apply(y, scales, rows, cols, stream);
}

}  // namespace ion::cuda
