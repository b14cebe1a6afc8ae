// Quantised weights times int8 activations, AVX2. The integer sums:
//   4-bit: code (0..15) x q (|q| <= 127): a pair is at most 3,810, so 8 pairs fit in int16 and one widening
//          add serves a whole group (165-172 GOP/s where s8 x s8 reaches 133-137 on the same two cores)
//   5-bit: code (0..31): a pair is at most 7,874, so 4 pairs fit in int16 and a group is widened twice
//   8-bit: |code| x sign(q, code), since vpmaddubsw takes one unsigned side; widened every time
//   6-bit: code (0..63): a pair is at most 16,002, so 2 pairs fit in int16
#include "panel.h"
#include "table.h"
#include "vector256.h"

namespace ion::kernels::avx2 {
namespace {

struct Wide {
  static constexpr int kPanels = 1, kRows = 4;
  using Float = __m256;
  using Int = __m256i;

  struct Panels {
    const uint8_t* at;
    Panels(const uint8_t* first, int64_t) : at(first) {}
    Panels operator+(int64_t bytes) const { return {at + bytes, 0}; }
    void operator+=(int64_t bytes) { at += bytes; }
  };

  static Float halves(Panels w) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(w.at)));
  }
  static Float bytes(Panels w) { return load_u8x8(w.at); }
  static Float zero() { return _mm256_setzero_ps(); }
  static Float broadcast(const float* at) { return _mm256_broadcast_ss(at); }
  static Float to_float(Int v) { return _mm256_cvtepi32_ps(v); }
  static Float mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
  static Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
  static Float fnma(Float a, Float b, Float c) { return _mm256_fnmadd_ps(a, b, c); }
  static void store(float* dst, Float values, int64_t columns) { store_columns(dst, values, columns); }
};

template <int M>
class Rows;

struct Dot {
  template <int M, bool kOffset>
  static inline void q4(__m256i (&sums)[M], Wide::Panels nibbles, const Rows<M>& x) {
    const __m256i mask = _mm256_set1_epi8(15);
    __m256i pairs[M];
    for (int v = 0; v < 4; ++v) {
      const __m256i both = load256(nibbles.at + 32 * v);
      const __m256i low = _mm256_and_si256(both, mask);
      const __m256i high = _mm256_and_si256(_mm256_srli_epi16(both, 4), mask);
      for (int i = 0; i < M; ++i) {
        const int8_t* q = x.q(i) + 4 * v;
        const __m256i a = _mm256_maddubs_epi16(low, broadcast_quad(q));
        const __m256i b = _mm256_maddubs_epi16(high, broadcast_quad(q + 16));
        pairs[i] = v == 0 ? _mm256_add_epi16(a, b) : _mm256_add_epi16(pairs[i], _mm256_add_epi16(a, b));
      }
    }
    for (int i = 0; i < M; ++i) {
      sums[i] = _mm256_madd_epi16(pairs[i], _mm256_set1_epi16(1));
      if (kOffset) sums[i] = _mm256_add_epi32(sums[i], _mm256_set1_epi32(*x.offset(i)));
    }
  }

  // Octets 2h and 2h + 1 make the half that fits in int16. kOffset: of 16.
  template <int M, bool kOffset>
  static inline void q5(__m256i (&sums)[M], Wide::Panels nibbles, const Rows<M>& x) {
    const __m256i mask = _mm256_set1_epi8(15), fifth = load256(nibbles.at + kQ4Bytes);
    for (int h = 0; h < 2; ++h) {
      __m256i pairs[M];
      for (int v = 2 * h; v < 2 * h + 2; ++v) {
        const __m256i both = load256(nibbles.at + 32 * v);
        const __m256i low = _mm256_or_si256(_mm256_and_si256(both, mask), fifth_bits(fifth, v));
        const __m256i high =
            _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(both, 4), mask), fifth_bits(fifth, v + 4));
        for (int i = 0; i < M; ++i) {
          const int8_t* q = x.q(i) + 4 * v;
          const __m256i a = _mm256_maddubs_epi16(low, broadcast_quad(q));
          const __m256i b = _mm256_maddubs_epi16(high, broadcast_quad(q + 16));
          pairs[i] = v == 2 * h ? _mm256_add_epi16(a, b) : _mm256_add_epi16(pairs[i], _mm256_add_epi16(a, b));
        }
      }
      for (int i = 0; i < M; ++i) {
        const __m256i wide = _mm256_madd_epi16(pairs[i], _mm256_set1_epi16(1));
        sums[i] = h == 0 ? wide : _mm256_add_epi32(sums[i], wide);
      }
    }
    for (int i = 0; i < M && kOffset; ++i) {
      sums[i] = _mm256_add_epi32(sums[i], _mm256_set1_epi32(2 * *x.offset(i)));
    }
  }

  template <int M>
  static inline void q8(__m256i (&sums)[M], Wide::Panels codes, const Rows<M>& x) {
    for (int v = 0; v < 8; ++v) {
      const __m256i w = load256(codes.at + 32 * v);
      const __m256i magnitude = _mm256_abs_epi8(w);
      for (int i = 0; i < M; ++i) {
        const __m256i q = _mm256_sign_epi8(broadcast_quad(x.q(i) + 4 * v), w);
        const __m256i wide = _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude, q), _mm256_set1_epi16(1));
        sums[i] = v == 0 ? wide : _mm256_add_epi32(sums[i], wide);
      }
    }
  }

  // Half h of a group (16 k): codes * q, times the row's scale, less 32 * sum(q) times the scale. The offset
  // comes as two equal int16 of -16 * sum(q).
  template <int M>
  static inline void q6(__m256i (&sums)[M], Wide::Panels group, const Rows<M>& x) {
    for (int h = 0; h < 2; ++h) {
      const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(group.at + 8 * h));
      const __m256i scale = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(bytes, bytes));
      const __m256i high = load256(group.at + 16 + kQ4Bytes + 32 * h);
      for (int i = 0; i < M; ++i) {
        const __m256i offset = _mm256_set1_epi16(x.offset_sum(i)[h]);
        const __m256i part = _mm256_madd_epi16(offset, scale);
        sums[i] = h == 0 ? part : _mm256_add_epi32(sums[i], part);
      }
      for (int v = 0; v < 4; v += 2) {
        const __m256i a = q6_codes(group.at + 16 + 32 * v, high, h, v);
        const __m256i b = q6_codes(group.at + 16 + 32 * (v + 1), high, h, v + 1);
        for (int i = 0; i < M; ++i) {
          const int8_t* q = x.q(i) + 16 * h + 4 * v;
          const __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(a, broadcast_quad(q)),
                                                 _mm256_maddubs_epi16(b, broadcast_quad(q + 4)));
          sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(pairs, scale));
        }
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

}  // namespace ion::kernels::avx2
