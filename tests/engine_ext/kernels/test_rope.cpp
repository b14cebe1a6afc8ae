// Rotary position embedding: both forms against the formula, partial dims, scaling, and what rotation means.
#include "support.h"

using namespace ion::kernels;
using namespace support;

namespace {

// Rotates one head in double precision.
std::vector<double> rotated(const float* x, int64_t head_dim, int32_t position, const RopeParams& p) {
  std::vector<double> out(x, x + head_dim);
  const int32_t half = p.rotary_dim / 2;
  for (int32_t i = 0; i < half; ++i) {
    double angle = position * double{p.position_scale} * std::pow(double{p.theta}, -2.0 * i / p.rotary_dim);
    if (p.freq_factors != nullptr) angle /= double{p.freq_factors[i]};
    const int32_t a = p.form == RopeForm::normal ? 2 * i : i,
                  b = p.form == RopeForm::normal ? 2 * i + 1 : i + half;
    out[a] = (x[a] * std::cos(angle) - x[b] * std::sin(angle)) * double{p.magnitude};
    out[b] = (x[a] * std::sin(angle) + x[b] * std::cos(angle)) * double{p.magnitude};
  }
  return out;
}

void check_against_formula(const RopeParams& params, int64_t heads, int64_t head_dim, ThreadPool& pool) {
  Random random(7);
  const std::vector<int32_t> positions = {0, 1, 2, 100, 8191, 100000, 3, 4, 5, 6};
  const int64_t m = static_cast<int64_t>(positions.size()), stride = heads * head_dim + 5;
  std::vector<float> angles = poisoned(m * params.rotary_dim), x = normals(random, m * stride);
  const std::vector<float> before = x;
  rope_angles(angles.data(), positions.data(), m, params, pool);
  rope(x.data(), m, heads, head_dim, stride, angles.data(), params, pool);
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t h = 0; h < heads; ++h) {
      const float* head = before.data() + r * stride + h * head_dim;
      const std::vector<double> want = rotated(head, head_dim, positions[r], params);
      for (int64_t i = 0; i < head_dim; ++i) {
        const float got = x[r * stride + h * head_dim + i];
        CHECK(std::fabs(double{got} - want[i]) < 2e-6);
        if (i >= params.rotary_dim) CHECK_EQ(got, head[i]);
      }
    }
    for (int64_t i = heads * head_dim; i < stride; ++i) CHECK_EQ(x[r * stride + i], before[r * stride + i]);
  }
}

}  // namespace

TEST(both_forms_follow_the_formula_with_partial_dims_and_scaling) {
  ThreadPool pool(2);
  const std::vector<float> factors = {1.0f, 1.5f, 2.0f, 8.0f, 8.0f, 8.0f, 8.0f, 8.0f};
  for (const RopeForm form : {RopeForm::normal, RopeForm::neox}) {
    RopeParams params;
    params.form = form;
    params.rotary_dim = 64;
    check_against_formula(params, 9, 64, pool);
    params.rotary_dim = 16;
    params.theta = 500000.0f;
    check_against_formula(params, 3, 40, pool);
    params.freq_factors = factors.data();
    params.position_scale = 0.25f;
    params.magnitude = 1.2f;
    check_against_formula(params, 3, 40, pool);
  }
}

TEST(the_dot_product_of_rotated_vectors_depends_on_their_distance_only) {
  Random random(8);
  ThreadPool pool(1);
  RopeParams params;
  params.rotary_dim = 64;
  const std::vector<float> q = normals(random, 64), k = normals(random, 64);
  const auto dot_at = [&](int32_t a, int32_t b) {
    std::vector<float> x = q, angles(128);
    x.insert(x.end(), k.begin(), k.end());
    const int32_t positions[] = {a, b};
    rope_angles(angles.data(), positions, 2, params, pool);
    rope(x.data(), 2, 1, 64, 64, angles.data(), params, pool);
    double dot = 0;
    for (int i = 0; i < 64; ++i) dot += double{x[i]} * x[64 + i];
    return dot;
  };
  CHECK(std::fabs(dot_at(7, 3) - dot_at(1007, 1003)) < 1e-4);
  CHECK(std::fabs(dot_at(7, 3) - dot_at(8, 3)) > 1e-3);
}

TEST(many_rows_have_the_bits_of_one) {
  Random random(9);
  ThreadPool one(1), three(3);
  RopeParams params;
  params.rotary_dim = 64;
  const int64_t m = 200;
  std::vector<int32_t> positions(m);
  for (int32_t i = 0; i < m; ++i) positions[i] = 5 * i;
  std::vector<float> angles(m * 64), alone(64), x = normals(random, m * 576);
  const std::vector<float> before = x;
  rope_angles(angles.data(), positions.data(), m, params, three);
  rope(x.data(), m, 9, 64, 576, angles.data(), params, three);
  for (const int64_t r : {0, 77, 199}) {
    std::vector<float> row(before.begin() + r * 576, before.begin() + (r + 1) * 576);
    rope_angles(alone.data(), &positions[r], 1, params, one);
    rope(row.data(), 1, 9, 64, 576, alone.data(), params, one);
    CHECK(std::equal(row.begin(), row.end(), x.begin() + r * 576));
  }
}

int main(int argc, char** argv) {
  return check::main(argc, argv);
}
