// Row-wise operations, scalar: the specification. Sums run in 32 lanes (element i in lane i % 32), as the
// vector code's four accumulators do.
#include <cmath>

#include "float_math.h"
#include "table.h"

namespace ion::kernels::reference {

void rms_norm_row(float* dst, const float* x, const float* weight, int64_t cols, float eps) {
  float lanes[32] = {};
  for (int64_t i = 0; i < cols; ++i) lanes[i % 32] = std::fma(x[i], x[i], lanes[i % 32]);
  for (int i = 0; i < 8; ++i) lanes[i] = (lanes[i] + lanes[i + 8]) + (lanes[i + 16] + lanes[i + 24]);
  const float scale = 1.0f / std::sqrt(sum8(lanes) / static_cast<float>(cols) + eps);
  for (int64_t i = 0; i < cols; ++i) dst[i] = x[i] * scale * weight[i];
}

void silu_mul_row(float* dst, const float* gate, const float* up, int64_t cols) {
  for (int64_t i = 0; i < cols; ++i) dst[i] = gate[i] / (1.0f + exp_f32(-gate[i])) * up[i];
}

void exp_row(float* dst, const float* x, int64_t size, float shift, float factor) {
  for (int64_t i = 0; i < size; ++i) dst[i] = exp_f32((x[i] - shift) * factor);
}

}  // namespace ion::kernels::reference
