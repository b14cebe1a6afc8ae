// Quantised weights times int8 activations: the loop over panels, rows and groups, for 256-bit instruction
// sets. Included by one file per instruction set, inside its anonymous namespace, after it has defined
//   struct Dot { template <int M> static void q4(...), q5(...), q8(...), q6(...); };
// which give the integer sums of a group. Everything after the integers is here, hence the same for all.
//
// M rows share one unpacking of the weights. Per output the order is that of matmul_reference.cpp for any M.

// M rows of activations at the current group.
template <int M>
struct Rows {
  const int8_t* q[M];
  const float* d[M];
  const float* d_sum[M];
  const int32_t* sum[M];
  const int16_t* offset_sum[M];

  Rows(const QuantizedRows& x, int64_t first) {
    const int64_t groups = x.k / kGroup;
    for (int i = 0; i < M; ++i) {
      const int64_t row = first + i;
      q[i] = x.q + row * x.k;
      d[i] = x.d + row * groups;
      d_sum[i] = x.d_sum + row * groups;
      sum[i] = x.sum + row * groups;
      offset_sum[i] = x.offset_sum + 2 * row * groups;
    }
  }
};

inline __m256 load_f16x8(const uint8_t* at) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}

// acc = fma(float(sum), d_w * d_x, acc)
template <int M>
inline void fold(__m256 (&acc)[M], const __m256i (&sums)[M], __m256 dw, const Rows<M>& x, int64_t g) {
  for (int i = 0; i < M; ++i) {
    const __m256 scale = _mm256_mul_ps(dw, _mm256_broadcast_ss(x.d[i] + g));
    acc[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[i]), scale, acc[i]);
  }
}

template <int M>
inline void panel_q4_1(__m256 (&acc)[M], const uint8_t* w, const Rows<M>& x, int64_t groups) {
  for (int64_t g = 0; g < groups; ++g, w += 2 * kHalfRow + kQ4Bytes) {
    __m256i sums[M];
    Dot::q4<M, false>(sums, w + 2 * kHalfRow, x, g);
    fold<M>(acc, sums, load_f16x8(w), x, g);
    const __m256 minimum = load_f16x8(w + kHalfRow);
    for (int i = 0; i < M; ++i) {
      acc[i] = _mm256_fmadd_ps(minimum, _mm256_broadcast_ss(x.d_sum[i] + g), acc[i]);
    }
  }
}

template <int M>
inline void panel_q4_0(__m256 (&acc)[M], const uint8_t* w, const Rows<M>& x, int64_t groups) {
  for (int64_t g = 0; g < groups; ++g, w += kHalfRow + kQ4Bytes) {
    __m256i sums[M];
    Dot::q4<M, true>(sums, w + kHalfRow, x, g);
    fold<M>(acc, sums, load_f16x8(w), x, g);
  }
}

// kHasMin: Q5_1, else Q5_0, whose codes carry an offset of 16.
template <int M, bool kHasMin>
inline void panel_q5(__m256 (&acc)[M], const uint8_t* w, const Rows<M>& x, int64_t groups) {
  constexpr int64_t kHalves = (kHasMin ? 2 : 1) * kHalfRow;
  for (int64_t g = 0; g < groups; ++g, w += kHalves + kQ4Bytes + kQ5HighBytes) {
    __m256i sums[M];
    Dot::q5<M>(sums, w + kHalves, x, g);
    for (int i = 0; i < M && !kHasMin; ++i) {
      sums[i] = _mm256_sub_epi32(sums[i], _mm256_set1_epi32(16 * x.sum[i][g]));
    }
    fold<M>(acc, sums, load_f16x8(w), x, g);
    if constexpr (kHasMin) {
      const __m256 minimum = load_f16x8(w + kHalfRow);
      for (int i = 0; i < M; ++i) {
        acc[i] = _mm256_fmadd_ps(minimum, _mm256_broadcast_ss(x.d_sum[i] + g), acc[i]);
      }
    }
  }
}

template <int M>
inline void panel_q8_0(__m256 (&acc)[M], const uint8_t* w, const Rows<M>& x, int64_t groups) {
  for (int64_t g = 0; g < groups; ++g, w += kHalfRow + 8 * kGroup) {
    __m256i sums[M];
    Dot::q8<M>(sums, w + kHalfRow, x, g);
    fold<M>(acc, sums, load_f16x8(w), x, g);
  }
}

template <int M>
inline void panel_q6_k(__m256 (&acc)[M], const uint8_t* w, const Rows<M>& x, int64_t groups) {
  for (int64_t g = 0; g < groups; g += kSuperGroups, w += kQ6SuperBytes) {
    const __m256 dw = load_f16x8(w + kSuperGroups * kQ6GroupBytes);
    for (int64_t s = 0; s < kSuperGroups; ++s) {
      __m256i sums[M];
      Dot::q6<M>(sums, w + s * kQ6GroupBytes, x, g + s);
      fold<M>(acc, sums, dw, x, g + s);
    }
  }
}

