// Paged attention, AVX2: up to 12 (row, head) pairs of one KV head at a time. Bit for bit as
// attention_reference.cpp.
//
// Both products are the same small kernel, M rows x 16 columns: scores of the 16 tokens of a block are chains
// over head_dim against K [head_dim][16]; 16 dims of the output are chains over tokens against V
// [16][head_dim]. Neither needs a horizontal sum or a copy of the cache.
#include <cmath>

#include "kv_layout.h"
#include "table.h"
#include "vector256.h"

namespace ion::kernels::avx2 {
namespace {

constexpr int kRows = 6;  // x 2 vectors of accumulators = 12 of 16 registers

#include "attention_fold.h"

inline __m256 load(const uint16_t* at) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}
inline __m256 load(const float* at) {
  return _mm256_loadu_ps(at);
}

// acc[i] += a[i][0 .. count) * b, b [count][b_stride] of which 16 columns count.
template <int M, typename T>
inline void multiply(__m256 (&acc)[M][2], const float* const* a, const T* b, int64_t b_stride,
                     int64_t count) {
  for (int64_t k = 0; k < count; ++k, b += b_stride) {
    const __m256 b0 = load(b), b1 = load(b + 8);
    for (int i = 0; i < M; ++i) {
      const __m256 value = _mm256_broadcast_ss(a[i] + k);
      acc[i][0] = _mm256_fmadd_ps(value, b0, acc[i][0]);
      acc[i][1] = _mm256_fmadd_ps(value, b1, acc[i][1]);
    }
  }
}

// Scores of the block at position `token` for rows [first, first + M).
template <int M, typename T>
void score_block(Fold& fold, const T* keys, int32_t first, int64_t column, float scale) {
  __m256 acc[M][2];
  for (int i = 0; i < M; ++i) acc[i][0] = acc[i][1] = _mm256_setzero_ps();
  multiply<M>(acc, fold.q + first, keys, kKvBlock, fold.head_dim);
  for (int i = 0; i < M; ++i) {
    float* p = fold.p[first + i] + column;
    _mm256_store_ps(p, _mm256_mul_ps(acc[i][0], _mm256_set1_ps(scale)));
    _mm256_store_ps(p + 8, _mm256_mul_ps(acc[i][1], _mm256_set1_ps(scale)));
  }
}

// o = o * alpha + p * V over the tile's tokens [tokens.begin, tokens.end), for rows [first, first + M).
template <int M, typename T>
void fold_values(Fold& fold, const AttentionTask& task, int32_t first, int64_t tile, Range tokens) {
  for (int32_t d = 0; d < fold.head_dim; d += 16) {
    __m256 acc[M][2];
    for (int i = 0; i < M; ++i) {
      const __m256 alpha = _mm256_broadcast_ss(fold.alpha + first + i);
      acc[i][0] = _mm256_mul_ps(_mm256_load_ps(fold.o[first + i] + d), alpha);
      acc[i][1] = _mm256_mul_ps(_mm256_load_ps(fold.o[first + i] + d + 8), alpha);
    }
    for (int64_t t = tokens.begin / kKvBlock * kKvBlock; t < tokens.end; t += kKvBlock) {
      const float* p[M];
      for (int i = 0; i < M; ++i) p[i] = fold.p[first + i] + (t - tile);
      const int64_t count = tokens.end - t < kKvBlock ? tokens.end - t : kKvBlock;
      multiply<M>(acc, p, value_head<T>(task, t / kKvBlock, fold.kv_head) + d, fold.head_dim, count);
    }
    for (int i = 0; i < M; ++i) {
      _mm256_store_ps(fold.o[first + i] + d, acc[i][0]);
      _mm256_store_ps(fold.o[first + i] + d + 8, acc[i][1]);
    }
  }
}

inline __m256 visible(Range seen, int64_t token) {
  const __m256i t = _mm256_add_epi32(_mm256_set1_epi32(static_cast<int32_t>(token)),
                                     _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  const __m256i above = _mm256_cmpgt_epi32(t, _mm256_set1_epi32(static_cast<int32_t>(seen.begin) - 1));
  const __m256i below = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int32_t>(seen.end)), t);
  return _mm256_castsi256_ps(_mm256_and_si256(above, below));
}

