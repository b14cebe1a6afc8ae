// silu(gate) * up, elementwise.
#include "check.h"
#include "kernels.h"
#include "pdl.cuh"
#include "vec.cuh"

namespace ion::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) silu_mul_kernel(bf16* dst, const bf16* gate_up, int64_t ffn) {
  join_chain();
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kPiece, row = blockIdx.y;
  if (i >= ffn) return;
  const bf16* from = gate_up + row * 2 * ffn + i;
  float gate[kPiece], up[kPiece];
  unpack8(gate, *reinterpret_cast<const uint4*>(from));
  unpack8(up, *reinterpret_cast<const uint4*>(from + ffn));
#pragma unroll
  for (int j = 0; j < kPiece; ++j) gate[j] = silu(gate[j]) * up[j];
  *reinterpret_cast<uint4*>(dst + row * ffn + i) = pack8(gate);
}

}  // namespace

void silu_mul(bf16* dst, const bf16* gate_up, int64_t rows, int64_t ffn, cudaStream_t stream) {
  constexpr int64_t kMostRows = 32768;  // of a grid's second dimension, with room
  const auto columns = static_cast<unsigned>((ffn + kThreads * kPiece - 1) / (kThreads * kPiece));
  for (int64_t row = 0; row < rows; row += kMostRows) {
    const auto count = static_cast<unsigned>(rows - row < kMostRows ? rows - row : kMostRows);
    launch_in_chain("silu", silu_mul_kernel, dim3(columns, count), dim3(kThreads), 0, stream, dst + row * ffn,
                    gate_up + row * 2 * ffn, ffn);
  }
}

}  // namespace ion::cuda
