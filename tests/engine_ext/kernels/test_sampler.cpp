// The sampler: greedy, plain sampling, log-probabilities, and that nothing but (seed, position) decides a
// draw.
#include "sampler_support.h"

using namespace support;

TEST(greedy_takes_the_largest_and_of_equals_the_lowest_id) {
  CHECK_EQ(Row({1, 5, 3}).id(greedy()), 1);
  CHECK_EQ(Row({1, 5, 5, 5}).id(greedy()), 1);
  std::vector<float> many(50000, -3.0f);
  many[31001] = many[777] = many[49999] = 2.0f;
  CHECK_EQ(Row(many).id(greedy()), 777);
  CHECK_EQ(Row({-0.0f, 0.0f}).id(greedy()), 0);
  CHECK_EQ(Row({7.0f}).id(greedy()), 0);
}

TEST(a_row_that_is_not_finite_is_reported) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    for (const std::size_t at : {std::size_t{0}, std::size_t{4999}}) {
      std::vector<float> logits(5000, 1.0f);
      logits[at] = bad;
      for (const float temperature : {0.0f, 1.0f}) {
        SamplerParams params;
        params.temperature = temperature;
        const SampleResult result = Row(logits).sample(params);
        CHECK(!result.finite);
        CHECK_EQ(result.id, -1);
      }
    }
  }
  CHECK(Row({1e38f, -1e38f}).sample(greedy()).finite);
}

TEST(plain_sampling_follows_the_softmax_at_any_temperature) {
  Row row(kEight);
  for (const float temperature : {0.5f, 1.0f, 2.0f}) {
    SamplerParams params;
    params.temperature = temperature;
    CHECK(fits(draws(row, params, 40000), softmax(kEight, double{temperature}), 40000));
  }
}

TEST(sampling_over_a_large_vocabulary_follows_the_softmax) {
  Random random(3);
  std::vector<float> logits = normals(random, 3000, 1.0f);
  std::map<int32_t, double> p = softmax(logits, 1.0), coarse;
  for (const auto& [id, value] : p) coarse[id / 100] += value;
  Row row(logits);
  std::map<int32_t, int> seen;
  for (const auto& [id, count] : draws(row, SamplerParams{}, 60000)) seen[id / 100] += count;
  CHECK(fits(seen, coarse, 60000));
}

TEST(a_draw_depends_on_seed_and_position_only) {
  Random random(6);
  Row row(normals(random, 4000));
  SamplerParams params;
  params.seed = 42;
  const int32_t want = row.id(params, 17);
  row.id(params, 18);
  Row other(normals(random, 100));
  other.id(params, 17);
  CHECK_EQ(row.id(params, 17), want);
  std::map<int32_t, int> by_position, by_seed;
  for (int i = 0; i < 200; ++i) {
    params.seed = 42;
    ++by_position[row.id(params, i)];
    params.seed = static_cast<uint64_t>(i) << 32;
    ++by_seed[row.id(params, 17)];
  }
  CHECK(by_position.size() > 100);
  CHECK(by_seed.size() > 100);
}

TEST(every_instruction_set_draws_the_same_ids) {
  Random random(7);
  Row row(normals(random, 5000, 2.0f));
  SamplerParams settings[4];
  settings[1].top_k = 50;
  settings[2].top_p = 0.9f;
  settings[3].min_p = 0.05f;
  for (SamplerParams& params : settings) {
    for (uint64_t seed = 0; seed < 100; ++seed) {
      params.seed = seed;
      std::vector<int32_t> ids;
      for (const Isa isa : isas()) {
        const WithIsa with(isa);
        ids.push_back(row.id(params, 3));
      }
      CHECK_EQ(std::count(ids.begin(), ids.end(), ids[0]), static_cast<std::ptrdiff_t>(ids.size()));
    }
  }
}

TEST(logprobs_are_those_of_the_raw_logits_whatever_the_sampler_does) {
  Random random(8);
  const std::vector<float> logits = normals(random, 3000, 3.0f);
  double total = 0;
  for (const float logit : logits) total += std::exp(double{logit});
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  Row row(logits);
  SamplerParams params;
  params.temperature = 0.3f;
  params.top_k = 500;
  params.num_logprobs = 20;
  const LogitBias bias[] = {{order[0], -100.0f}};
  params.bias = bias;
  std::vector<SampledLogprob> top(20);
  const SampleResult result = row.sample(params, 5, {}, top);
  CHECK_EQ(result.num_top, 20);
  CHECK(std::fabs(double{result.logprob} - (logits[result.id] - std::log(total))) < 1e-4);
  for (std::size_t i = 0; i < 20; ++i) {
    CHECK_EQ(top[i].id, order[i]);
    CHECK(std::fabs(double{top[i].logprob} - (logits[order[i]] - std::log(total))) < 1e-4);
  }
  const SampleResult again = logprobs(logits.data(), 3000, order[2500], top, row.scratch());
  CHECK_EQ(again.id, order[2500]);
  CHECK_EQ(again.rank, 2501);
  CHECK(std::fabs(double{again.logprob} - (logits[order[2500]] - std::log(total))) < 1e-4);
}

TEST(more_logprobs_than_the_vocabulary_holds_give_all_of_it) {
  Row row({1, 3, 2});
  SamplerParams params = greedy();
  params.num_logprobs = 10;
  std::vector<SampledLogprob> top(10);
  const SampleResult result = row.sample(params, 0, {}, top);
  CHECK_EQ(result.num_top, 3);
  CHECK_EQ(top[0].id, 1);
  CHECK_EQ(top[1].id, 2);
  CHECK_EQ(top[2].id, 0);
  params.num_logprobs = 0;
  CHECK_EQ(row.sample(params, 0, {}, top).num_top, 0);
  params.num_logprobs = -1;
  CHECK_EQ(row.sample(params, 0, {}, top).logprob, 0.0f);
}

int main(int argc, char** argv) {
  return check::main(argc, argv);
}