// A row that sees nothing of this tile: its weights are 0 and its state stays.
void skip_row(Fold& fold, int32_t r, int64_t tile, Range tokens) {
  for (int64_t t = tokens.begin / 8 * 8; t < tokens.end; t += 8) {
    _mm256_store_ps(fold.p[r] + (t - tile), _mm256_setzero_ps());
  }
  fold.alpha[r] = 1.0f;
}

// Scores to weights in place; updates m, l and alpha. `tokens` are the tile's columns that hold scores; its
// begin is a multiple of 16.
void weigh_row(Fold& fold, int32_t r, int64_t tile, Range tokens) {
  const Range seen = fold.seen[r];
  if (seen.begin >= tokens.end || seen.end <= tokens.begin) return skip_row(fold, r, tile, tokens);
  const __m256 lowest = _mm256_set1_ps(-INFINITY);
  __m256 largest = lowest;
  for (int64_t t = tokens.begin; t < tokens.end; t += 8) {
    const __m256 s = _mm256_load_ps(fold.p[r] + (t - tile));
    largest = _mm256_max_ps(_mm256_blendv_ps(lowest, s, visible(seen, t)), largest);
  }
  const float found = largest_lane(largest), m = found > fold.m[r] ? found : fold.m[r];
  __m256 lanes = _mm256_setzero_ps();
  for (int64_t t = tokens.begin; t < tokens.end; t += 8) {
    const __m256 s = _mm256_sub_ps(_mm256_load_ps(fold.p[r] + (t - tile)), _mm256_set1_ps(m));
    const __m256 p = _mm256_and_ps(exp_lanes(s), visible(seen, t));
    _mm256_store_ps(fold.p[r] + (t - tile), p);
    lanes = _mm256_add_ps(lanes, p);
  }
  fold.alpha[r] = exp_f32(fold.m[r] - m);
  fold.l[r] = std::fma(fold.l[r], fold.alpha[r], sum_lanes(lanes));
  fold.m[r] = m;
}

template <typename T>
void fold_tile(Fold& fold, const AttentionTask& task, int64_t tile, Range tokens) {
  for (int64_t t = tokens.begin; t < tokens.end; t += kKvBlock) {
    const T* keys = key_head<T>(task, t / kKvBlock, fold.kv_head);
    in_pieces(fold.num_rows,
              [&]<int M>(int32_t first) { score_block<M>(fold, keys, first, t - tile, task.params->scale); });
  }
  for (int32_t r = 0; r < fold.num_rows; ++r) weigh_row(fold, r, tile, tokens);
  in_pieces(fold.num_rows, [&]<int M>(int32_t first) { fold_values<M, T>(fold, task, first, tile, tokens); });
}

void finish(const Fold& fold, const AttentionTask& task) {
  for (int32_t i = 0; i < fold.num_rows; ++i) {
    float* dst = output_row(task, i);
    for (int32_t d = 0; d < fold.head_dim; d += 8) {
      const __m256 value = _mm256_div_ps(_mm256_load_ps(fold.o[i] + d), _mm256_set1_ps(fold.l[i]));
      _mm256_storeu_ps(dst + d, _mm256_add_ps(value, _mm256_setzero_ps()));
    }
  }
}

template <typename T>
void attend(const AttentionTask& task) {
  Fold fold;
  over_tiles(fold, task, [&](int64_t tile, Range tokens) { fold_tile<T>(fold, task, tile, tokens); });
  finish(fold, task);
}

}  // namespace

void attention(const AttentionTask& task) {
  if (task.shape->head_dim % 16 != 0) return reference::attention(task);
  if (task.shape->numerics == Numerics::fast) return attend<uint16_t>(task);
  attend<float>(task);
}

void to_f16(uint16_t* dst, const float* src, int64_t size) {
  int64_t i = 0;
  for (; i + 8 <= size; i += 8) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + i), halves);
  }
  reference::to_f16(dst + i, src + i, size - i);
}

}  // namespace ion::kernels::avx2
