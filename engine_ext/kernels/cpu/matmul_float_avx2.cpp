// Weights as float32 times float32 activations, AVX2 with FMA: `exact`, and float weights in either numerics.
//
// Four panels (32 columns) are dequantised 64 k at a time into 8 KiB on the stack and used for all rows, two
// at a time: 8 independent chains of FMA. Per output the chain over k is the scalar one.
#include "panel.h"
#include "table.h"
#include "vector256.h"

namespace ion::kernels::avx2 {
namespace {

constexpr int kPanels = 4;    // of a strip
constexpr int kMaxRows = 64;  // of a task; matmul.cpp's blocks are at most this
constexpr int64_t kChunk = 64;

struct Strip {
  alignas(32) float w[kPanels][kChunk][8];
  alignas(32) float acc[kMaxRows][kPanels][8];
};

inline __m256 load_f16x8(const void* at) {
  return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(at)));
}

inline __m256 load_bf16x8(const void* at) {
  const __m128i halves = _mm_loadu_si128(static_cast<const __m128i*>(at));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

void unpack_floats(float (*w)[8], const uint8_t* panel, DType dtype, int64_t first, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = 8 * (first + i);
    const __m256 values = dtype == DType::F32   ? _mm256_loadu_ps(reinterpret_cast<const float*>(panel) + at)
                          : dtype == DType::F16 ? load_f16x8(panel + 2 * at)
                                                : load_bf16x8(panel + 2 * at);
    _mm256_store_ps(w[i], values);
  }
}

// Byte j of every lane (one row each) as an integer.
inline __m256i lane_byte(__m256i bytes, int j) {
  return _mm256_and_si256(_mm256_srl_epi32(bytes, _mm_cvtsi32_si128(8 * j)), _mm256_set1_epi32(255));
}

// The 4 k-values of a quad: w = scale * (code - offset) + m.
template <bool kHasMin>
inline void put_quad(float (*w)[8], __m256i bytes, int offset, __m256 scale, __m256 m) {
  for (int j = 0; j < 4; ++j) {
    const __m256i code = _mm256_sub_epi32(lane_byte(bytes, j), _mm256_set1_epi32(offset));
    __m256 value = _mm256_mul_ps(scale, _mm256_cvtepi32_ps(code));
    if (kHasMin) value = _mm256_add_ps(value, m);
    _mm256_store_ps(w[j], value);
  }
}

template <bool kHasMin>
void unpack_q4(float (*w)[8], const uint8_t* group) {
  const __m256 d = load_f16x8(group), m = kHasMin ? load_f16x8(group + kHalfRow) : _mm256_setzero_ps();
  const uint8_t* nibbles = group + (kHasMin ? 2 : 1) * kHalfRow;
  const __m256i mask = _mm256_set1_epi8(15);
  for (int v = 0; v < 4; ++v) {
    const __m256i both = load256(nibbles + 32 * v);
    put_quad<kHasMin>(w + 4 * v, _mm256_and_si256(both, mask), kHasMin ? 0 : 8, d, m);
    put_quad<kHasMin>(w + 16 + 4 * v, _mm256_and_si256(_mm256_srli_epi16(both, 4), mask), kHasMin ? 0 : 8, d,
                      m);
  }
}

template <bool kHasMin>
void unpack_q5(float (*w)[8], const uint8_t* group) {
  const __m256 d = load_f16x8(group), m = kHasMin ? load_f16x8(group + kHalfRow) : _mm256_setzero_ps();
  const uint8_t* nibbles = group + (kHasMin ? 2 : 1) * kHalfRow;
  const __m256i mask = _mm256_set1_epi8(15), fifth = load256(nibbles + kQ4Bytes);
  constexpr int kOffset = kHasMin ? 0 : 16;
  for (int v = 0; v < 4; ++v) {
    const __m256i both = load256(nibbles + 32 * v);
    const __m256i low = _mm256_and_si256(both, mask);
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(both, 4), mask);
    put_quad<kHasMin>(w + 4 * v, _mm256_or_si256(low, fifth_bits(fifth, v)), kOffset, d, m);
    put_quad<kHasMin>(w + 16 + 4 * v, _mm256_or_si256(high, fifth_bits(fifth, v + 4)), kOffset, d, m);
  }
}

