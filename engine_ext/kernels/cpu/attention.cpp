// Paged attention: writing the cache and cutting rows and heads into tasks. Knows no inner loop.
//
// A task is up to 12 (row, head) pairs that share a KV head: all query heads of the group for as many rows as
// fit, so that a tile of keys and values is read once for them. The cut never touches a fold.
#include "kv_layout.h"
#include "table.h"

namespace ion::kernels {
namespace {

// How the heads of a group and the rows of a span are cut.
struct Cut {
  int32_t group;           // query heads of a KV head
  int32_t heads_per_task;  // <= group
  int32_t rows_per_task;
  int32_t tasks_per_row;  // tasks that cover all heads of a row tile

  Cut(const AttentionParams& params, const KvShape& shape) {
    group = params.num_heads / shape.num_kv_heads;
    const int32_t pieces = (group + kMaxAttentionRows - 1) / kMaxAttentionRows;
    heads_per_task = (group + pieces - 1) / pieces;
    rows_per_task = kMaxAttentionRows / heads_per_task;
    tasks_per_row = shape.num_kv_heads * ((group + heads_per_task - 1) / heads_per_task);
  }

  int64_t tasks_of(const AttentionSpan& span) const {
    return int64_t{tasks_per_row} * ((span.count + rows_per_task - 1) / rows_per_task);
  }

  // Sets rows and heads of task `index` of a span.
  void locate(AttentionTask& task, int64_t index) const {
    const int32_t pieces = (group + heads_per_task - 1) / heads_per_task;
    const int32_t column = static_cast<int32_t>(index % tasks_per_row);
    const int32_t first = column % pieces * heads_per_task;
    task.first_row = static_cast<int32_t>(index / tasks_per_row) * rows_per_task;
    task.num_rows = task.span->count - task.first_row;
    if (task.num_rows > rows_per_task) task.num_rows = rows_per_task;
    task.first_head = column / pieces * group + first;
    task.num_heads = group - first < heads_per_task ? group - first : heads_per_task;
  }
};

constexpr int64_t kSerialValues = 16 * 1024;  // of one kv_write

void scatter(float* keys, float* values, const float* k, const float* v, int32_t head_dim) {
  for (int32_t d = 0; d < head_dim; ++d) {
    keys[d * kKvBlock] = k[d];
    values[d] = v[d];
  }
}

void scatter(uint16_t* keys, uint16_t* values, const float* k, const float* v, int32_t head_dim) {
  uint16_t halves[kMaxHeadDim];
  kernel_table().to_f16(halves, k, head_dim);
  for (int32_t d = 0; d < head_dim; ++d) keys[d * kKvBlock] = halves[d];
  kernel_table().to_f16(values, v, head_dim);
}

template <typename T>
void write_row(T* cache, const KvShape& shape, const float* k, const float* v, const AttentionSpan& span,
               int32_t row) {
  const int64_t position = int64_t{span.start} + row, token = position % kKvBlock;
  const int64_t block = span.block_table[position / kKvBlock];
  for (int32_t h = 0; h < shape.num_kv_heads; ++h) {
    scatter(cache + head_offset(shape, block, 0, h) + token,
            cache + head_offset(shape, block, 1, h) + token * shape.head_dim, k + h * shape.head_dim,
            v + h * shape.head_dim, shape.head_dim);
  }
}

void write_rows(void* cache, const KvShape& shape, const float* k, const float* v, int64_t row_stride,
                const AttentionSpan& span, int32_t begin, int32_t end) {
  for (int32_t r = begin; r < end; ++r) {
    const int64_t at = (span.first_row + r) * row_stride;
    if (shape.numerics == Numerics::fast) {
      write_row(static_cast<uint16_t*>(cache), shape, k + at, v + at, span, r);
    } else {
      write_row(static_cast<float*>(cache), shape, k + at, v + at, span, r);
    }
  }
}

}  // namespace

int64_t kv_block_bytes(const KvShape& shape) {
  const int64_t value_bytes = shape.numerics == Numerics::fast ? 2 : 4;
  return 2 * shape.num_kv_heads * kKvBlock * shape.head_dim * value_bytes;
}

bool is_attention_shape(int64_t num_heads, int64_t num_kv_heads, int64_t head_dim) {
  return num_kv_heads > 0 && num_heads > 0 && num_heads % num_kv_heads == 0 && head_dim > 0 &&
         head_dim <= kMaxHeadDim;
}

void kv_write(void* layer_cache, const KvShape& shape, const float* k, const float* v, int64_t row_stride,
              std::span<const AttentionSpan> spans, ThreadPool& pool) {
  const int64_t row_values = 2 * int64_t{shape.num_kv_heads} * shape.head_dim;
  for (const AttentionSpan& span : spans) {
    const auto rows = [&](int64_t begin, int64_t end) {
      write_rows(layer_cache, shape, k, v, row_stride, span, static_cast<int32_t>(begin),
                 static_cast<int32_t>(end));
    };
    if (span.count * row_values < kSerialValues) {
      rows(0, span.count);
    } else {
      pool.parallel_for(span.count, rows);
    }
  }
}

void attention(float* dst, const float* q, int64_t q_stride, const void* layer_cache, const KvShape& shape,
               const AttentionParams& params, std::span<const AttentionSpan> spans, ThreadPool& pool) {
  const Cut cut(params, shape);
  const auto kernel = kernel_table().attention;
  int64_t num_tasks = 0;
  for (const AttentionSpan& span : spans) num_tasks += cut.tasks_of(span);
  pool.parallel_for(num_tasks, [&](int64_t begin, int64_t end) {
    int64_t first = 0;
    for (const AttentionSpan& span : spans) {
      const int64_t tasks = cut.tasks_of(span);
      AttentionTask task{dst, q, q_stride, layer_cache, &shape, &params, &span, 0, 0, 0, 0};
      for (int64_t i = begin > first ? begin : first; i < end && i < first + tasks; ++i) {
        cut.locate(task, i - first);
        kernel(task);
      }
      first += tasks;
    }
  });
}

}  // namespace ion::kernels
