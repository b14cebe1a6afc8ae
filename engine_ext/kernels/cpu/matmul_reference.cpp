// Matrix products, scalar: the specification of the reduction order, and what runs without AVX2.
//
// fast, per output: acc = 0; for each group of 32 k in order: the integer sum of code * q (exact), then
// acc = fma(float(sum), d_w * d_x, acc); a type with a minimum adds acc = fma(m, d_x * sum(q), acc). Q6_K's
// integer sum has the scales in it; Q4_K's and Q5_K's d_w is d * scale and their m is -(d_min * minimum),
// exact. exact and float weights, per output: acc = 0; for each k in order acc = fma(x, w, acc).
#include <cmath>

#include "float_math.h"
#include "panel.h"
#include "table.h"

namespace ion::kernels::reference {
namespace {

constexpr float kLargestFloat = 3.40282347e+38f;

struct GroupScale {
  float d, inverse;
  bool finite;
};

GroupScale scale_of(const float* x) {
  float largest = 0.0f;
  bool has_nan = false;
  for (int i = 0; i < kGroup; ++i) {
    const float magnitude = std::fabs(x[i]);
    has_nan |= magnitude != magnitude;
    largest = magnitude > largest ? magnitude : largest;
  }
  const bool finite = !has_nan && largest <= kLargestFloat;
  return {largest / 127.0f, largest > 1e-30f ? 127.0f / largest : 0.0f, finite};
}

int64_t group_dot(const PanelGroup& w, const int8_t* q) {
  int32_t sums[2] = {0, 0};
  for (int i = 0; i < kGroup; ++i) sums[i / 16] += w.code[i] * q[i];
  return sums[0] * w.scale[0] + sums[1] * w.scale[1];
}

float dot_int8(const uint8_t* panel, DType dtype, int r, const QuantizedRows& xq, int64_t row) {
  float acc = 0.0f;
  for (int64_t g = 0; g < xq.groups(); ++g) {
    const PanelGroup w = read_group(panel, dtype, r, g);
    const RowGroup x = row_group(xq, row, g);
    acc = std::fma(static_cast<float>(group_dot(w, x.q)), w.d * *x.d, acc);
    if (has_minimum(dtype)) acc = std::fma(w.m, *x.d_sum, acc);
  }
  return acc;
}

float dot_float(const uint8_t* panel, DType dtype, int r, const float* x, int64_t k) {
  float acc = 0.0f, w[kGroup];
  for (int64_t first = 0; first < k; first += kGroup) {
    const int64_t count = k - first < kGroup ? k - first : kGroup;
    unpack_values(w, panel, dtype, r, first, count);
    for (int64_t i = 0; i < count; ++i) acc = std::fma(x[first + i], w[i], acc);
  }
  return acc;
}

// dst[row, column] = dot(panel, r, row) over the task's rectangle.
template <typename Dot>
void for_each_output(const MatmulTask& task, Dot dot) {
  const PackedMatrix& w = *task.out->w;
  for (int64_t p = task.panel_begin; p < task.panel_end; ++p) {
    const uint8_t* panel = reinterpret_cast<const uint8_t*>(w.data) + panel_offset(w.dtype, w.k, p);
    for (int64_t row = task.row_begin; row < task.row_end; ++row) {
      for (int r = 0; r < kPanelRows && p * kPanelRows + r < w.n; ++r) {
        task.out->dst[row * task.out->dst_stride + p * kPanelRows + r] = dot(panel, r, row);
      }
    }
  }
}

}  // namespace

void quantize_row(const QuantizedRows& dst, int64_t row, const float* x) {
  for (int64_t g = 0; g < dst.groups(); ++g, x += kGroup) {
    const GroupScale scale = scale_of(x);
    const RowGroup to = row_group(dst, row, g);
    int32_t halves[2] = {0, 0};
    for (int i = 0; i < kGroup; ++i) {
      const long code = scale.finite ? std::lrint(x[i] * scale.inverse) : 0;
      to.q[i] = static_cast<int8_t>(code);
      halves[i / 16] += static_cast<int32_t>(code);
    }
    put_scale(to, scale.finite ? scale.d : std::nanf(""), halves[0], halves[1]);
  }
}

void matmul_int8(const MatmulTask& task) {
  const DType dtype = task.out->w->dtype;
  for_each_output(task, [&](const uint8_t* panel, int r, int64_t row) {
    return dot_int8(panel, dtype, r, *task.xq, row);
  });
}

void matmul_float(const MatmulTask& task) {
  const PackedMatrix& w = *task.out->w;
  for_each_output(task, [&](const uint8_t* panel, int r, int64_t row) {
    return dot_float(panel, w.dtype, r, task.x + row * task.x_stride, w.k);
  });
}

}  // namespace ion::kernels::reference