template <int M, bool kHasFifth>
inline void panel_q45_k(__m256 (&acc)[M], const uint8_t* w, const Rows<M>& x, int64_t groups) {
  constexpr int64_t kGroupBytes = kHasFifth ? kQ5KGroupBytes : kQ4KGroupBytes;
  for (int64_t first = 0; first < groups; first += kSuperGroups, w += 2 * kHalfRow) {
    const uint8_t* halves = w + kSuperGroups * kGroupBytes;
    const __m256 d = load_f16x8(halves), d_min = load_f16x8(halves + kHalfRow);
    for (int64_t g = first; g < first + kSuperGroups; ++g, w += kGroupBytes) {
      __m256i sums[M];
      if constexpr (kHasFifth) Dot::q5<M>(sums, w + 16, x, g);
      if constexpr (!kHasFifth) Dot::q4<M, false>(sums, w + 16, x, g);
      fold<M>(acc, sums, _mm256_mul_ps(d, load_u8x8(w)), x, g);
      const __m256 minimum = _mm256_mul_ps(d_min, load_u8x8(w + 8));
      for (int i = 0; i < M; ++i) {
        acc[i] = _mm256_fnmadd_ps(minimum, _mm256_broadcast_ss(x.d_sum[i] + g), acc[i]);
      }
    }
  }
}

template <DType T, int M>
void panel_rows(const MatmulTask& task, const uint8_t* panel, int64_t p, int64_t row) {
  const MatmulOutput& out = *task.out;
  const Rows<M> x(*task.xq, row);
  __m256 acc[M];
  for (int i = 0; i < M; ++i) acc[i] = _mm256_setzero_ps();
  const int64_t groups = out.w->k / kGroup;
  if constexpr (T == DType::Q4_1) panel_q4_1<M>(acc, panel, x, groups);
  if constexpr (T == DType::Q4_0) panel_q4_0<M>(acc, panel, x, groups);
  if constexpr (T == DType::Q5_0) panel_q5<M, false>(acc, panel, x, groups);
  if constexpr (T == DType::Q5_1) panel_q5<M, true>(acc, panel, x, groups);
  if constexpr (T == DType::Q8_0) panel_q8_0<M>(acc, panel, x, groups);
  if constexpr (T == DType::Q4_K) panel_q45_k<M, false>(acc, panel, x, groups);
  if constexpr (T == DType::Q5_K) panel_q45_k<M, true>(acc, panel, x, groups);
  if constexpr (T == DType::Q6_K) panel_q6_k<M>(acc, panel, x, groups);
  const int64_t columns = out.w->n - p * kPanelRows;
  for (int i = 0; i < M; ++i)
    store_columns(out.dst + (row + i) * out.dst_stride + p * kPanelRows, acc[i], columns);
}

template <DType T>
void matmul_panels(const MatmulTask& task) {
  const int64_t stride = panel_bytes(T, task.out->w->k);
  for (int64_t p = task.panel_begin; p < task.panel_end; ++p) {
    const uint8_t* panel = reinterpret_cast<const uint8_t*>(task.out->w->data) + p * stride;
    int64_t row = task.row_begin;
    for (; row + 4 <= task.row_end; row += 4) panel_rows<T, 4>(task, panel, p, row);
    const int64_t left = task.row_end - row;
    if (left == 3) panel_rows<T, 3>(task, panel, p, row);
    if (left == 2) panel_rows<T, 2>(task, panel, p, row);
    if (left == 1) panel_rows<T, 1>(task, panel, p, row);
  }
}

void matmul_any(const MatmulTask& task) {
  switch (task.out->w->dtype) {
    case DType::Q4_0:
      return matmul_panels<DType::Q4_0>(task);
    case DType::Q4_1:
      return matmul_panels<DType::Q4_1>(task);
    case DType::Q5_0:
      return matmul_panels<DType::Q5_0>(task);
    case DType::Q5_1:
      return matmul_panels<DType::Q5_1>(task);
    case DType::Q8_0:
      return matmul_panels<DType::Q8_0>(task);
    case DType::Q4_K:
      return matmul_panels<DType::Q4_K>(task);
    case DType::Q5_K:
      return matmul_panels<DType::Q5_K>(task);
    case DType::Q6_K:
      return matmul_panels<DType::Q6_K>(task);
    case DType::F32:
    case DType::F16:
    case DType::BF16:
      break;
  }
  std::abort();  // matmul.cpp sends no float weights here; a result that nobody wrote would go unseen
}
