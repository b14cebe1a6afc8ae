// Matrix products: against a double-precision product, bit for bit across instruction sets, rows and threads.
#include <algorithm>

#include "support.h"

using namespace ion::kernels;
using namespace support;

namespace {

struct Shape {
  int64_t n, k;
};

std::vector<Shape> shapes(DType dtype) {
  if (dtype_info(dtype).block_size == 256) return {{1, 256}, {7, 512}, {8, 256}, {33, 768}, {40, 256}};
  if (is_quantized(dtype)) return {{1, 32}, {7, 64}, {8, 96}, {9, 32}, {33, 192}, {64, 320}};
  return {{1, 1}, {7, 3}, {8, 64}, {9, 65}, {33, 130}, {40, 31}};
}

std::vector<float> run(const Weights& w, const std::vector<float>& x, int64_t m, ThreadPool& pool) {
  std::vector<float> dst = poisoned(m * w.n);
  Aligned scratch(matmul_scratch_bytes(m, w.k));
  matmul(dst.data(), x.data(), m, w.view, scratch.data(), pool);
  return dst;
}

// The most that rounding the activations can move an output: sum over groups of |w| * (largest |x| / 127)
// / 2.
double int8_bound(const float* w, const float* x, int64_t k) {
  double bound = 0;
  for (int64_t g = 0; g < k; g += 32) {
    double largest = 0, weights = 0;
    for (int64_t i = g; i < g + 32; ++i) {
      largest = std::max(largest, std::fabs(double{x[i]}));
      weights += std::fabs(double{w[i]});
    }
    bound += weights * largest / 254.0;
  }
  return bound;
}

void check_close(const Weights& w, const std::vector<float>& x, const std::vector<float>& got, int64_t m) {
  const std::vector<float> dense = dequantized(w.file, w.dtype, w.n, w.k);
  const bool int8 = w.view.numerics == Numerics::fast && is_quantized(w.dtype);
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t c = 0; c < w.n; ++c) {
      const float *wc = dense.data() + c * w.k, *xr = x.data() + r * w.k;
      double want = 0, size = 0;
      for (int64_t i = 0; i < w.k; ++i) {
        want += double{wc[i]} * xr[i];
        size += std::fabs(double{wc[i]} * xr[i]);
      }
      const double bound = 1e-5 * size + 1e-30 + (int8 ? 1.01 * int8_bound(wc, xr, w.k) : 0.0);
      const double error = std::fabs(want - double{got[static_cast<std::size_t>(r * w.n + c)]});
      CHECK(error <= bound);
    }
  }
}

template <typename Fn>
void for_each_case(Fn fn) {
  for (const Numerics numerics : {Numerics::fast, Numerics::exact}) {
    for (const DType dtype : all_dtypes()) {
      for (const Shape& shape : shapes(dtype)) {
        check::context() = name(dtype) + (numerics == Numerics::fast ? " fast " : " exact ") +
                           std::to_string(shape.n) + "x" + std::to_string(shape.k);
        fn(numerics, dtype, shape);
      }
    }
  }
}

}  // namespace

TEST(scalar_products_are_close_to_double_precision) {
  Random random(1);
  ThreadPool pool(1);
  const WithIsa scalar(Isa::scalar);
  for_each_case([&](Numerics numerics, DType dtype, Shape shape) {
    const Weights w(random, dtype, shape.n, shape.k, numerics, pool);
    const std::vector<float> x = normals(random, 3 * shape.k);
    check_close(w, x, run(w, x, 3, pool), 3);
  });
}

TEST(every_instruction_set_gives_the_scalar_bits) {
  Random random(2);
  ThreadPool pool(2);
  for_each_case([&](Numerics numerics, DType dtype, Shape shape) {
    const Weights w(random, dtype, shape.n, shape.k, numerics, pool);
    for (const int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 9, 70}) {
      const std::vector<float> x = normals(random, m * shape.k);
      std::vector<float> want;
      for (const Isa isa : isas()) {
        const WithIsa with(isa);
        const std::vector<float> got = run(w, x, m, pool);
        if (want.empty()) want = got;
        CHECK(same_bits(got, want));
      }
    }
  });
}

