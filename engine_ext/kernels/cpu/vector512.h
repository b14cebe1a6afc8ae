// Small pieces of 512-bit code that several files share. Static, as half.h; needs AVX512F.
#pragma once

#include "vector256.h"

namespace ion::kernels {

static inline __m256 lower(__m512 v) {
  return _mm512_castps512_ps256(v);
}
static inline __m256 upper(__m512 v) {
  return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1));
}

static inline float largest_lane(__m512 v) {
  return largest_lane(_mm256_max_ps(lower(v), upper(v)));
}

// exp_f32 on 16 lanes, bit for bit.
static inline __m512 exp_lanes(__m512 x) {
  const __m512 bounded = _mm512_min_ps(_mm512_set1_ps(kExpHighest), x);  // NaN in x stays
  const __m512 safe = _mm512_max_ps(_mm512_set1_ps(kExpLowest), bounded);
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(safe, _mm512_set1_ps(kLog2E)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-kLn2High), safe);
  r = _mm512_fmadd_ps(n, _mm512_set1_ps(-kLn2Low), r);
  __m512 p = _mm512_set1_ps(kExpTaylor[0]);
  for (int i = 1; i < 8; ++i) p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kExpTaylor[i]));
  const __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
  const __m512 result = _mm512_mul_ps(p, _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23)));
  const __mmask16 is_tiny = _mm512_cmp_ps_mask(x, _mm512_set1_ps(kExpLowest), _CMP_LT_OQ);
  return _mm512_maskz_mov_ps(static_cast<__mmask16>(~is_tiny), result);
}

// The lanes below `count`; count >= 16: all.
static inline __mmask16 lanes_below_16(int64_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xFFFF : (1u << count) - 1);
}

}  // namespace ion::kernels
