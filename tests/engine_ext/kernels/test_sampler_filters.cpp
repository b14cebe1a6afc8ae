// The sampler's filters: which ids top-k, top-p and min-p leave, alone and together, and in what order they
// act.
#include "sampler_support.h"

using namespace support;

TEST(a_tiny_temperature_is_greedy_and_a_small_one_does_not_overflow) {
  Row row(kEight);
  for (const float temperature : {1e-30f, 1e-6f, 1e-4f, 0.01f}) {
    SamplerParams params;
    params.temperature = temperature;
    const auto seen = draws(row, params, 200);
    CHECK_EQ(seen.size(), std::size_t{1});
    CHECK(seen.contains(5));
  }
}

TEST(top_k_keeps_the_k_largest_in_their_proportions) {
  Row row(kEight);
  SamplerParams params;
  params.top_k = 3;
  CHECK(fits(draws(row, params, 30000), {{5, std::exp(2.5)}, {1, std::exp(2.0)}, {3, std::exp(1.5)}}, 30000));
  params.top_k = 1;
  CHECK_EQ(draws(row, params, 100).size(), std::size_t{1});
}

TEST(a_top_k_of_hundreds_keeps_exactly_the_largest) {
  Random random(10);
  const std::vector<float> logits = normals(random, 1000, 0.01f);
  std::vector<float> sorted = logits;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  Row row(logits);
  for (const int32_t k : {15, 16, 17, 64, 65, 400}) {
    SamplerParams params;
    params.top_k = k;
    const auto seen = draws(row, params, 20000);
    CHECK_EQ(seen.size(), static_cast<std::size_t>(k));
    for (const auto& [id, count] : seen) CHECK(logits[id] >= sorted[k - 1]);
  }
}

TEST(top_a_keeps_what_reaches_its_share_of_the_largest_probability_squared) {
  // Probabilities 1/2, 1/4, 1/8, 1/8 of ids 3, 0, 1, 2: the bound is top_a / 4.
  Row row({std::log(2.0f), 0.0f, 0.0f, std::log(4.0f)});
  const std::pair<float, std::size_t> cases[] = {{0.0f, 4}, {0.4f, 4}, {0.6f, 2}, {0.95f, 2}};
  for (const auto& [top_a, num_kept] : cases) {
    SamplerParams params;
    params.top_a = top_a;
    CHECK_EQ(draws(row, params, 2000).size(), num_kept);
  }
  SamplerParams both;
  both.top_a = 0.6f;
  both.top_k = 3;
  CHECK(fits(draws(row, both, 9000), {{3, 2.0}, {0, 1.0}}, 9000));
  both.min_p = 0.6f;
  CHECK_EQ(draws(row, both, 500).size(), std::size_t{1});
  Row sure({20.0f, 0.0f});
  both = {};
  both.top_a = 1.0f;
  CHECK_EQ(sure.id(both), 0);
}

TEST(of_equal_logits_top_k_keeps_the_lowest_ids) {
  Row row(std::vector<float>(1000, 0.25f));
  SamplerParams params;
  params.top_k = 4;
  CHECK(fits(draws(row, params, 8000), {{0, 1.0}, {1, 1.0}, {2, 1.0}, {3, 1.0}}, 8000));
}

TEST(top_k_of_zero_minus_one_vocab_or_more_is_off_and_gives_the_same_ids) {
  Random random(4);
  Row row(normals(random, 777, 2.0f));
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SamplerParams params;
    params.seed = seed;
    const int32_t want = row.id(params, 9);
    for (const int32_t k : {-1, 777, 778, 9999999}) {
      params.top_k = k;
      CHECK_EQ(row.id(params, 9), want);
    }
  }
}

TEST(a_top_k_just_under_the_vocabulary_leaves_out_the_smallest) {
  Row row(kEight);
  SamplerParams params;
  params.top_k = 7;
  const auto seen = draws(row, params, 20000);
  CHECK_EQ(seen.size(), std::size_t{7});
  CHECK(!seen.contains(2));
}

TEST(top_p_keeps_the_smallest_set_that_reaches_p) {
  // Probabilities 0.5, 0.25, 0.125, 0.125.
  Row row({std::log(0.125f), std::log(0.5f), std::log(0.25f), std::log(0.125f)});
  const auto ids = [&](float p) {
    SamplerParams params;
    params.top_p = p;
    return draws(row, params, 20000);
  };
  CHECK_EQ(ids(0.0f).size(), std::size_t{1});
  CHECK_EQ(ids(0.49f).size(), std::size_t{1});
  CHECK(fits(ids(0.6f), {{1, 2.0}, {2, 1.0}}, 20000));
  CHECK(fits(ids(0.8f), {{1, 4.0}, {2, 2.0}, {0, 1.0}}, 20000));  // of the equal two the lower id
  CHECK_EQ(ids(0.9f).size(), std::size_t{4});
  CHECK_EQ(ids(1.0f).size(), std::size_t{4});
}

TEST(a_nucleus_of_thousands_is_cut_where_a_full_sort_would_cut_it) {
  Random random(5);
  const std::vector<float> logits = normals(random, 20000, 0.5f);
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  double total = 0, at = 0;
  for (const float logit : logits) total += std::exp(double{logit});
  std::size_t size = 0;
  while (at < 0.5 * total) at += std::exp(double{logits[order[size++]]});
  const float least = logits[order[size - 1]];
  Row row(logits);
  SamplerParams params;
  params.top_p = 0.5f;
  bool reaches_the_edge = false;
  for (const auto& [id, count] : draws(row, params, 1500)) {
    CHECK(logits[id] >= least - 1e-4f);
    reaches_the_edge |= logits[id] < logits[order[size - size / 20]];
  }
  CHECK(reaches_the_edge);
}

TEST(min_p_keeps_what_reaches_its_share_of_the_largest) {
  Row row({0.0f, std::log(0.5f), std::log(0.11f), std::log(0.09f)});
  SamplerParams params;
  params.min_p = 0.1f;
  CHECK(fits(draws(row, params, 30000), {{0, 1.0}, {1, 0.5}, {2, 0.11}}, 30000));
  params.min_p = 1.0f;
  CHECK_EQ(draws(row, params, 100).size(), std::size_t{1});
}

TEST(top_p_counts_what_min_p_and_top_k_have_left) {
  // 0.4, 0.3, 0.2, 0.1: min-p 0.3 leaves three (0.9); top-p 0.5 of 0.9 is 0.45: two of them.
  Row row({std::log(0.4f), std::log(0.3f), std::log(0.2f), std::log(0.1f)});
  SamplerParams params;
  params.min_p = 0.3f;
  params.top_p = 0.5f;
  CHECK(fits(draws(row, params, 20000), {{0, 4.0}, {1, 3.0}}, 20000));
  params = SamplerParams{};
  params.top_k = 2;
  params.top_p = 0.5f;  // 0.35 of 0.7: the first alone
  CHECK_EQ(draws(row, params, 100).size(), std::size_t{1});
}

TEST(temperature_comes_before_the_filters) {
  // At temperature 2 the ratio 1 : 0.09 becomes 1 : 0.3.
  Row row({0.0f, std::log(0.09f)});
  SamplerParams params;
  params.min_p = 0.2f;
  CHECK_EQ(draws(row, params, 500).size(), std::size_t{1});
  params.temperature = 2.0f;
  CHECK_EQ(draws(row, params, 500).size(), std::size_t{2});
}

int main(int argc, char** argv) {
  return check::main(argc, argv);
}
