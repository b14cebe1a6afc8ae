// Paged attention, AVX-512: up to 12 (row, head) pairs of one KV head at a time. Bit for bit as
// attention_reference.cpp, and built as attention_avx2.cpp is.
//
// A block of keys is 16 tokens, one vector; four blocks at a time make enough chains even for the three heads
// of a decoding row. At decode the cache comes from memory, in pieces too short for the hardware's prefetch:
// keys are read while their values are asked for, and values while the next tile's keys are.
#include <cmath>

#include "kv_layout.h"
#include "table.h"
#include "vector512.h"

namespace ion::kernels::avx512vnni {
namespace {

constexpr int kRows = 6;    // of one piece
constexpr int kBlocks = 4;  // of keys, and vectors of 16 dims of values: 6 x 4 = 24 of 32 registers

#include "attention_fold.h"

inline __m512 load(const uint16_t* at) {
  return _mm512_cvtph_ps(load256(at));
}
inline __m512 load(const float* at) {
  return _mm512_loadu_ps(at);
}

inline void fetch(const void* at) {
  _mm_prefetch(at, _MM_HINT_T1);
}

// Scores of B blocks for rows [first, first + M); `ahead` are what is read after them, blocks as large.
template <int M, int B, typename T>
void score_blocks(Fold& fold, const T* const* keys, const T* const* ahead, int32_t first, int64_t column,
                  float scale) {
  __m512 acc[M][B];
  const float* q[M];
  for (int i = 0; i < M; ++i) {
    q[i] = fold.q[first + i];
    for (int b = 0; b < B; ++b) acc[i][b] = _mm512_setzero_ps();
  }
  constexpr int kStep = 64 / (16 * sizeof(T));  // rows of 16 keys in a cache line
  for (int64_t d = 0; d < fold.head_dim; d += kStep) {
    for (int b = 0; b < B; ++b) fetch(ahead[b] + d * kKvBlock);
    for (int64_t k = d; k < d + kStep; ++k) {
      __m512 key[B];
      for (int b = 0; b < B; ++b) key[b] = load(keys[b] + k * kKvBlock);
      for (int i = 0; i < M; ++i) {
        const __m512 value = _mm512_set1_ps(q[i][k]);
        for (int b = 0; b < B; ++b) acc[i][b] = _mm512_fmadd_ps(value, key[b], acc[i][b]);
      }
    }
  }
  for (int i = 0; i < M; ++i) {
    float* p = fold.p[first + i] + column;
    for (int b = 0; b < B; ++b) {
      _mm512_store_ps(p + kKvBlock * b, _mm512_mul_ps(acc[i][b], _mm512_set1_ps(scale)));
    }
  }
}

// o = o * alpha + p * V over the tile's tokens [tokens.begin, tokens.end), for rows [first, first + M) and
// dims [d, d + 16 * D).
template <int M, int D, typename T>
void fold_dims(Fold& fold, const AttentionTask& task, int32_t first, int64_t d, int64_t tile, Range tokens) {
  __m512 acc[M][D];
  for (int i = 0; i < M; ++i) {
    const __m512 alpha = _mm512_set1_ps(fold.alpha[first + i]);
    for (int v = 0; v < D; ++v)
      acc[i][v] = _mm512_mul_ps(_mm512_load_ps(fold.o[first + i] + d + 16 * v), alpha);
  }
  const int64_t num_blocks = (task.span->start + task.span->count + kKvBlock - 1) / kKvBlock;
  for (int64_t t = tokens.begin / kKvBlock * kKvBlock; t < tokens.end; t += kKvBlock) {
    const int64_t block = t / kKvBlock, next = block + kAttentionTile / kKvBlock;
    const T* values = value_head<T>(task, block, fold.kv_head) + d;
    const T* ahead = next < num_blocks ? key_head<T>(task, next, fold.kv_head) + d : values;
    const float* p = fold.p[first] + (t - tile);
    const int64_t count = tokens.end - t < kKvBlock ? tokens.end - t : kKvBlock;
    for (int64_t k = 0; k < count; ++k, values += fold.head_dim, ahead += fold.head_dim) {
      for (int64_t at = 0; at < 16 * D; at += 64 / sizeof(T)) fetch(ahead + at);
      __m512 value[D];
      for (int v = 0; v < D; ++v) value[v] = load(values + 16 * v);
      for (int i = 0; i < M; ++i) {
        const __m512 weight = _mm512_set1_ps(p[i * kAttentionTile + k]);
        for (int v = 0; v < D; ++v) acc[i][v] = _mm512_fmadd_ps(weight, value[v], acc[i][v]);
      }
    }
  }
  for (int i = 0; i < M; ++i) {
    for (int v = 0; v < D; ++v) _mm512_store_ps(fold.o[first + i] + d + 16 * v, acc[i][v]);
  }
}

template <int M, typename T>
void fold_values(Fold& fold, const AttentionTask& task, int32_t first, int64_t tile, Range tokens) {
  int64_t d = 0;
  for (; d + 16 * kBlocks <= fold.head_dim; d += 16 * kBlocks)
    fold_dims<M, kBlocks, T>(fold, task, first, d, tile, tokens);
  for (; d < fold.head_dim; d += 16) fold_dims<M, 1, T>(fold, task, first, d, tile, tokens);
}

inline __mmask16 visible(Range seen, int64_t token) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i t = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int32_t>(token)), lane);
  const __mmask16 above = _mm512_cmpge_epi32_mask(t, _mm512_set1_epi32(static_cast<int32_t>(seen.begin)));
  return _mm512_mask_cmplt_epi32_mask(above, t, _mm512_set1_epi32(static_cast<int32_t>(seen.end)));
}

