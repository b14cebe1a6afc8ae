// Matrix products: cutting [m, n] among threads and quantising the activations. Knows no inner loop.
//
// Partition: units of 4 panels (32 columns) go to threads; inside, rows go in blocks whose activations stay
// in the second-level cache, so that a unit's weights come from memory once for small m and its activations
// from cache for large m. Neither cut touches a reduction.
#include "panel.h"
#include "table.h"

namespace ion::kernels {
namespace {

constexpr int64_t kUnitPanels = 4;
constexpr int64_t kRowBlockBytes = 128 * 1024;  // of int8 activations; a quarter to an eighth of usual L2

int64_t units_of(const PackedMatrix& w) {
  return (num_panels(w.n) + kUnitPanels - 1) / kUnitPanels;
}

bool uses_int8(const PackedMatrix& w) {
  return w.numerics == Numerics::fast && is_quantized(w.dtype);
}

// One row is quantised in about a microsecond: a parallel region pays from some rows on.
void quantize(const QuantizedRows& dst, const float* x, int64_t x_stride, int64_t m, ThreadPool& pool) {
  const KernelTable& kernels = kernel_table();
  const auto rows = [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) kernels.quantize_row(dst, r, x + r * x_stride);
  };
  if (m * dst.k < 8 * 1024) return rows(0, m);
  pool.parallel_for(m, rows);
}

int64_t block_rows(int64_t k) {
  const int64_t rows = kRowBlockBytes / k / kRowBlock * kRowBlock;
  return rows < kRowBlock ? kRowBlock : rows > 64 ? 64 : rows;
}

void run_units(MatmulTask task, int64_t unit_begin, int64_t unit_end, int64_t m) {
  const PackedMatrix& w = *task.out->w;
  const auto kernel = uses_int8(w) ? kernel_table().matmul_int8 : kernel_table().matmul_float;
  const int64_t last = num_panels(w.n), rows = block_rows(w.k);
  task.panel_begin = unit_begin * kUnitPanels;
  task.panel_end = unit_end * kUnitPanels < last ? unit_end * kUnitPanels : last;
  for (int64_t r = 0; r < m; r += rows) {
    task.row_begin = r;
    task.row_end = r + rows < m ? r + rows : m;
    kernel(task);
  }
}

}  // namespace

int64_t matmul_scratch_bytes(int64_t m, int64_t k) {
  return m * (k / kGroup + 1) * kRowGroupBytes;
}

void matmul_group(std::span<const MatmulOutput> outputs, const float* x, int64_t x_stride, int64_t m,
                  void* scratch, ThreadPool& pool) {
  if (outputs.empty() || m <= 0) return;
  int64_t num_units = 0;
  bool int8 = false;
  for (const MatmulOutput& out : outputs) {
    num_units += units_of(*out.w);
    int8 |= uses_int8(*out.w);
  }
  QuantizedRows xq{};
  if (int8) {
    xq = {m, outputs[0].w->k, static_cast<std::byte*>(scratch)};
    quantize(xq, x, x_stride, m, pool);
  }
  pool.parallel_for(num_units, [&](int64_t begin, int64_t end) {
    int64_t first = 0;
    for (const MatmulOutput& out : outputs) {
      const int64_t units = units_of(*out.w);
      const int64_t from = begin > first ? begin - first : 0, to = end - first < units ? end - first : units;
      if (from < to) run_units(MatmulTask{&out, x, x_stride, &xq, 0, 0, 0, 0}, from, to, m);
      first += units;
    }
  });
}

void matmul(float* dst, const float* x, int64_t m, const PackedMatrix& w, void* scratch, ThreadPool& pool) {
  const MatmulOutput out{dst, w.n, &w};
  matmul_group({&out, 1}, x, w.k, m, scratch, pool);
}

}  // namespace ion::kernels
