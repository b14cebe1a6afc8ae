// Scalar mathematics that every instruction set computes with the same operations in the same order, hence to
// the same bits. Static, as half.h.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace ion::kernels {

constexpr float kLog2E = 0x1.715476p+0f;
constexpr float kLn2High = 0x1.62e4p-1f;      // 15 bits: n * kLn2High is exact
constexpr float kLn2Low = 0x1.7f7d1cf8p-20f;  // ln 2 - kLn2High
constexpr float kExpLowest = -87.0f;          // below: 0, so that no result is subnormal
constexpr float kExpHighest = 88.0f;          // above: e^88
constexpr float kExpTaylor[8] = {1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};

// e^x: n = round(x / ln 2), then a Taylor polynomial of degree 7 on |r| <= ln 2 / 2 (remainder 6e-9).
// Relative error under 2e-7 on [-87, 88]; NaN stays NaN; exp_f32(0) == 1.
static inline float exp_f32(float x) {
  if (x != x) return x;
  if (x < kExpLowest) return 0.0f;
  const float bounded = x > kExpHighest ? kExpHighest : x;
  const float n = std::nearbyint(bounded * kLog2E);
  const float r = std::fma(n, -kLn2Low, std::fma(n, -kLn2High, bounded));
  float p = kExpTaylor[0];
  for (int i = 1; i < 8; ++i) p = std::fma(p, r, kExpTaylor[i]);
  return p * std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
}

// The sum of 8 lanes, in the order of the vector code: halves, quarters, eighths.
static inline float sum8(const float* v) {
  const float a = v[0] + v[4], b = v[1] + v[5], c = v[2] + v[6], d = v[3] + v[7];
  return (a + c) + (b + d);
}

}  // namespace ion::kernels