void unpack_q8(float (*w)[8], const uint8_t* group) {
  const __m256 d = load_f16x8(group);
  for (int v = 0; v < 8; ++v) {
    const __m256i codes = _mm256_xor_si256(load256(group + kHalfRow + 32 * v), _mm256_set1_epi8(-128));
    put_quad<false>(w + 4 * v, codes, 128, d, _mm256_setzero_ps());
  }
}

void unpack_q6(float (*w)[8], const uint8_t* panel, int64_t g) {
  const uint8_t* super = panel + g / kSuperGroups * 2 * kQ6SuperBytes;
  const uint8_t* group = super + g % kSuperGroups * kQ6GroupBytes;
  const __m256 d = load_f16x8(super + kSuperGroups * kQ6GroupBytes);
  for (int q = 0; q < 8; ++q) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(group + q / 4 * 8));
    const __m256 scale = _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)));
    const __m256i both = load256(group + 16 + 32 * (q % 4));
    const __m256i low = _mm256_and_si256(q < 4 ? both : _mm256_srli_epi16(both, 4), _mm256_set1_epi8(15));
    const __m256i high =
        _mm256_srl_epi16(load256(group + 16 + kQ4Bytes + q / 4 * 32), _mm_cvtsi32_si128(q % 4 * 2));
    const __m256i top = _mm256_slli_epi16(_mm256_and_si256(high, _mm256_set1_epi8(3)), 4);
    put_quad<false>(w + 4 * q, _mm256_or_si256(low, top), 32, scale, _mm256_setzero_ps());
  }
}

template <bool kHasFifth>
void unpack_q45_k(float (*w)[8], const uint8_t* panel, int64_t g) {
  constexpr int64_t kGroupBytes = kHasFifth ? kQ5KGroupBytes : kQ4KGroupBytes;
  const uint8_t* super = panel + g / kSuperGroups * 2 * (kSuperGroups * kGroupBytes + 2 * kHalfRow);
  const uint8_t* group = super + g % kSuperGroups * kGroupBytes;
  const uint8_t* halves = super + kSuperGroups * kGroupBytes;
  const __m256 scale = _mm256_mul_ps(load_f16x8(halves), load_u8x8(group));
  const __m256 minimum = _mm256_mul_ps(load_f16x8(halves + kHalfRow), load_u8x8(group + 8));
  const __m256 m = _mm256_xor_ps(minimum, _mm256_set1_ps(-0.0f));
  const __m256i mask = _mm256_set1_epi8(15);
  const __m256i fifth = kHasFifth ? load256(group + 16 + kQ4Bytes) : _mm256_setzero_si256();
  for (int v = 0; v < 4; ++v) {
    const __m256i both = load256(group + 16 + 32 * v);
    const __m256i low = _mm256_and_si256(both, mask);
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(both, 4), mask);
    put_quad<true>(w + 4 * v, _mm256_or_si256(low, fifth_bits(fifth, v)), 0, scale, m);
    put_quad<true>(w + 16 + 4 * v, _mm256_or_si256(high, fifth_bits(fifth, v + 4)), 0, scale, m);
  }
}

void unpack_group(float (*w)[8], const uint8_t* panel, DType dtype, int64_t g) {
  switch (dtype) {
    case DType::Q4_0:
      return unpack_q4<false>(w, panel + g * panel_block_stride(dtype));
    case DType::Q4_1:
      return unpack_q4<true>(w, panel + g * panel_block_stride(dtype));
    case DType::Q5_0:
      return unpack_q5<false>(w, panel + g * panel_block_stride(dtype));
    case DType::Q5_1:
      return unpack_q5<true>(w, panel + g * panel_block_stride(dtype));
    case DType::Q8_0:
      return unpack_q8(w, panel + g * panel_block_stride(dtype));
    case DType::Q4_K:
      return unpack_q45_k<false>(w, panel, g);
    case DType::Q5_K:
      return unpack_q45_k<true>(w, panel, g);
    case DType::Q6_K:
      return unpack_q6(w, panel, g);
    case DType::F32:
    case DType::F16:
    case DType::BF16:
      break;
  }
  std::abort();  // float panels have no groups
}

