// Row-wise operations and the quantisation of activations, AVX2. Bit for bit as rows_reference.cpp and
// matmul_reference.cpp; tails go through masked loads, so that every element meets the same lane.
#include <cmath>

#include "panel.h"
#include "table.h"
#include "vector256.h"

namespace ion::kernels::avx2 {
namespace {

inline __m256 load_lanes(const float* at, int64_t count) {
  return count >= 8 ? _mm256_loadu_ps(at) : _mm256_maskload_ps(at, lanes_below(count));
}

inline __m256 magnitude(__m256 v) {
  return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v);
}

inline int32_t sum_int_lanes(__m256i v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_add_epi32(s, _mm_unpackhi_epi64(s, s));
  return _mm_cvtsi128_si32(s) + _mm_extract_epi32(s, 1);
}

// Four int32 vectors in order to 32 int8.
inline __m256i narrow(const __m256i (&v)[4]) {
  const __m256i words = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
  return _mm256_permutevar8x32_epi32(words, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

struct Group {
  __m256 x[4];
  float largest;
  bool finite;
};

inline Group load_group(const float* x) {
  Group group;
  __m256 largest = _mm256_setzero_ps(), unordered = _mm256_setzero_ps();
  for (int v = 0; v < 4; ++v) {
    group.x[v] = _mm256_loadu_ps(x + 8 * v);
    largest = _mm256_max_ps(magnitude(group.x[v]), largest);
    unordered = _mm256_or_ps(unordered, _mm256_cmp_ps(group.x[v], group.x[v], _CMP_UNORD_Q));
  }
  group.largest = largest_lane(largest);
  group.finite = _mm256_movemask_ps(unordered) == 0 && group.largest <= 3.40282347e+38f;
  return group;
}

void quantize_group(const RowGroup& to, const float* x) {
  const Group group = load_group(x);
  const float inverse = group.finite && group.largest > 1e-30f ? 127.0f / group.largest : 0.0f;
  __m256i codes[4];
  for (int v = 0; v < 4; ++v) {
    codes[v] = _mm256_cvtps_epi32(_mm256_mul_ps(group.x[v], _mm256_set1_ps(inverse)));
    if (!group.finite) codes[v] = _mm256_setzero_si256();
  }
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to.q), narrow(codes));
  const int32_t low = sum_int_lanes(_mm256_add_epi32(codes[0], codes[1]));
  const int32_t high = sum_int_lanes(_mm256_add_epi32(codes[2], codes[3]));
  put_scale(to, group.finite ? group.largest / 127.0f : __builtin_nanf(""), low, high);
}

}  // namespace

void quantize_row(const QuantizedRows& dst, int64_t row, const float* x) {
  for (int64_t g = 0; g < dst.groups(); ++g) quantize_group(row_group(dst, row, g), x + g * kGroup);
}

void rms_norm_row(float* dst, const float* x, const float* weight, int64_t cols, float eps) {
  __m256 lanes[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
  for (int64_t i = 0; i < cols; i += 32) {
    for (int v = 0; v < 4 && i + 8 * v < cols; ++v) {
      const __m256 value = load_lanes(x + i + 8 * v, cols - i - 8 * v);
      lanes[v] = _mm256_fmadd_ps(value, value, lanes[v]);
    }
  }
  const __m256 sums = _mm256_add_ps(_mm256_add_ps(lanes[0], lanes[1]), _mm256_add_ps(lanes[2], lanes[3]));
  const float scale = 1.0f / std::sqrt(sum_lanes(sums) / static_cast<float>(cols) + eps);
  for (int64_t i = 0; i < cols; i += 8) {
    const __m256 scaled = _mm256_mul_ps(load_lanes(x + i, cols - i), _mm256_set1_ps(scale));
    store_columns(dst + i, _mm256_mul_ps(scaled, load_lanes(weight + i, cols - i)), cols - i);
  }
}

void silu_mul_row(float* dst, const float* gate, const float* up, int64_t cols) {
  const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f);
  for (int64_t i = 0; i < cols; i += 8) {
    const __m256 g = load_lanes(gate + i, cols - i);
    const __m256 denominator = _mm256_add_ps(one, exp_lanes(_mm256_xor_ps(g, sign)));
    const __m256 value = _mm256_mul_ps(_mm256_div_ps(g, denominator), load_lanes(up + i, cols - i));
    store_columns(dst + i, value, cols - i);
  }
}

void exp_row(float* dst, const float* x, int64_t size, float shift, float factor) {
  for (int64_t i = 0; i < size; i += 8) {
    const __m256 shifted = _mm256_sub_ps(load_lanes(x + i, size - i), _mm256_set1_ps(shift));
    store_columns(dst + i, exp_lanes(_mm256_mul_ps(shifted, _mm256_set1_ps(factor))), size - i);
  }
}

}  // namespace ion::kernels::avx2
