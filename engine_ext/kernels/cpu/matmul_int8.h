// Quantised weights times int8 activations: the loop over panels, rows and groups. Included by one file per
// instruction set, inside its anonymous namespace, after it has defined
//   struct Wide: vectors of kPanels * 8 lanes, one per weight row, what is done with them, and kRows: so many
//                rows of activations share one unpacking of the weights at most
//   struct Dot { template <int M> static void q4(...), q5(...), q8(...), q6(...); };
// Dot gives the integer sums of a group. What follows them is here, hence the same for all.
//
// Per output the order is that of matmul_reference.cpp for any M.

using Float = Wide::Float;
using Int = Wide::Int;
using Panels = Wide::Panels;

// M rows of activations, inside one block, at the current group.
template <int M>
class Rows {
 public:
  // Rows [first, first + M) of the block at `block`.
  Rows(const QuantizedRows& x, int64_t block, int64_t first)
      : rows_(x.block_rows(block)), first_(first), at_(x.block(block)) {}

  const int8_t* q(int i) const { return as<int8_t>(kGroup * (first() + i)); }
  const float* d(int i) const { return as<float>(kGroup * rows() + 4 * (first() + i)); }
  const float* d_sum(int i) const { return as<float>((kGroup + 4) * rows() + 4 * (first() + i)); }
  const int32_t* offset(int i) const { return as<int32_t>((kGroup + 8) * rows() + 4 * (first() + i)); }
  const int16_t* offset_sum(int i) const { return as<int16_t>((kGroup + 12) * rows() + 4 * (first() + i)); }
  void next_group() { skip(1); }
  void skip(int64_t groups) { at_ += groups * kRowGroupBytes * rows(); }

 private:
  // Where a kernel takes whole blocks these are constants.
  static constexpr bool kWhole = Wide::kRows == kRowBlock;
  int64_t rows() const { return kWhole ? M : rows_; }
  int64_t first() const { return kWhole ? 0 : first_; }
  template <typename T>
  const T* as(int64_t offset) const {
    return reinterpret_cast<const T*>(at_ + offset);
  }

  int64_t rows_, first_;
  const std::byte* at_;
};

// Weights that come from memory. One to three rows keep pace with it and the hardware's own prefetch; with
// more of them the reads come in bursts that it loses, and this asks for them. Reading past the end is
// harmless.
constexpr int64_t kAheadBytes = 8192;

template <int M>
inline void fetch_ahead(const uint8_t* at, int64_t bytes) {
  if constexpr (M >= 4) {
    for (int64_t i = 0; i < bytes; i += 64) _mm_prefetch(at + kAheadBytes + i, _MM_HINT_T1);
  }
}

// acc = fma(float(sum), d_w * d_x, acc)
template <int M>
inline void fold(Float (&acc)[M], const Int (&sums)[M], Float dw, const Rows<M>& x) {
  for (int i = 0; i < M; ++i) {
    acc[i] = Wide::fma(Wide::to_float(sums[i]), Wide::mul(dw, Wide::broadcast(x.d(i))), acc[i]);
  }
}

template <int M>
inline void panel_q4_1(Float (&acc)[M], Panels w, Rows<M> x, int64_t groups) {
  for (int64_t g = 0; g < groups; ++g, w += 2 * (2 * kHalfRow + kQ4Bytes), x.next_group()) {
    Int sums[M];
    fetch_ahead<M>(w.at, 2 * (2 * kHalfRow + kQ4Bytes));
    Dot::q4<M, false>(sums, w + 2 * kHalfRow, x);
    fold<M>(acc, sums, Wide::halves(w), x);
    const Float minimum = Wide::halves(w + kHalfRow);
    for (int i = 0; i < M; ++i) acc[i] = Wide::fma(minimum, Wide::broadcast(x.d_sum(i)), acc[i]);
  }
}

template <int M>
inline void panel_q4_0(Float (&acc)[M], Panels w, Rows<M> x, int64_t groups) {
  for (int64_t g = 0; g < groups; ++g, w += 2 * (kHalfRow + kQ4Bytes), x.next_group()) {
    Int sums[M];
    fetch_ahead<M>(w.at, 2 * (kHalfRow + kQ4Bytes));
    Dot::q4<M, true>(sums, w + kHalfRow, x);
    fold<M>(acc, sums, Wide::halves(w), x);
  }
}

// kHasMin: Q5_1, else Q5_0, whose codes carry an offset of 16.
template <int M, bool kHasMin>
inline void panel_q5(Float (&acc)[M], Panels w, Rows<M> x, int64_t groups) {
  constexpr int64_t kHalves = (kHasMin ? 2 : 1) * kHalfRow, kBytes = kHalves + kQ4Bytes + kQ5HighBytes;
  for (int64_t g = 0; g < groups; ++g, w += 2 * kBytes, x.next_group()) {
    Int sums[M];
    fetch_ahead<M>(w.at, 2 * kBytes);
    Dot::q5<M, !kHasMin>(sums, w + kHalves, x);
    fold<M>(acc, sums, Wide::halves(w), x);
    if constexpr (kHasMin) {
      const Float minimum = Wide::halves(w + kHalfRow);
      for (int i = 0; i < M; ++i) acc[i] = Wide::fma(minimum, Wide::broadcast(x.d_sum(i)), acc[i]);
    }
  }
}

template <int M>
inline void panel_q8_0(Float (&acc)[M], Panels w, Rows<M> x, int64_t groups) {
  for (int64_t g = 0; g < groups; ++g, w += 2 * (kHalfRow + 8 * kGroup), x.next_group()) {
    Int sums[M];
    fetch_ahead<M>(w.at, 2 * (kHalfRow + 8 * kGroup));
    Dot::q8<M>(sums, w + kHalfRow, x);
    fold<M>(acc, sums, Wide::halves(w), x);
  }
}

