// Quantised weights times int8 activations, AVX512-VNNI on 256-bit vectors. vpdpbusd sums four u8 x s8
// products into int32 without saturation: codes stay unsigned (8-bit ones by flipping the sign bit) and the
// offset goes in as the accumulator's start. The integers, and so the results, equal AVX2's.
#include "panel.h"
#include "table.h"
#include "vector256.h"

namespace ion::kernels::avx512vnni {
namespace {

template <int M>
struct Rows;

struct Dot {
  template <int M, bool kOffset>
  static inline void q4(__m256i (&sums)[M], const uint8_t* nibbles, const Rows<M>& x, int64_t g) {
    const __m256i mask = _mm256_set1_epi8(15);
    for (int i = 0; i < M; ++i) {
      sums[i] = kOffset ? _mm256_set1_epi32(-8 * x.sum[i][g]) : _mm256_setzero_si256();
    }
    for (int v = 0; v < 4; ++v) {
      const __m256i both = load256(nibbles + 32 * v);
      const __m256i low = _mm256_and_si256(both, mask);
      const __m256i high = _mm256_and_si256(_mm256_srli_epi16(both, 4), mask);
      for (int i = 0; i < M; ++i) {
        const int8_t* q = x.q[i] + g * kGroup + 4 * v;
        sums[i] = _mm256_dpbusd_epi32(sums[i], low, broadcast_quad(q));
        sums[i] = _mm256_dpbusd_epi32(sums[i], high, broadcast_quad(q + 16));
      }
    }
  }

  template <int M>
  static inline void q5(__m256i (&sums)[M], const uint8_t* nibbles, const Rows<M>& x, int64_t g) {
    const __m256i mask = _mm256_set1_epi8(15), fifth = load256(nibbles + kQ4Bytes);
    for (int i = 0; i < M; ++i) sums[i] = _mm256_setzero_si256();
    for (int v = 0; v < 4; ++v) {
      const __m256i both = load256(nibbles + 32 * v);
      const __m256i low = _mm256_or_si256(_mm256_and_si256(both, mask), fifth_bits(fifth, v));
      const __m256i high =
          _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(both, 4), mask), fifth_bits(fifth, v + 4));
      for (int i = 0; i < M; ++i) {
        const int8_t* q = x.q[i] + g * kGroup + 4 * v;
        sums[i] = _mm256_dpbusd_epi32(sums[i], low, broadcast_quad(q));
        sums[i] = _mm256_dpbusd_epi32(sums[i], high, broadcast_quad(q + 16));
      }
    }
  }

  template <int M>
  static inline void q8(__m256i (&sums)[M], const uint8_t* codes, const Rows<M>& x, int64_t g) {
    for (int i = 0; i < M; ++i) sums[i] = _mm256_set1_epi32(-128 * x.sum[i][g]);
    for (int v = 0; v < 8; ++v) {
      const __m256i w = _mm256_xor_si256(load256(codes + 32 * v), _mm256_set1_epi8(-128));
      for (int i = 0; i < M; ++i) {
        sums[i] = _mm256_dpbusd_epi32(sums[i], w, broadcast_quad(x.q[i] + g * kGroup + 4 * v));
      }
    }
  }

  template <int M>
  static inline void q6(__m256i (&sums)[M], const uint8_t* group, const Rows<M>& x, int64_t g) {
    for (int h = 0; h < 2; ++h) {
      const __m256i scale =
          _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(group + 8 * h)));
      const __m256i high = load256(group + 16 + kQ4Bytes + 32 * h);
      __m256i half[M];
      for (int i = 0; i < M; ++i) half[i] = _mm256_set1_epi32(2 * x.offset_sum[i][2 * g + h]);
      for (int v = 0; v < 4; ++v) {
        const __m256i codes = q6_codes(group + 16 + 32 * v, high, h, v);
        for (int i = 0; i < M; ++i) {
          half[i] = _mm256_dpbusd_epi32(half[i], codes, broadcast_quad(x.q[i] + g * kGroup + 16 * h + 4 * v));
        }
      }
      for (int i = 0; i < M; ++i) {
        const __m256i part = _mm256_mullo_epi32(half[i], scale);
        sums[i] = h == 0 ? part : _mm256_add_epi32(sums[i], part);
      }
    }
  }

  // Codes 0..63 of quad v of half h.
  static inline __m256i q6_codes(const uint8_t* nibbles, __m256i high, int h, int v) {
    const __m256i both = load256(nibbles);
    const __m256i low = _mm256_and_si256(h ? _mm256_srli_epi16(both, 4) : both, _mm256_set1_epi8(15));
    const __m256i moved = v == 0   ? _mm256_slli_epi16(high, 4)
                          : v == 1 ? _mm256_slli_epi16(high, 2)
                          : v == 2 ? high
                                   : _mm256_srli_epi16(high, 2);
    return _mm256_or_si256(low, _mm256_and_si256(moved, _mm256_set1_epi8(0x30)));
  }
};

#include "matmul_int8.h"

}  // namespace

void matmul_int8(const MatmulTask& task) {
  matmul_any(task);
}

}  // namespace ion::kernels::avx512vnni
