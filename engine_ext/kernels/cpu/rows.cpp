// Row-wise operations: sharing rows among threads. Plain loops stay here; those with a reduction or an
// exponential come from the table.
#include "table.h"

namespace ion::kernels {
namespace {

// Below this many elements a parallel region costs more than it saves.
constexpr int64_t kSerialElements = 16 * 1024;
constexpr int64_t kSerialExponentials = 8 * 1024;

template <typename Fn>
void for_rows(int64_t rows, int64_t cols, ThreadPool& pool, Fn fn, int64_t serial = kSerialElements) {
  if (rows * cols < serial) return fn(int64_t{0}, rows);
  pool.parallel_for(rows, fn);
}

}  // namespace

void rms_norm(float* dst, const float* x, const float* weight, int64_t rows, int64_t cols, float eps,
              ThreadPool& pool) {
  const auto kernel = kernel_table().rms_norm_row;
  for_rows(rows, cols, pool, [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) kernel(dst + r * cols, x + r * cols, weight, cols, eps);
  });
}

void add(float* dst, const float* a, const float* b, int64_t size, ThreadPool& pool) {
  for_rows(size, 1, pool, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) dst[i] = a[i] + b[i];
  });
}

void add_bias(float* dst, const float* x, const float* bias, int64_t rows, int64_t cols, int64_t stride,
              ThreadPool& pool) {
  for_rows(rows, cols, pool, [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t i = 0; i < cols; ++i) dst[r * stride + i] = x[r * stride + i] + bias[i];
    }
  });
}

void silu_mul(float* dst, const float* gate, const float* up, int64_t rows, int64_t cols, int64_t stride,
              ThreadPool& pool) {
  const auto kernel = kernel_table().silu_mul_row;
  const auto some = [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) kernel(dst + r * cols, gate + r * stride, up + r * stride, cols);
  };
  for_rows(rows, cols, pool, some, kSerialExponentials);
}

}  // namespace ion::kernels
