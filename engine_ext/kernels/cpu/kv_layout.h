// Where a token's keys and values lie in a layer's cache, and which tokens a row sees. Static, as half.h.
//
//   layer cache  [block][K, V][kv_head][16 * head_dim]     K of a head: [head_dim][16]   V of a head:
//   [16][head_dim]
#pragma once

#include "table.h"

namespace ion::kernels {

struct Range {
  int64_t begin, end;
};

// Positions that row `row` of the task's span attends to.
static inline Range seen_by(const AttentionTask& task, int32_t row) {
  const int64_t end = int64_t{task.span->start} + row + 1;
  const int64_t window = task.params->window;
  return {window > 0 && end > window ? end - window : 0, end};
}

// Elements before head `kv_head` of K (which = 0) or V (which = 1) in block `block` of the pool.
static inline int64_t head_offset(const KvShape& shape, int64_t block, int which, int32_t kv_head) {
  const int64_t head_size = kKvBlock * shape.head_dim;
  return ((block * 2 + which) * shape.num_kv_heads + kv_head) * head_size;
}

template <typename T>
static inline const T* key_head(const AttentionTask& task, int64_t index, int32_t kv_head) {
  return static_cast<const T*>(task.layer_cache) +
         head_offset(*task.shape, task.span->block_table[index], 0, kv_head);
}

template <typename T>
static inline const T* value_head(const AttentionTask& task, int64_t index, int32_t kv_head) {
  return static_cast<const T*>(task.layer_cache) +
         head_offset(*task.shape, task.span->block_table[index], 1, kv_head);
}

}  // namespace ion::kernels
