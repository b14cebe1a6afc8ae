// Small pieces of 256-bit code that several files share. Static, as half.h; needs AVX2, FMA and F16C.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "float_math.h"

namespace ion::kernels {

static inline __m256i load256(const void* at) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(at));
}

static inline __m256i broadcast_quad(const int8_t* at) {
  int32_t quad;
  std::memcpy(&quad, at, sizeof quad);
  return _mm256_set1_epi32(quad);
}

// 8 bytes as floats.
static inline __m256 load_u8x8(const uint8_t* at) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at))));
}

// The fifth bits of quad q (panel.h), each in its place above a nibble.
static inline __m256i fifth_bits(__m256i bits, int q) {
  const __m256i moved = q < 4 ? _mm256_slli_epi16(bits, 4 - q) : _mm256_srli_epi16(bits, q - 4);
  return _mm256_and_si256(moved, _mm256_set1_epi8(16));
}

// In the order of sum8.
static inline float sum_lanes(__m256 v) {
  const __m128 halves = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 quarters = _mm_add_ps(halves, _mm_movehl_ps(halves, halves));
  return _mm_cvtss_f32(_mm_add_ss(quarters, _mm_shuffle_ps(quarters, quarters, 1)));
}

static inline float largest_lane(__m256 v) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}

// The lanes below `count`; count <= 0: none, >= 8: all.
static inline __m256i lanes_below(int64_t count) {
  const int32_t bounded = count > 8 ? 8 : static_cast<int32_t>(count);
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(bounded), lane);
}

// A panel's 8 results, of which the first `columns` exist.
static inline void store_columns(float* dst, __m256 values, int64_t columns) {
  if (columns >= 8) return _mm256_storeu_ps(dst, values);
  _mm256_maskstore_ps(dst, lanes_below(columns), values);
}

// exp_f32 on 8 lanes, bit for bit.
static inline __m256 exp_lanes(__m256 x) {
  const __m256 bounded = _mm256_min_ps(_mm256_set1_ps(kExpHighest), x);  // NaN in x stays
  const __m256 safe = _mm256_max_ps(_mm256_set1_ps(kExpLowest), bounded);
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(safe, _mm256_set1_ps(kLog2E)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-kLn2High), safe);
  r = _mm256_fmadd_ps(n, _mm256_set1_ps(-kLn2Low), r);
  __m256 p = _mm256_set1_ps(kExpTaylor[0]);
  for (int i = 1; i < 8; ++i) p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExpTaylor[i]));
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  const __m256 result = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
  return _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(kExpLowest), _CMP_LT_OQ), result);
}

}  // namespace ion::kernels
