// Row-wise operations: against double precision, and bit for bit across instruction sets and threads.
#include "kernels/cpu/float_math.h"
#include "kernels/cpu/table.h"
#include "support.h"

using namespace ion::kernels;
using namespace support;

namespace {

const std::vector<int64_t> kCols = {1, 7, 8, 31, 32, 33, 64, 100, 576};

bool is_close(double got, double want, double tolerance) {
  return std::fabs(got - want) <= tolerance * std::max(1.0, std::fabs(want));
}

// Runs `op(dst)` on every instruction set over poisoned outputs with a guard behind, and hands back the
// result.
template <typename Op>
std::vector<float> on_every_isa(int64_t size, Op op) {
  std::vector<float> want;
  for (const Isa isa : isas()) {
    const WithIsa with(isa);
    std::vector<float> dst = poisoned(size + 16);
    for (int64_t i = size; i < size + 16; ++i) dst[static_cast<std::size_t>(i)] = -7.0f;
    op(dst.data());
    if (want.empty()) want = dst;
    CHECK(same_bits(dst, want));
    for (int64_t i = size; i < size + 16; ++i) CHECK_EQ(dst[static_cast<std::size_t>(i)], -7.0f);
  }
  return want;
}

}  // namespace

TEST(rms_norm_is_the_formula_in_double_precision) {
  Random random(1);
  ThreadPool pool(2);
  for (const int64_t cols : kCols) {
    for (const int64_t rows : {1, 3, 129}) {
      const std::vector<float> x = normals(random, rows * cols), weight = normals(random, cols);
      const std::vector<float> got = on_every_isa(
          rows * cols, [&](float* dst) { rms_norm(dst, x.data(), weight.data(), rows, cols, 1e-5f, pool); });
      for (int64_t r = 0; r < rows; ++r) {
        double squares = 0;
        for (int64_t i = 0; i < cols; ++i) squares += double{x[r * cols + i]} * x[r * cols + i];
        const double scale = 1 / std::sqrt(squares / static_cast<double>(cols) + 1e-5f);
        for (int64_t i = 0; i < cols; ++i) {
          CHECK(is_close(got[r * cols + i], x[r * cols + i] * scale * weight[i], 1e-6));
        }
      }
    }
  }
}

TEST(rms_norm_works_in_place) {
  Random random(2);
  ThreadPool pool(1);
  const std::vector<float> weight = normals(random, 100);
  std::vector<float> x = normals(random, 300), want = poisoned(300);
  rms_norm(want.data(), x.data(), weight.data(), 3, 100, 1e-6f, pool);
  rms_norm(x.data(), x.data(), weight.data(), 3, 100, 1e-6f, pool);
  CHECK(same_bits(x, want));
}

TEST(silu_mul_is_the_formula_and_reads_strided_halves) {
  Random random(3);
  ThreadPool pool(2);
  for (const int64_t cols : kCols) {
    const int64_t rows = 65, stride = 2 * cols + 3;
    const std::vector<float> x = normals(random, rows * stride, 4.0f);
    const std::vector<float> got = on_every_isa(
        rows * cols, [&](float* dst) { silu_mul(dst, x.data(), x.data() + cols, rows, cols, stride, pool); });
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < cols; ++i) {
        const double gate = x[r * stride + i], up = x[r * stride + cols + i];
        CHECK(is_close(got[r * cols + i], gate / (1 + std::exp(-gate)) * up, 2e-6));
      }
    }
  }
}

TEST(silu_mul_holds_at_the_ends_of_the_range) {
  ThreadPool pool(1);
  const std::vector<float> gate = {-1e30f, -200.0f, -90.0f, -0.0f, 0.0f, 90.0f, 1e30f, INFINITY, NAN},
                           up(9, 1.0f);
  const std::vector<float> got =
      on_every_isa(9, [&](float* dst) { silu_mul(dst, gate.data(), up.data(), 1, 9, 9, pool); });
  for (int i = 1; i < 5; ++i) CHECK(std::fabs(got[i]) < 1e-30f);
  CHECK_EQ(got[5], 90.0f);
  CHECK_EQ(got[6], 1e30f);
  CHECK(!std::isfinite(got[7]));
  CHECK(std::isnan(got[8]));
}

TEST(exp_is_within_two_units_of_the_last_place) {
  double worst = 0;
  for (double x = -87.0; x <= 88.0; x += 0.00037) {
    const float at = static_cast<float>(x);
    const double want = std::exp(double{at});
    worst = std::max(worst, std::fabs(double{exp_f32(at)} - want) / want);
  }
  CHECK(worst < 2e-7);
  CHECK_EQ(exp_f32(0.0f), 1.0f);
  CHECK_EQ(exp_f32(-INFINITY), 0.0f);
  CHECK_EQ(exp_f32(-87.5f), 0.0f);
  CHECK(std::isnan(exp_f32(NAN)));
}

TEST(exp_rows_agree_across_instruction_sets) {
  Random random(4);
  for (const int64_t size : kCols) {
    std::vector<float> x = normals(random, size, 40.0f);
    x[0] = -INFINITY;
    on_every_isa(size, [&](float* dst) { kernel_table().exp_row(dst, x.data(), size, 3.5f, 0.7f); });
  }
}

TEST(add_and_add_bias_are_elementwise) {
  Random random(5);
  ThreadPool pool(2);
  const int64_t rows = 70, cols = 600, stride = 610;
  const std::vector<float> a = normals(random, rows * stride), b = normals(random, rows * stride);
  const std::vector<float> sum =
      on_every_isa(rows * stride, [&](float* dst) { add(dst, a.data(), b.data(), rows * stride, pool); });
  std::vector<float> biased = a;
  add_bias(biased.data(), biased.data(), b.data(), rows, cols, stride, pool);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < stride; ++i) {
      CHECK_EQ(sum[r * stride + i], a[r * stride + i] + b[r * stride + i]);
      CHECK_EQ(biased[r * stride + i], i < cols ? a[r * stride + i] + b[i] : a[r * stride + i]);
    }
  }
}

int main(int argc, char** argv) {
  return check::main(argc, argv);
}