TEST(a_row_has_the_same_bits_alone_and_among_others_on_any_number_of_threads) {
  Random random(3);
  ThreadPool one(1), two(2), five(5);
  for_each_case([&](Numerics numerics, DType dtype, Shape shape) {
    const Weights w(random, dtype, shape.n, shape.k, numerics, one);
    const int64_t m = 67;
    const std::vector<float> x = normals(random, m * shape.k);
    const std::vector<float> want = run(w, x, m, one);
    CHECK(same_bits(run(w, x, m, two), want));
    CHECK(same_bits(run(w, x, m, five), want));
    for (const int64_t r : {0, 1, 31, 66}) {
      const std::vector<float> row(x.begin() + r * shape.k, x.begin() + (r + 1) * shape.k);
      const std::vector<float> alone = run(w, row, 1, two);
      CHECK(std::equal(alone.begin(), alone.end(), want.begin() + r * shape.n));
    }
  });
}

TEST(extreme_codes_and_activations_do_not_overflow) {
  ThreadPool pool(1);
  Random random(4);
  for (const DType dtype : quantized_dtypes()) {
    for (const int fill : {0x00, 0x7F, 0x80, 0xFF}) {
      check::context() = name(dtype) + " fill " + std::to_string(fill);
      Weights w(random, dtype, 16, 512, Numerics::fast, pool);
      const auto info = dtype_info(dtype);
      const uint16_t one = 0x3C00;
      for (std::size_t at = 0; at < w.file.size(); at += static_cast<std::size_t>(info.block_bytes)) {
        std::fill_n(w.file.begin() + static_cast<std::ptrdiff_t>(at), info.block_bytes,
                    static_cast<std::byte>(fill));
        for (const int offset : half_offsets(dtype)) {
          std::memcpy(w.file.data() + at + static_cast<std::size_t>(offset), &one, 2);
        }
      }
      pack_matrix(w.packed.data(), w.file.data(), dtype, 16, 512, Numerics::fast, pool);
      for (const float value : {1.0f, -1.0f}) {
        for (const int64_t m : {5, 13}) {  // kernels of one, four, five and eight rows
          const std::vector<float> x(static_cast<std::size_t>(m * 512), value);
          for (const Isa isa : isas()) {
            const WithIsa with(isa);
            check_close(w, x, run(w, x, m, pool), m);
          }
        }
      }
    }
  }
}

TEST(a_group_of_products_equals_each_alone_and_leaves_other_columns) {
  Random random(5);
  ThreadPool pool(2);
  const Weights a(random, DType::Q4_1, 40, 256, Numerics::fast, pool);
  const Weights b(random, DType::Q6_K, 9, 256, Numerics::fast, pool);
  const Weights c(random, DType::BF16, 17, 256, Numerics::fast, pool);
  const Weights d(random, DType::Q4_K, 10, 256, Numerics::fast, pool);
  const Weights e(random, DType::Q5_K, 8, 256, Numerics::fast, pool);
  const int64_t m = 6, stride = 100, x_stride = 300;
  const std::vector<float> x = normals(random, m * x_stride);
  std::vector<float> dense;
  for (int64_t r = 0; r < m; ++r)
    dense.insert(dense.end(), x.begin() + r * x_stride, x.begin() + r * x_stride + 256);
  std::vector<float> dst(static_cast<std::size_t>(m * stride), -7.0f);
  const std::pair<const Weights*, int64_t> all[] = {{&a, 0}, {&b, 45}, {&c, 60}, {&d, 80}, {&e, 92}};
  std::vector<MatmulOutput> outputs;
  for (const auto& [w, column] : all) outputs.push_back({dst.data() + column, stride, &w->view});
  Aligned scratch(matmul_scratch_bytes(m, 256));
  matmul_group(outputs, x.data(), x_stride, m, scratch.data(), pool);
  std::vector<float> want(dst.size(), -7.0f);
  for (const auto& [w, column] : all) {
    const std::vector<float> alone = run(*w, dense, m, pool);
    for (int64_t r = 0; r < m; ++r) {
      std::copy_n(alone.begin() + r * w->n, w->n, want.begin() + r * stride + column);
    }
  }
  CHECK(same_bits(dst, want));
}