template <int M>
inline void panel_q6_k(Float (&acc)[M], Panels w, Rows<M> x, int64_t groups) {
  for (int64_t g = 0; g < groups; g += kSuperGroups, w += 2 * kQ6SuperBytes) {
    const Float dw = Wide::halves(w + kSuperGroups * kQ6GroupBytes);
    for (int64_t s = 0; s < kSuperGroups; ++s, x.next_group()) {
      Int sums[M];
      fetch_ahead<M>(w.at + 2 * s * kQ6GroupBytes, 2 * kQ6GroupBytes);
      Dot::q6<M>(sums, w + s * kQ6GroupBytes, x);
      fold<M>(acc, sums, dw, x);
    }
  }
}

template <int M, bool kHasFifth>
inline void panel_q45_k(Float (&acc)[M], Panels super, Rows<M> x, int64_t groups) {
  constexpr int64_t kGroupBytes = kHasFifth ? kQ5KGroupBytes : kQ4KGroupBytes;
  constexpr int64_t kSuperBytes = kSuperGroups * kGroupBytes + 2 * kHalfRow;
  for (int64_t first = 0; first < groups; first += kSuperGroups, super += 2 * kSuperBytes) {
    const Panels halves = super + kSuperGroups * kGroupBytes;
    const Float d = Wide::halves(halves), d_min = Wide::halves(halves + kHalfRow);
    for (int64_t s = 0; s < kSuperGroups; ++s, x.next_group()) {
      const Panels w = super + s * kGroupBytes;
      Int sums[M];
      fetch_ahead<M>(super.at + 2 * s * kGroupBytes, 2 * kGroupBytes);
      if constexpr (kHasFifth) Dot::q5<M, false>(sums, w + 16, x);
      if constexpr (!kHasFifth) Dot::q4<M, false>(sums, w + 16, x);
      fold<M>(acc, sums, Wide::mul(d, Wide::bytes(w)), x);
      const Float minimum = Wide::mul(d_min, Wide::bytes(w + 8));
      for (int i = 0; i < M; ++i) acc[i] = Wide::fnma(minimum, Wide::broadcast(x.d_sum(i)), acc[i]);
    }
  }
}

// acc += `groups` groups of one pass, from the current one on
template <DType T, int M>
inline void panel_groups(Float (&acc)[M], Panels w, const Rows<M>& x, int64_t groups) {
  if constexpr (T == DType::Q4_1) panel_q4_1<M>(acc, w, x, groups);
  if constexpr (T == DType::Q4_0) panel_q4_0<M>(acc, w, x, groups);
  if constexpr (T == DType::Q5_0) panel_q5<M, false>(acc, w, x, groups);
  if constexpr (T == DType::Q5_1) panel_q5<M, true>(acc, w, x, groups);
  if constexpr (T == DType::Q8_0) panel_q8_0<M>(acc, w, x, groups);
  if constexpr (T == DType::Q4_K) panel_q45_k<M, false>(acc, w, x, groups);
  if constexpr (T == DType::Q5_K) panel_q45_k<M, true>(acc, w, x, groups);
  if constexpr (T == DType::Q6_K) panel_q6_k<M>(acc, w, x, groups);
}

// Rows [row, row + M), all in the block at `block`, against panels p and p + 1. Vectors of one panel take two
// passes, by turns, so that the pair is still read as one stream.
template <DType T, int M>
void panel_rows(const MatmulTask& task, int64_t p, int64_t block, int64_t row) {
  constexpr int kPasses = 2 / Wide::kPanels;
  const MatmulOutput& out = *task.out;
  const int64_t block_bytes = panel_block_bytes(T), block_groups = dtype_info(T).block_size / kGroup;
  const int64_t groups = out.w->k / kGroup, turn = kPasses == 1 ? groups : 2 * kSuperGroups;
  const uint8_t* pair = reinterpret_cast<const uint8_t*>(out.w->data) + panel_offset(T, out.w->k, p);
  Rows<M> x(*task.xq, block, row - block);
  Float acc[kPasses][M];
  for (int pass = 0; pass < kPasses; ++pass) {
    for (int i = 0; i < M; ++i) acc[pass][i] = Wide::zero();
  }
  for (int64_t g = 0; g < groups; g += turn, x.skip(turn)) {
    const int64_t count = groups - g < turn ? groups - g : turn;
    const uint8_t* at = pair + g / block_groups * 2 * block_bytes;
    for (int pass = 0; pass < kPasses; ++pass) {
      panel_groups<T, M>(acc[pass], Panels(at + pass * block_bytes, block_bytes), x, count);
    }
  }
  for (int pass = 0; pass < kPasses; ++pass) {
    const int64_t column = (p + pass) * kPanelRows;
    for (int i = 0; i < M; ++i) {
      Wide::store(out.dst + (row + i) * out.dst_stride + column, acc[pass][i], out.w->n - column);
    }
  }
}

// Rows [row, row + count) of one block, kRows at a time: the first M that is not above what is left.
template <DType T, int M>
void block_rows(const MatmulTask& task, int64_t p, int64_t block, int64_t row, int64_t count) {
  for (; count >= M; row += M, count -= M) panel_rows<T, M>(task, p, block, row);
  if constexpr (M > 1) {
    if (count > 0) block_rows<T, M - 1>(task, p, block, row, count);
  }
}

template <DType T>
void matmul_panels(const MatmulTask& task) {
  for (int64_t p = task.panel_begin; p < task.panel_end; p += 2) {
    for (int64_t block = task.row_begin; block < task.row_end; block += kRowBlock) {
      block_rows<T, Wide::kRows>(task, p, block, block, task.xq->block_rows(block));
    }
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
