// What an instruction set provides: the inner loops behind the launchers, over ranges that a thread was
// given. Knows no threads and no shapes beyond its arguments.
#pragma once

#include <cstdint>

#include "../kernels.h"
#include "quantized_rows.h"

namespace ion::kernels {

// A product's share of one thread: panels [panel_begin, panel_end), rows [row_begin, row_end). row_begin
// is a multiple of kRowBlock, row_end another or the number of rows; panel_begin is even.
struct MatmulTask {
  const MatmulOutput* out;
  const float* x;  // [m, x_stride]; float products
  int64_t x_stride;
  const QuantizedRows* xq;  // integer products
  int64_t row_begin, row_end;
  int64_t panel_begin, panel_end;
};

// Rows [first_row, first_row + num_rows) of one span against heads [first_head, first_head + num_heads), all
// of one KV head. num_rows * num_heads <= kMaxAttentionRows.
struct AttentionTask {
  float* dst;
  const float* q;
  int64_t q_stride;
  const void* layer_cache;
  const KvShape* shape;
  const AttentionParams* params;
  const AttentionSpan* span;
  int32_t first_row, num_rows;
  int32_t first_head, num_heads;
};

constexpr int32_t kMaxAttentionRows = 12;
constexpr int32_t kMaxHeadDim = 256;

struct KernelTable {
  void (*quantize_row)(const QuantizedRows& dst, int64_t row, const float* x);
  void (*matmul_int8)(const MatmulTask& task);   // fast, quantised weights
  void (*matmul_float)(const MatmulTask& task);  // exact, or float weights
  void (*rms_norm_row)(float* dst, const float* x, const float* weight, int64_t cols, float eps);
  void (*silu_mul_row)(float* dst, const float* gate, const float* up, int64_t cols);
  void (*attention)(const AttentionTask& task);
  // dst[i] = exp((x[i] - shift) * factor); the sampler's pass over the vocabulary. dst may be x.
  void (*exp_row)(float* dst, const float* x, int64_t size, float shift, float factor);
  void (*to_f16)(uint16_t* dst, const float* src, int64_t size);
};

// The same names in every namespace: `reference` is scalar, the specification, and what runs without AVX2.
#define ION_DECLARE_KERNELS                                                                    \
  void quantize_row(const QuantizedRows& dst, int64_t row, const float* x);                    \
  void matmul_int8(const MatmulTask& task);                                                    \
  void matmul_float(const MatmulTask& task);                                                   \
  void rms_norm_row(float* dst, const float* x, const float* weight, int64_t cols, float eps); \
  void silu_mul_row(float* dst, const float* gate, const float* up, int64_t cols);             \
  void attention(const AttentionTask& task);                                                   \
  void exp_row(float* dst, const float* x, int64_t size, float shift, float factor);           \
  void to_f16(uint16_t* dst, const float* src, int64_t size);

namespace reference {
ION_DECLARE_KERNELS
}
#ifdef ION_X86
namespace avx2 {
ION_DECLARE_KERNELS
}
namespace avx512vnni {
void quantize_row(const QuantizedRows& dst, int64_t row, const float* x);
void matmul_int8(const MatmulTask& task);
void silu_mul_row(float* dst, const float* gate, const float* up, int64_t cols);
void attention(const AttentionTask& task);
void exp_row(float* dst, const float* x, int64_t size, float shift, float factor);
// The others are avx2's.
}  // namespace avx512vnni
#endif
#undef ION_DECLARE_KERNELS

const KernelTable& kernel_table();  // of current_isa()

}  // namespace ion::kernels
