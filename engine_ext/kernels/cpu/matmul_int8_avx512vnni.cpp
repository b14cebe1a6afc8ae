// Quantised weights times int8 activations, AVX512-VNNI: two panels side by side in 512 bits. vpdpbusd sums
// four u8 x s8 products into int32 without saturation: codes stay unsigned (8-bit ones by flipping the sign
// bit) and the offset goes in as the accumulator's start. The integers, and so the results, equal AVX2's.
#include "panel.h"
#include "table.h"
#include "vector256.h"

namespace ion::kernels::avx512vnni {
namespace {

struct Wide {
  static constexpr int kPanels = 2, kRows = 8;
  using Float = __m512;
  using Int = __m512i;

  // The same place in both panels of a pair. Of a neighbour that does not exist anything is read and nothing
  // stored.
  struct Panels {
    const uint8_t *at, *other;
    Panels(const uint8_t* first, int64_t block_bytes) : at(first), other(first + block_bytes) {}
    Panels operator+(int64_t bytes) const { return {at + bytes, other - at}; }
    void operator+=(int64_t bytes) { at += bytes, other += bytes; }
  };

  static Int load(Panels w) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(load256(w.at)), load256(w.other), 1);
  }
  static __m256i load_half(Panels w) {  // 16 bytes of each
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(pointer(w.at))),
                                   _mm_loadu_si128(pointer(w.other)), 1);
  }
  static __m128i load_quarter(Panels w) {  // 8 bytes of each
    return _mm_unpacklo_epi64(_mm_loadl_epi64(pointer(w.at)), _mm_loadl_epi64(pointer(w.other)));
  }
  static Float halves(Panels w) { return _mm512_cvtph_ps(load_half(w)); }
  static Float bytes(Panels w) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load_quarter(w))); }
  static Float zero() { return _mm512_setzero_ps(); }
  static Float broadcast(const float* at) { return _mm512_set1_ps(*at); }
  static Float to_float(Int v) { return _mm512_cvtepi32_ps(v); }
  static Float mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
  static Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
  static Float fnma(Float a, Float b, Float c) { return _mm512_fnmadd_ps(a, b, c); }
  static void store(float* dst, Float values, int64_t columns) {
    if (columns >= 16) return _mm512_storeu_ps(dst, values);
    _mm512_mask_storeu_ps(dst, static_cast<__mmask16>((1u << columns) - 1), values);
  }

 private:
  static const __m128i* pointer(const uint8_t* at) { return reinterpret_cast<const __m128i*>(at); }
};

template <int M>
class Rows;

inline __m512i quad(const int8_t* at) {
  int32_t value;
  std::memcpy(&value, at, sizeof value);
  return _mm512_set1_epi32(value);
}

struct Dot {
  template <int M, bool kOffset>
  static inline void q4(__m512i (&sums)[M], Wide::Panels nibbles, const Rows<M>& x) {
    const __m512i mask = _mm512_set1_epi8(15);
    for (int i = 0; i < M; ++i) sums[i] = kOffset ? _mm512_set1_epi32(*x.offset(i)) : _mm512_setzero_si512();
    for (int v = 0; v < 4; ++v) {
      const __m512i both = Wide::load(nibbles + 32 * v);
      dot<M>(sums, _mm512_and_si512(both, mask), x, 4 * v);
      dot<M>(sums, _mm512_and_si512(_mm512_srli_epi16(both, 4), mask), x, 4 * v + 16);
    }
  }

  // kOffset: of 16.
  template <int M, bool kOffset>
  static inline void q5(__m512i (&sums)[M], Wide::Panels nibbles, const Rows<M>& x) {
    const __m512i mask = _mm512_set1_epi8(15), fifth = Wide::load(nibbles + kQ4Bytes);
    for (int i = 0; i < M; ++i) {
      sums[i] = kOffset ? _mm512_set1_epi32(2 * *x.offset(i)) : _mm512_setzero_si512();
    }
    for (int v = 0; v < 4; ++v) {
      const __m512i both = Wide::load(nibbles + 32 * v), above = _mm512_slli_epi16(fifth, 4 - v);
      dot<M>(sums, _mm512_or_si512(_mm512_and_si512(both, mask), fifth_bit(above)), x, 4 * v);
      const __m512i high = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
      dot<M>(sums, _mm512_or_si512(high, fifth_bit(_mm512_srli_epi16(fifth, v))), x, 4 * v + 16);
    }
  }

  template <int M>
  static inline void q8(__m512i (&sums)[M], Wide::Panels codes, const Rows<M>& x) {
    for (int i = 0; i < M; ++i) sums[i] = _mm512_slli_epi32(_mm512_set1_epi32(*x.offset(i)), 4);
    for (int v = 0; v < 8; ++v) {
      dot<M>(sums, _mm512_xor_si512(Wide::load(codes + 32 * v), _mm512_set1_epi8(-128)), x, 4 * v);
    }
  }

  template <int M>
  static inline void q6(__m512i (&sums)[M], Wide::Panels group, const Rows<M>& x) {
    for (int h = 0; h < 2; ++h) {
      const __m512i scale = _mm512_cvtepi8_epi32(Wide::load_quarter(group + 8 * h));
      const __m512i high = Wide::load(group + 16 + kQ4Bytes + 32 * h);
      __m512i half[M];
      for (int i = 0; i < M; ++i) half[i] = _mm512_set1_epi32(2 * x.offset_sum(i)[h]);
      for (int v = 0; v < 4; ++v) {
        dot<M>(half, q6_codes(Wide::load(group + 16 + 32 * v), high, h, v), x, 16 * h + 4 * v);
      }
      for (int i = 0; i < M; ++i) {
        const __m512i part = _mm512_mullo_epi32(half[i], scale);
        sums[i] = h == 0 ? part : _mm512_add_epi32(sums[i], part);
      }
    }
  }

 private:
  // sums += the codes of one quad times the activations at `at`
  template <int M>
  static inline void dot(__m512i (&sums)[M], __m512i codes, const Rows<M>& x, int at) {
    for (int i = 0; i < M; ++i) sums[i] = _mm512_dpbusd_epi32(sums[i], codes, quad(x.q(i) + at));
  }

  static inline __m512i fifth_bit(__m512i moved) { return _mm512_and_si512(moved, _mm512_set1_epi8(16)); }

  // Codes 0..63 of quad v of half h.
  static inline __m512i q6_codes(__m512i both, __m512i high, int h, int v) {
    const __m512i low = _mm512_and_si512(h ? _mm512_srli_epi16(both, 4) : both, _mm512_set1_epi8(15));
    const __m512i moved = v == 0   ? _mm512_slli_epi16(high, 4)
                          : v == 1 ? _mm512_slli_epi16(high, 2)
                          : v == 2 ? high
                                   : _mm512_srli_epi16(high, 2);
    return _mm512_or_si512(low, _mm512_and_si512(moved, _mm512_set1_epi8(0x30)));
  }
};

#include "matmul_int8.h"

}  // namespace

void matmul_int8(const MatmulTask& task) {
  matmul_any(task);
}

}  // namespace ion::kernels::avx512vnni
