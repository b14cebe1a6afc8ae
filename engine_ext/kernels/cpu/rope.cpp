// Rotary position embedding: the angles once a step, the rotation per layer. Elementwise, so one portable
// loop serves every instruction set with the same bits.
#include <cmath>

#include "table.h"

namespace ion::kernels {
namespace {

constexpr int64_t kSerialElements = 32 * 1024;

// In double: at position 100,000 a float angle would be off by 4e-3.
void angles_of(float* dst, int32_t position, const RopeParams& params) {
  for (int32_t i = 0; i < params.rotary_dim / 2; ++i) {
    const double exponent = -2.0 * i / params.rotary_dim;
    double frequency = std::pow(static_cast<double>(params.theta), exponent);
    if (params.freq_factors != nullptr) frequency /= static_cast<double>(params.freq_factors[i]);
    const double angle =
        static_cast<double>(position) * static_cast<double>(params.position_scale) * frequency;
    dst[2 * i] = static_cast<float>(std::cos(angle)) * params.magnitude;
    dst[2 * i + 1] = static_cast<float>(std::sin(angle)) * params.magnitude;
  }
}

void rotate_head(float* x, const float* angles, int32_t half, RopeForm form) {
  const int32_t first = form == RopeForm::normal ? 2 : 1, second = form == RopeForm::normal ? 1 : half;
  for (int32_t i = 0; i < half; ++i) {
    float* a = x + first * i;
    const float cosine = angles[2 * i], sine = angles[2 * i + 1], x0 = a[0], x1 = a[second];
    a[0] = x0 * cosine - x1 * sine;
    a[second] = x0 * sine + x1 * cosine;
  }
}

}  // namespace

void rope_angles(float* angles, const int32_t* positions, int64_t m, const RopeParams& params,
                 ThreadPool& pool) {
  const auto rows = [=, &params](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) angles_of(angles + r * params.rotary_dim, positions[r], params);
  };
  if (m < 8) return rows(0, m);
  pool.parallel_for(m, rows);
}

void rope(float* x, int64_t m, int64_t num_heads, int64_t head_dim, int64_t row_stride, const float* angles,
          const RopeParams& params, ThreadPool& pool) {
  const auto rows = [=, &params](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t h = 0; h < num_heads; ++h) {
        rotate_head(x + r * row_stride + h * head_dim, angles + r * params.rotary_dim, params.rotary_dim / 2,
                    params.form);
      }
    }
  };
  if (m * num_heads * head_dim < kSerialElements) return rows(0, m);
  pool.parallel_for(m, rows);
}

}  // namespace ion::kernels