void unpack_chunk(float (*w)[8], const uint8_t* panel, DType dtype, int64_t first, int64_t count) {
  if (!is_quantized(dtype)) return unpack_floats(w, panel, dtype, first, count);
  for (int64_t i = 0; i < count; i += kGroup) unpack_group(w + i, panel, dtype, (first + i) / kGroup);
}

// acc[row .. row + M) += x[.., first .. first + count) * w
template <int M>
void accumulate(Strip& strip, int64_t row, const float* x, int64_t x_stride, int64_t count) {
  __m256 acc[M][kPanels];
  for (int i = 0; i < M; ++i) {
    for (int p = 0; p < kPanels; ++p) acc[i][p] = _mm256_load_ps(strip.acc[row + i][p]);
  }
  for (int64_t k = 0; k < count; ++k) {
    for (int i = 0; i < M; ++i) {
      const __m256 value = _mm256_broadcast_ss(x + i * x_stride + k);
      for (int p = 0; p < kPanels; ++p) {
        acc[i][p] = _mm256_fmadd_ps(value, _mm256_load_ps(strip.w[p][k]), acc[i][p]);
      }
    }
  }
  for (int i = 0; i < M; ++i) {
    for (int p = 0; p < kPanels; ++p) _mm256_store_ps(strip.acc[row + i][p], acc[i][p]);
  }
}

void clear(Strip& strip, int64_t num_rows) {
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int p = 0; p < kPanels; ++p) _mm256_store_ps(strip.acc[r][p], _mm256_setzero_ps());
  }
}

void store(const Strip& strip, const MatmulTask& task, int64_t first_panel, int64_t row, int64_t num_rows) {
  for (int64_t r = 0; r < num_rows; ++r) {
    float* dst = task.out->dst + (row + r) * task.out->dst_stride;
    for (int64_t p = 0; p < kPanels && first_panel + p < task.panel_end; ++p) {
      const int64_t column = (first_panel + p) * kPanelRows;
      store_columns(dst + column, _mm256_load_ps(strip.acc[r][p]), task.out->w->n - column);
    }
  }
}

// Columns of panels [first_panel, first_panel + 4) for rows [row, row + num_rows), num_rows <= kMaxRows.
void strip_rows(const MatmulTask& task, int64_t first_panel, int64_t row, int64_t num_rows) {
  Strip strip;
  const PackedMatrix& w = *task.out->w;
  const uint8_t* data = reinterpret_cast<const uint8_t*>(w.data);
  clear(strip, num_rows);
  for (int64_t first = 0; first < w.k; first += kChunk) {
    const int64_t count = w.k - first < kChunk ? w.k - first : kChunk;
    for (int p = 0; p < kPanels; ++p) {  // past the last panel: that panel again, and not stored
      const int64_t panel = first_panel + p < task.panel_end ? first_panel + p : task.panel_end - 1;
      unpack_chunk(strip.w[p], data + panel_offset(w.dtype, w.k, panel), w.dtype, first, count);
    }
    const float* x = task.x + row * task.x_stride + first;
    int64_t r = 0;
    for (; r + 2 <= num_rows; r += 2) accumulate<2>(strip, r, x + r * task.x_stride, task.x_stride, count);
    if (r < num_rows) accumulate<1>(strip, r, x + r * task.x_stride, task.x_stride, count);
  }
  store(strip, task, first_panel, row, num_rows);
}

}  // namespace

void matmul_float(const MatmulTask& task) {
  for (int64_t p = task.panel_begin; p < task.panel_end; p += kPanels) {
    for (int64_t r = task.row_begin; r < task.row_end; r += kMaxRows) {
      strip_rows(task, p, r, task.row_end - r < kMaxRows ? task.row_end - r : kMaxRows);
    }
  }
}

}  // namespace ion::kernels::avx2