// A row that sees nothing of this tile: its weights are 0 and its state stays.
void skip_row(Fold& fold, int32_t r, int64_t tile, Range tokens) {
  for (int64_t t = tokens.begin; t < tokens.end; t += 16) {
    _mm512_store_ps(fold.p[r] + (t - tile), _mm512_setzero_ps());
  }
  fold.alpha[r] = 1.0f;
}

// Scores to weights in place; updates m, l and alpha. `tokens` are the tile's columns that hold scores; its
// begin is a multiple of 16.
void weigh_row(Fold& fold, int32_t r, int64_t tile, Range tokens) {
  const Range seen = fold.seen[r];
  if (seen.begin >= tokens.end || seen.end <= tokens.begin) return skip_row(fold, r, tile, tokens);
  __m512 largest = _mm512_set1_ps(-INFINITY);
  for (int64_t t = tokens.begin; t < tokens.end; t += 16) {
    const __m512 s = _mm512_load_ps(fold.p[r] + (t - tile));
    largest = _mm512_mask_max_ps(largest, visible(seen, t), s, largest);
  }
  const float found = largest_lane(largest), m = found > fold.m[r] ? found : fold.m[r];
  __m256 lanes = _mm256_setzero_ps();
  for (int64_t t = tokens.begin; t < tokens.end; t += 16) {
    const __m512 s = _mm512_sub_ps(_mm512_load_ps(fold.p[r] + (t - tile)), _mm512_set1_ps(m));
    const __m512 p = _mm512_maskz_mov_ps(visible(seen, t), exp_lanes(s));
    _mm512_store_ps(fold.p[r] + (t - tile), p);
    lanes = _mm256_add_ps(_mm256_add_ps(lanes, lower(p)), upper(p));  // eight at a time, as the reference
  }
  fold.alpha[r] = exp_f32(fold.m[r] - m);
  fold.l[r] = std::fma(fold.l[r], fold.alpha[r], sum_lanes(lanes));
  fold.m[r] = m;
}

template <int B, typename T>
void score_at(Fold& fold, const AttentionTask& task, int64_t t, int64_t tile) {
  const T *keys[B], *values[B];
  for (int b = 0; b < B; ++b) {
    keys[b] = key_head<T>(task, t / kKvBlock + b, fold.kv_head);
    values[b] = value_head<T>(task, t / kKvBlock + b, fold.kv_head);
  }
  in_pieces(fold.num_rows, [&]<int M>(int32_t first) {
    score_blocks<M, B>(fold, keys, values, first, t - tile, task.params->scale);
  });
}

template <typename T>
void fold_tile(Fold& fold, const AttentionTask& task, int64_t tile, Range tokens) {
  int64_t t = tokens.begin;
  for (; t + (kBlocks - 1) * kKvBlock < tokens.end; t += kBlocks * kKvBlock)
    score_at<kBlocks, T>(fold, task, t, tile);
  for (; t < tokens.end; t += kKvBlock) score_at<1, T>(fold, task, t, tile);
  for (int32_t r = 0; r < fold.num_rows; ++r) weigh_row(fold, r, tile, tokens);
  in_pieces(fold.num_rows, [&]<int M>(int32_t first) { fold_values<M, T>(fold, task, first, tile, tokens); });
}

void finish(const Fold& fold, const AttentionTask& task) {
  for (int32_t i = 0; i < fold.num_rows; ++i) {
    float* dst = output_row(task, i);
    for (int32_t d = 0; d < fold.head_dim; d += 16) {
      const __m512 value = _mm512_div_ps(_mm512_load_ps(fold.o[i] + d), _mm512_set1_ps(fold.l[i]));
      _mm512_storeu_ps(dst + d, _mm512_add_ps(value, _mm512_setzero_ps()));
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

}  // namespace ion::kernels::avx512vnni
