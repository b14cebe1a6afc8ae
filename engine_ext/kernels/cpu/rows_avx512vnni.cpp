// Row-wise operations and the quantisation of activations, AVX-512 with VNNI. Bit for bit as
// rows_reference.cpp and matmul_reference.cpp.
#include "table.h"
#include "vector512.h"

namespace ion::kernels::avx512vnni {
namespace {

inline int32_t sum_quarter(__m128i v) {
  v = _mm_add_epi32(v, _mm_unpackhi_epi64(v, v));
  return _mm_cvtsi128_si32(v) + _mm_extract_epi32(v, 1);
}

void quantize_group(const RowGroup& to, const float* x) {
  const __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
  const bool has_nan = _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0;
  const float largest = largest_lane(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
  const bool finite = !has_nan && largest <= 3.40282347e+38f;
  const __m512 inverse = _mm512_set1_ps(finite && largest > 1e-30f ? 127.0f / largest : 0.0f);
  const __m128i low = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(a, inverse)));
  const __m128i high = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(b, inverse)));
  __m256i codes = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
  if (!finite) codes = _mm256_setzero_si256();
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to.q), codes);
  const __m256i sums = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), codes);
  const int32_t first = sum_quarter(_mm256_castsi256_si128(sums));
  const int32_t second = sum_quarter(_mm256_extracti128_si256(sums, 1));
  put_scale(to, finite ? largest / 127.0f : __builtin_nanf(""), first, second);
}

}  // namespace

void quantize_row(const QuantizedRows& dst, int64_t row, const float* x) {
  for (int64_t g = 0; g < dst.groups(); ++g) quantize_group(row_group(dst, row, g), x + g * kGroup);
}

void silu_mul_row(float* dst, const float* gate, const float* up, int64_t cols) {
  const __m512 one = _mm512_set1_ps(1.0f);
  const __m512i sign = _mm512_set1_epi32(INT32_MIN);
  for (int64_t i = 0; i < cols; i += 16) {
    const __mmask16 lanes = lanes_below_16(cols - i);
    const __m512 g = _mm512_maskz_loadu_ps(lanes, gate + i);
    const __m512 negated = _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(g), sign));
    const __m512 swish = _mm512_div_ps(g, _mm512_add_ps(one, exp_lanes(negated)));
    _mm512_mask_storeu_ps(dst + i, lanes, _mm512_mul_ps(swish, _mm512_maskz_loadu_ps(lanes, up + i)));
  }
}

void exp_row(float* dst, const float* x, int64_t size, float shift, float factor) {
  for (int64_t i = 0; i < size; i += 16) {
    const __mmask16 lanes = lanes_below_16(size - i);
    const __m512 shifted = _mm512_sub_ps(_mm512_maskz_loadu_ps(lanes, x + i), _mm512_set1_ps(shift));
    _mm512_mask_storeu_ps(dst + i, lanes, exp_lanes(_mm512_mul_ps(shifted, _mm512_set1_ps(factor))));
  }
}

}  // namespace ion::kernels::avx512vnni
