// Paged attention, scalar: the specification of the fold.
//
// Per (row, head), over tiles of 128 tokens anchored at position 0: s = (chain of fma over head_dim) * scale;
// m' = max(m, max s); alpha = exp(m - m'); p = exp(s - m'); l = fma(l, alpha, sum of p in 8 lanes);
// o = o * alpha, then o = fma(p, v, o) token by token. At the end o / l + 0, which turns -0 into +0: vector
// code adds 0 * v for masked tokens, and only the sign of a zero could tell. (Online softmax:
// arXiv:1805.02867.)
#include <cmath>

#include "float_math.h"
#include "half.h"
#include "kv_layout.h"
#include "table.h"

namespace ion::kernels::reference {
namespace {

struct Fold {
  float m = -INFINITY, l = 0.0f;
  float o[kMaxHeadDim] = {};
};

float load(const uint16_t* at) {
  return f16_to_f32(*at);
}
float load(const float* at) {
  return *at;
}

template <typename T>
float score(const AttentionTask& task, const float* q, int64_t token, int32_t kv_head) {
  const T* k = key_head<T>(task, token / kKvBlock, kv_head) + token % kKvBlock;
  float dot = 0.0f;
  for (int32_t d = 0; d < task.shape->head_dim; ++d) dot = std::fma(q[d], load(k + d * kKvBlock), dot);
  return dot * task.params->scale;
}

template <typename T>
void fold_tile(Fold& fold, const AttentionTask& task, const float* q, int32_t kv_head, int64_t tile,
               Range seen) {
  float p[kAttentionTile] = {}, lanes[8] = {}, m = fold.m;
  const int64_t first = seen.begin > tile ? seen.begin : tile;
  const int64_t last = seen.end < tile + kAttentionTile ? seen.end : tile + kAttentionTile;
  for (int64_t t = first; t < last; ++t) {
    p[t - tile] = score<T>(task, q, t, kv_head);
    m = p[t - tile] > m ? p[t - tile] : m;
  }
  const float alpha = exp_f32(fold.m - m);
  for (int64_t t = first; t < last; ++t) {
    p[t - tile] = exp_f32(p[t - tile] - m);
    lanes[(t - tile) % 8] += p[t - tile];
  }
  fold.l = std::fma(fold.l, alpha, sum8(lanes));
  fold.m = m;
  const int32_t head_dim = task.shape->head_dim;
  for (int32_t d = 0; d < head_dim; ++d) fold.o[d] *= alpha;
  for (int64_t t = first; t < last; ++t) {
    const T* v = value_head<T>(task, t / kKvBlock, kv_head) + t % kKvBlock * head_dim;
    for (int32_t d = 0; d < head_dim; ++d) fold.o[d] = std::fma(p[t - tile], load(v + d), fold.o[d]);
  }
}

template <typename T>
void attend(const AttentionTask& task, int32_t row, int32_t head) {
  const int64_t at = task.span->first_row + row;
  const int32_t head_dim = task.shape->head_dim;
  const int32_t kv_head = head / (task.params->num_heads / task.shape->num_kv_heads);
  const Range seen = seen_by(task, row);
  Fold fold;
  for (int64_t tile = seen.begin / kAttentionTile * kAttentionTile; tile < seen.end; tile += kAttentionTile) {
    fold_tile<T>(fold, task, task.q + at * task.q_stride + head * head_dim, kv_head, tile, seen);
  }
  float* dst = task.dst + (at * task.params->num_heads + head) * head_dim;
  for (int32_t d = 0; d < head_dim; ++d) dst[d] = fold.o[d] / fold.l + 0.0f;
}

}  // namespace

void attention(const AttentionTask& task) {
  for (int32_t r = task.first_row; r < task.first_row + task.num_rows; ++r) {
    for (int32_t h = task.first_head; h < task.first_head + task.num_heads; ++h) {
      if (task.shape->numerics == Numerics::fast) attend<uint16_t>(task, r, h);
      if (task.shape->numerics == Numerics::exact) attend<float>(task, r, h);
    }
  }
}

void to_f16(uint16_t* dst, const float* src, int64_t size) {
  for (int64_t i = 0; i < size; ++i) dst[i] = f32_to_f16(src[i]);
}

}  // namespace ion::kernels::reference
