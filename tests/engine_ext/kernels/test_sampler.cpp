// The sampler: which ids may come out, how often, and that nothing but (seed, position) decides the draw.
#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

#include "kernels/sampler.h"
#include "support.h"

using namespace ion::kernels;
using namespace support;

namespace {

class Row {
 public:
  explicit Row(std::vector<float> logits)
      : logits_(std::move(logits)), scratch_(sampler_scratch_bytes(static_cast<int64_t>(logits_.size()))) {}

  SampleResult sample(const SamplerParams& params, int64_t position = 0,
                      std::span<const TokenCount> counts = {}, std::span<SampledLogprob> top = {}) {
    return ion::kernels::sample(logits_.data(), size(), params, counts, position, top, scratch_.data());
  }
  int32_t id(const SamplerParams& params, int64_t position = 0, std::span<const TokenCount> counts = {}) {
    return sample(params, position, counts).id;
  }
  int64_t size() const { return static_cast<int64_t>(logits_.size()); }
  std::vector<float>& logits() { return logits_; }
  void* scratch() { return scratch_.data(); }

 private:
  std::vector<float> logits_;
  Aligned scratch_;
};

SamplerParams greedy() {
  SamplerParams params;
  params.temperature = 0;
  return params;
}

// Frequencies of ids over many seeds.
std::map<int32_t, int> draws(Row& row, SamplerParams params, int num,
                             std::span<const TokenCount> counts = {}) {
  std::map<int32_t, int> seen;
  for (int i = 0; i < num; ++i) {
    params.seed = static_cast<uint64_t>(i) * 7919;
    ++seen[row.id(params, i % 3, counts)];
  }
  return seen;
}

// Whether frequencies fit the probabilities: chi squared against a bound near p = 1e-5.
bool fits(const std::map<int32_t, int>& seen, const std::map<int32_t, double>& probabilities, int num) {
  double chi = 0, total = 0;
  for (const auto& [id, p] : probabilities) total += p;
  for (const auto& [id, p] : probabilities) {
    const double want = num * p / total, got = seen.contains(id) ? seen.at(id) : 0;
    chi += (got - want) * (got - want) / want;
  }
  for (const auto& [id, count] : seen) {
    if (!probabilities.contains(id)) return false;
  }
  const double k = static_cast<double>(probabilities.size()) - 1;
  return chi < k + 5 * std::sqrt(2 * k) + 12;
}

std::map<int32_t, double> softmax(const std::vector<float>& logits, double temperature) {
  std::map<int32_t, double> p;
  for (std::size_t i = 0; i < logits.size(); ++i)
    p[static_cast<int32_t>(i)] = std::exp(double{logits[i]} / temperature);
  return p;
}

const std::vector<float> kEight = {0.5f, 2.0f, -1.0f, 1.5f, 0.0f, 2.5f, -0.5f, 1.0f};

}  // namespace

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

TEST(penalties_count_prompt_and_generated_tokens_as_they_should) {
  const TokenCount counts[] = {{0, 2, 0}, {1, 0, 3}, {2, 1, 1}};
  const auto after = [&](SamplerParams params) {  // what each id has, found by greedy on pairs with a probe
    std::vector<float> found;
    for (int32_t id = 0; id < 4; ++id) {
      float low = -20, high = 20;
      for (int step = 0; step < 40; ++step) {
        const float middle = (low + high) / 2;
        std::vector<float> logits = {2.0f, 2.0f, -2.0f, 2.0f, 0.0f, 0.0f, 0.0f, 0.0f};
        for (int32_t other = 0; other < 4; ++other) {
          if (other != id) logits[static_cast<std::size_t>(other)] = -1e4f;
        }
        logits[4] = middle;
        for (int i = 5; i < 8; ++i) logits[static_cast<std::size_t>(i)] = -1e4f;
        params.temperature = 0;
        (Row(logits).id(params, 0, counts) == id ? low : high) = middle;
      }
      found.push_back(low);
    }
    return found;
  };
  const auto close = [](const std::vector<float>& got, const std::vector<float>& want) {
    for (std::size_t i = 0; i < want.size(); ++i) {
      if (std::fabs(got[i] - want[i]) > 1e-4f) return false;
    }
    return true;
  };
  SamplerParams params;
  params.repetition_penalty = 2.0f;
  CHECK(close(after(params), {1.0f, 1.0f, -4.0f, 2.0f}));
  params = SamplerParams{};
  params.presence_penalty = 0.5f;
  CHECK(close(after(params), {2.0f, 1.5f, -2.5f, 2.0f}));
  params = SamplerParams{};
  params.frequency_penalty = 0.5f;
  CHECK(close(after(params), {2.0f, 0.5f, -2.5f, 2.0f}));
  params.repetition_penalty = 2.0f;  // first the factor, then the subtraction
  CHECK(close(after(params), {1.0f, -0.5f, -4.5f, 2.0f}));
}

TEST(bias_is_added_after_penalties_and_ids_outside_are_ignored) {
  const LogitBias bias[] = {{1, 3.0f}, {-1, 50.0f}, {4, 50.0f}, {1 << 30, 50.0f}};
  const TokenCount counts[] = {{1, 0, 1}, {-5, 3, 3}, {99, 1, 1}};
  SamplerParams params = greedy();
  params.bias = bias;
  CHECK_EQ(Row({2, 0, 1, 0}).id(params, 0, counts), 1);
  params.repetition_penalty = 100.0f;  // would shrink 0 + 3 to nothing if it came later
  CHECK_EQ(Row({2, 0, 1, 0}).id(params, 0, counts), 1);
}

TEST(masked_ids_never_come_out) {
  const int32_t stops[] = {5, 1, -3, 900};
  SamplerParams params;
  params.masked_ids = stops;
  Row row(kEight);
  auto want = softmax(kEight, 1.0);
  want.erase(5);
  want.erase(1);
  CHECK(fits(draws(row, params, 30000), want, 30000));
  params.temperature = 0;
  CHECK_EQ(row.id(params), 3);
  const LogitBias bias[] = {{5, 100.0f}};
  params.bias = bias;
  CHECK_EQ(row.id(params), 3);
}

TEST(an_allowed_mask_restricts_the_choice) {
  const uint32_t only[] = {1u << 2 | 1u << 6};
  SamplerParams params;
  params.allowed_mask = only;
  Row row(kEight);
  CHECK(fits(draws(row, params, 10000), {{2, std::exp(-1.0)}, {6, std::exp(-0.5)}}, 10000));
  const uint32_t none[] = {0};
  params.allowed_mask = none;
  CHECK_EQ(row.id(params), -1);
  CHECK(row.sample(params).finite);
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

TEST(token_counts_keep_one_entry_for_each_distinct_id) {
  TokenCounts counts;
  std::map<int32_t, std::pair<int, int>> want;
  Random random(9);
  for (int i = 0; i < 5000; ++i) {
    const int32_t id = static_cast<int32_t>(random() % 700) * 61;
    if (i < 2000) {
      counts.add_prompt(id);
      ++want[id].first;
    } else {
      counts.add_generated(id);
      ++want[id].second;
    }
  }
  CHECK_EQ(counts.entries().size(), want.size());
  for (const TokenCount& entry : counts.entries()) {
    CHECK_EQ(entry.prompt, want[entry.id].first);
    CHECK_EQ(entry.generated, want[entry.id].second);
  }
  counts.clear();
  CHECK(counts.entries().empty());
  counts.add_generated(3);
  CHECK_EQ(counts.entries()[0].generated, 1);
}

int main(int argc, char** argv) {
  return check::main(argc, argv);
}
