// Rows of activations as codes of e4m3: a value is its code times its row's scale, the largest of a row has
// the largest code (448). All join the chain of dependent launches (pdl.cuh). Beside a layer's bf16
// operations of kernels.h; knows no product.
//
// A row's codes and scale depend on that row alone. A row with a NaN or an infinity gets a NaN among its
// codes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace ion::cuda {

// codes [rows, cols], scales [rows]; cols is a multiple of 8.
struct QuantisedRows {
  uint8_t* codes;
  float* scales;
};

// What a product of codes must still be multiplied with, by row and by column; null: with nothing. x may be
// the scales of the rows that are written.
struct ProductScales {
  const float* x = nullptr;  // [rows]
  const float* w = nullptr;  // [cols]
};

void quantise_rows(const QuantisedRows& dst, const __nv_bfloat16* x, int64_t rows, int64_t cols,
                   cudaStream_t stream);

// dst = x / sqrt(mean(x^2) + eps) * weight.
void rms_norm_quantised(const QuantisedRows& dst, const float* x, const float* weight, int64_t rows,
                        int64_t cols, float eps, cudaStream_t stream);

// x [rows, cols] += delta, scaled; dst = norm(x).
void add_rms_norm_quantised(const QuantisedRows& dst, float* x, const __nv_bfloat16* delta,
                            const ProductScales& scales, const float* weight, int64_t rows, int64_t cols,
                            float eps, cudaStream_t stream);

// dst [rows, ffn] = silu(gate_up[:, :ffn]) * gate_up[:, ffn:], both scaled first; scales.w [2 ffn].
void silu_mul_quantised(const QuantisedRows& dst, const __nv_bfloat16* gate_up, const ProductScales& scales,
                        int64_t rows, int64_t ffn, cudaStream_t stream);

// y [rows, cols], scaled.
void apply_scales(__nv_bfloat16* y, const ProductScales& scales, int64_t rows, int64_t cols,
                  cudaStream_t stream);
void apply_scales(float* y, const ProductScales& scales, int64_t rows, int64_t cols, cudaStream_t stream);

}  // namespace ion::cuda
