// What changes logits before the draw: penalties, bias, masks; and the counts that penalties read.
#include "sampler_support.h"

using namespace support;

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
