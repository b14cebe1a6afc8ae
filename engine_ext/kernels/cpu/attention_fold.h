// What attention keeps for the (row, head) pairs of a task, and its way over them: no vectors in it. Included
// by one file per instruction set, inside its anonymous namespace, after it has defined kRows, the rows of
// one piece.

struct Fold {
  alignas(64) float p[kMaxAttentionRows][kAttentionTile];  // scores, then weights
  alignas(64) float o[kMaxAttentionRows][kMaxHeadDim];
  float m[kMaxAttentionRows], l[kMaxAttentionRows], alpha[kMaxAttentionRows];
  const float* q[kMaxAttentionRows];
  Range seen[kMaxAttentionRows];
  int32_t num_rows, head_dim, kv_head;
};

// Calls fn.operator()<M>(first) so that the pieces cover all rows.
template <int M = kRows, typename Fn>
inline void in_pieces(int32_t num_rows, Fn fn, int32_t first = 0) {
  for (; num_rows - first >= M; first += M) fn.template operator()<M>(first);
  if constexpr (M > 1) {
    if (first < num_rows) in_pieces<M - 1>(num_rows, fn, first);
  }
}

inline float* output_row(const AttentionTask& task, int32_t i) {
  const int64_t row = task.span->first_row + task.first_row + i / task.num_heads;
  const int64_t head = task.first_head + i % task.num_heads;
  return task.dst + (row * task.params->num_heads + head) * task.shape->head_dim;
}

inline void begin(Fold& fold, const AttentionTask& task) {
  fold.num_rows = task.num_rows * task.num_heads;
  fold.head_dim = task.shape->head_dim;
  fold.kv_head = task.first_head / (task.params->num_heads / task.shape->num_kv_heads);
  for (int32_t i = 0; i < fold.num_rows; ++i) {
    const int32_t row = task.first_row + i / task.num_heads, head = task.first_head + i % task.num_heads;
    fold.q[i] = task.q + (task.span->first_row + row) * task.q_stride + head * fold.head_dim;
    fold.seen[i] = seen_by(task, row);
    fold.m[i] = -INFINITY;
    fold.l[i] = 0.0f;
    for (int32_t d = 0; d < fold.head_dim; ++d) fold.o[i][d] = 0.0f;
  }
}

// Calls fold_tile(tile, tokens) for every tile that some row sees; `tokens` are its columns that hold scores,
// the first a multiple of kKvBlock.
template <typename FoldTile>
inline void over_tiles(Fold& fold, const AttentionTask& task, FoldTile fold_tile) {
  begin(fold, task);
  const Range all = {fold.seen[0].begin, fold.seen[fold.num_rows - 1].end};
  for (int64_t tile = all.begin / kAttentionTile * kAttentionTile; tile < all.end; tile += kAttentionTile) {
    fold_tile(tile, Range{all.begin > tile ? all.begin / kKvBlock * kKvBlock : tile,
                          all.end < tile + kAttentionTile ? all.end : tile + kAttentionTile});
  }
}