TEST(a_row_that_is_not_finite_spoils_itself_and_no_other) {
  Random random(6);
  ThreadPool pool(2);
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    for (const Numerics numerics : {Numerics::fast, Numerics::exact}) {
      const Weights w(random, DType::Q4_1, 24, 64, numerics, pool);
      std::vector<float> x = normals(random, 5 * 64);
      const std::vector<float> want = run(w, x, 5, pool);
      x[2 * 64 + 40] = bad;
      for (const Isa isa : isas()) {
        const WithIsa with(isa);
        const std::vector<float> got = run(w, x, 5, pool);
        for (int64_t r = 0; r < 5; ++r) {
          const bool same =
              std::equal(got.begin() + r * 24, got.begin() + (r + 1) * 24, want.begin() + r * 24);
          CHECK_EQ(same, r != 2);
          for (int64_t c = 0; c < 24; ++c)
            CHECK_EQ(std::isfinite(got[static_cast<std::size_t>(r * 24 + c)]), r != 2);
        }
      }
    }
  }
}

TEST(zero_and_tiny_activations_give_zero) {
  Random random(7);
  ThreadPool pool(1);
  const Weights w(random, DType::Q8_0, 8, 64, Numerics::fast, pool);
  for (const float value : {0.0f, -0.0f, 1e-40f}) {
    const std::vector<float> x(64, value);
    for (const Isa isa : isas()) {
      const WithIsa with(isa);
      for (const float got : run(w, x, 1, pool)) CHECK_EQ(got, 0.0f);
    }
  }
}

TEST(pieces_packed_one_by_one_equal_the_whole) {
  Random random(8);
  ThreadPool pool(2);
  for (const DType dtype : all_dtypes()) {
    check::context() = name(dtype);
    const Weights whole(random, dtype, 37, 256, Numerics::fast, pool);
    const int64_t bytes = packed_bytes(dtype, 37, 256, Numerics::fast), row = row_bytes(dtype, 256);
    Aligned pieces(bytes);
    pack_rows(pieces.data(), 0, whole.file.data(), dtype, 16, 256, pool);
    pack_rows(pieces.data(), 16, whole.file.data() + 16 * row, dtype, 8, 256, pool);
    pack_rows(pieces.data(), 24, whole.file.data() + 24 * row, dtype, 13, 256, pool);
    CHECK_EQ(std::memcmp(pieces.data(), whole.view.data, static_cast<std::size_t>(bytes)), 0);
  }
}

TEST(rows_gathered_from_packed_weights_equal_those_of_the_file) {
  Random random(9);
  ThreadPool pool(2);
  const std::vector<int32_t> ids = {0, 36, 7, 8, 8, 15};
  for (const DType dtype : all_dtypes()) {
    check::context() = name(dtype);
    const Weights w(random, dtype, 37, 256, Numerics::fast, pool);
    const int64_t m = static_cast<int64_t>(ids.size());
    std::vector<float> got = poisoned(m * 256), want = poisoned(m * 256);
    gather_packed_rows(got.data(), ids.data(), m, w.view, pool);
    gather_rows(want.data(), ids.data(), m, w.file.data(), dtype, 256, pool);
    CHECK(same_bits(got, want));
    CHECK(std::none_of(want.begin(), want.end(), [](float v) { return std::isnan(v); }));
  }
}

int main(int argc, char** argv) {
  return check::main(argc, argv);
}
