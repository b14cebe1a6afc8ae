// The CPU runner behind the seam of core/runner.h: protocol, slots, block tables, copies, what a fault
// leaves. ION_TEST_MODEL names a small Llama GGUF file (test_cpu_runner.py writes one).
#include <chrono>
#include <cstdlib>
#include <numeric>
#include <thread>

#include "check.h"
#include "core/runner.h"
#include "models/cpu_runner.h"

namespace ion {
namespace {

constexpr int32_t kNumBlocks = 24, kMaxSlots = 4, kMaxTokens = 64;
constexpr uint8_t kGenerates = kRowSample;

std::shared_ptr<const Model> model() {
  static const std::shared_ptr<const Model> loaded =
      Model::load_gguf(std::getenv("ION_TEST_MODEL"), kernels::Numerics::fast, 2);
  return loaded;
}

std::vector<int32_t> prompt_of(int32_t length, int32_t seed) {
  std::vector<int32_t> out(length);
  for (int32_t i = 0; i < length; ++i) out[i] = (i * 31 + seed * 17 + i * i) % model()->config().vocab_size;
  return out;
}

SamplingParams greedy() {
  SamplingParams params;
  params.temperature = 0.0f;
  params.num_logprobs = 2;
  return params;
}

// Builds steps and runs them one by one, or leaves them in flight.
struct Rig {
  CpuRunner runner{model(),
                   {.num_blocks = kNumBlocks, .max_slots = kMaxSlots, .max_tokens_per_step = kMaxTokens}};
  uint64_t epoch = 0;

  Step step(std::vector<Row> rows, Delta delta = {}) { return {++epoch, std::move(rows), std::move(delta)}; }

  StepResult run(Step step) {
    runner.submit(std::move(step));
    StepResult result;
    CHECK(runner.poll(result, true));
    return result;
  }

  // Joins a slot with its blocks first_block, first_block + 1, ...
  Delta joining(SeqSlot slot, std::vector<int32_t> ids, int32_t num_prompt, BlockId first_block,
                int32_t num_blocks, SamplingParams sampling = greedy()) {
    Delta delta;
    delta.joins.push_back({slot, std::move(sampling), std::move(ids), num_prompt});
    for (int32_t i = 0; i < num_blocks; ++i) delta.blocks.push_back({slot, i, first_block + i});
    return delta;
  }

  // Prefills `prompt` in slot 0 and generates: what the other tests compare with.
  std::vector<int32_t> generate(const std::vector<int32_t>& prompt, int32_t num_new,
                                SamplingParams sampling) {
    const auto length = static_cast<int32_t>(prompt.size());
    std::vector<int32_t> out;
    Delta delta = joining(0, prompt, length, 0, (length + num_new) / 16 + 1, std::move(sampling));
    out.push_back(run(step({{0, 0, length, kGenerates}}, std::move(delta))).sampled.at(0).id);
    for (int32_t i = 1; i < num_new; ++i) {
      out.push_back(run(step({{0, length + i - 1, 1, kGenerates}})).sampled.at(0).id);
    }
    Delta leaving;
    leaving.leaves.push_back(0);
    CHECK_EQ(run(step({}, std::move(leaving))).error, "");
    return out;
  }
};

TEST(nothing_in_flight_polls_as_nothing_even_when_told_to_wait) {
  Rig rig;
  StepResult result;
  CHECK(!rig.runner.poll(result, false));
  CHECK(!rig.runner.poll(result, true));
}

TEST(a_fifth_step_in_flight_is_refused) {
  Rig rig;
  for (int i = 0; i < 4; ++i) rig.runner.submit(rig.step({}));
  CHECK_THROWS(std::logic_error, rig.runner.submit(rig.step({})), "fifth");
  StepResult result;
  for (uint64_t epoch = 1; epoch <= 4; ++epoch) {
    CHECK(rig.runner.poll(result, true));
    CHECK_EQ(result.epoch, epoch);
  }
  CHECK(!rig.runner.poll(result, true));
}

TEST(decode_rows_in_flight_continue_from_ids_that_nobody_polled_yet) {
  Rig rig;
  const std::vector<int32_t> prompt = prompt_of(20, 1);
  const std::vector<int32_t> wanted = rig.generate(prompt, 4, greedy());
  rig.runner.submit(rig.step({{1, 0, 20, kGenerates}}, rig.joining(1, prompt, 20, 8, 2)));
  for (int32_t i = 0; i < 3; ++i) rig.runner.submit(rig.step({{1, 20 + i, 1, kGenerates}}));
  for (int32_t i = 0; i < 4; ++i) {
    StepResult result;
    CHECK(rig.runner.poll(result, true));
    CHECK_EQ(result.error, "");
    CHECK_EQ(result.sampled.at(0).slot, 1);
    CHECK_EQ(result.sampled.at(0).id, wanted[i]);
  }
}

TEST(results_come_one_per_sampled_row_in_row_order) {
  Rig rig;
  Delta delta = rig.joining(2, prompt_of(5, 1), 5, 0, 1);
  for (const SeqSlot slot : {0, 3}) {
    const Delta more = rig.joining(slot, prompt_of(7, slot), 7, slot + 1, 1);
    delta.joins.push_back(more.joins[0]);
    delta.blocks.push_back(more.blocks[0]);
  }
  const StepResult result =
      rig.run(rig.step({{3, 0, 7, kGenerates}, {0, 0, 4, 0}, {2, 0, 5, kGenerates}}, std::move(delta)));
  CHECK_EQ(result.error, "");
  CHECK_EQ(result.sampled.size(), size_t{2});
  CHECK_EQ(result.sampled.at(0).slot, 3);
  CHECK_EQ(result.sampled.at(1).slot, 2);
  for (const Sampled& sampled : result.sampled) {
    CHECK(sampled.finite);
    CHECK_EQ(sampled.top.size(), size_t{2});
    CHECK_EQ(sampled.top[0].id, sampled.id);
    CHECK_EQ(sampled.top[0].logprob, sampled.logprob);
    CHECK(sampled.top[0].logprob >= sampled.top[1].logprob);
  }
}

// More tokens than slots, so that logits come in pieces; cut anywhere, beside others, the bits are the same.
TEST(prompt_tokens_are_reported_by_the_row_that_foresees_them) {
  const auto bits = [](const std::vector<PromptToken>& tokens) {
    std::vector<float> out;
    for (const PromptToken& token : tokens) {
      out.insert(out.end(), {static_cast<float>(token.id), token.logprob, static_cast<float>(token.rank)});
      for (const TokenLogprob& entry : token.top) {
        out.insert(out.end(), {static_cast<float>(entry.id), entry.logprob});
      }
    }
    return out;
  };
  const std::vector<int32_t> prompt = prompt_of(40, 3);
  SamplingParams scored = greedy();
  scored.num_prompt_logprobs = 3;
  Rig rig;
  const auto kBoth = static_cast<uint8_t>(kRowSample | kRowPromptLogprobs);
  const StepResult whole = rig.run(rig.step({{0, 0, 40, kBoth}}, rig.joining(0, prompt, 40, 0, 3, scored)));
  CHECK_EQ(whole.error, "");
  const PromptLogprobs& report = whole.prompt_logprobs.at(0);
  CHECK(report.finite);
  CHECK_EQ(report.tokens.size(), size_t{39});
  for (size_t i = 0; i < report.tokens.size(); ++i) {
    const PromptToken& token = report.tokens[i];
    CHECK_EQ(token.id, prompt[i + 1]);
    CHECK_EQ(token.top.size(), size_t{3});
    CHECK(token.rank >= 1 && token.rank <= rig.runner.caps().vocab_size);
    if (token.rank <= 3) CHECK_EQ(token.top[token.rank - 1].id, token.id);
    if (token.rank > 3) CHECK(token.logprob <= token.top[2].logprob);
  }
  // In chunks of 7, each beside a decode row of another slot that samples.
  const std::vector<int32_t> other = prompt_of(5, 9);
  rig.run(rig.step({{1, 0, 5, kGenerates}}, rig.joining(1, other, 5, 8, 2)));
  std::vector<PromptToken> pieces;
  int32_t last = -1;
  for (int32_t start = 0, turn = 0; start < 40; start += 7, ++turn) {
    const int32_t count = std::min(7, 40 - start);
    const uint8_t flags = start + count == 40 ? kBoth : uint8_t{kRowPromptLogprobs};
    Delta delta = start == 0 ? rig.joining(2, prompt, 40, 12, 3, scored) : Delta{};
    StepResult result =
        rig.run(rig.step({{1, 5 + turn, 1, kGenerates}, {2, start, count, flags}}, std::move(delta)));
    CHECK_EQ(result.error, "");
    auto& tokens = result.prompt_logprobs.at(0).tokens;
    pieces.insert(pieces.end(), tokens.begin(), tokens.end());
    last = result.sampled.back().id;
  }
  CHECK_EQ(bits(pieces), bits(report.tokens));
  CHECK_EQ(last, whole.sampled.at(0).id);
}

TEST(a_copied_block_serves_like_the_one_it_came_from) {
  Rig rig;
  const std::vector<int32_t> prompt = prompt_of(40, 2);
  const std::vector<int32_t> wanted = rig.generate(prompt, 2, greedy());
  CHECK_EQ(rig.run(rig.step({{0, 0, 39, 0}}, rig.joining(0, prompt, 40, 0, 3))).error, "");
  Delta delta = rig.joining(1, prompt, 40, 10, 3);
  for (BlockId i = 0; i < 3; ++i) delta.copies.push_back({i, 10 + i});
  const StepResult result = rig.run(rig.step({{1, 39, 1, kGenerates}}, std::move(delta)));
  CHECK_EQ(result.error, "");
  CHECK_EQ(result.sampled.at(0).id, wanted[0]);
  CHECK_EQ(rig.run(rig.step({{1, 40, 1, kGenerates}})).sampled.at(0).id, wanted[1]);
}

TEST(a_sequence_that_rejoins_after_preemption_goes_on_as_if_it_had_stayed) {
  Rig rig;
  SamplingParams sampling;
  sampling.seed = 11;
  sampling.frequency_penalty = 0.7f;
  sampling.repetition_penalty = 1.3f;
  const std::vector<int32_t> prompt = prompt_of(18, 3);
  const std::vector<int32_t> wanted = rig.generate(prompt, 12, sampling);
  std::vector<int32_t> ids = prompt;
  ids.insert(ids.end(), wanted.begin(), wanted.begin() + 6);
  const auto length = static_cast<int32_t>(ids.size());
  Delta delta = rig.joining(2, ids, 18, 5, 2, sampling);
  CHECK_EQ(rig.run(rig.step({{2, 0, length, kGenerates}}, std::move(delta))).sampled.at(0).id, wanted[6]);
  for (int32_t i = 7; i < 12; ++i) {
    CHECK_EQ(rig.run(rig.step({{2, 18 + i - 1, 1, kGenerates}})).sampled.at(0).id, wanted[i]);
  }
}

TEST(a_slot_taken_again_knows_nothing_of_its_last_owner) {
  Rig rig;
  SamplingParams sampling = greedy();
  sampling.repetition_penalty = 2.0f;
  sampling.presence_penalty = 1.0f;
  const std::vector<int32_t> wanted = rig.generate(prompt_of(9, 4), 8, sampling);
  rig.generate(prompt_of(60, 5), 20, sampling);
  CHECK_EQ(rig.generate(prompt_of(9, 4), 8, sampling), wanted);
}

TEST(stop_ids_are_not_drawn_below_min_tokens) {
  Rig rig;
  const std::vector<int32_t> prompt = prompt_of(12, 6);
  SamplingParams sampling = greedy();
  sampling.stop_ids = {rig.generate(prompt, 1, greedy())[0]};
  CHECK_EQ(rig.generate(prompt, 1, sampling)[0], sampling.stop_ids[0]);
  sampling.min_tokens = 3;
  for (const int32_t id : rig.generate(prompt, 3, sampling)) CHECK(id != sampling.stop_ids[0]);
}

TEST(a_mask_decides_what_a_row_may_sample_and_its_neighbours_do_not_wait_for_their_own) {
  Rig rig;
  const std::vector<int32_t> prompt = prompt_of(12, 6);
  const int32_t wanted = rig.generate(prompt, 1, greedy())[0];
  Delta delta = rig.joining(0, prompt, 12, 0, 1);
  const Delta more = rig.joining(1, prompt, 12, 4, 1);
  delta.joins.push_back(more.joins[0]);
  delta.blocks.push_back(more.blocks[0]);
  const auto kMasked = static_cast<uint8_t>(kRowSample | kRowGrammar);
  Step step = rig.step({{0, 0, 12, kMasked}, {1, 0, 12, kGenerates}}, std::move(delta));
  const uint64_t epoch = step.epoch;
  rig.runner.submit(std::move(step));
  StepResult result;
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // far longer than this step computes
  CHECK(!rig.runner.poll(result, false));
  const auto num_words = static_cast<size_t>(rig.runner.caps().vocab_size + 31) / 32;
  std::vector<uint32_t> words(num_words, 0);
  const int32_t only = wanted == 3 ? 4 : 3;
  words[0] = 1u << only;
  rig.runner.upload_masks(epoch, {{0, words}});
  rig.runner.upload_masks(epoch + 1, {});  // of a step that never comes, so that nobody takes them meanwhile
  CHECK_THROWS(std::logic_error, rig.runner.upload_masks(epoch + 1, {}), "second");
  CHECK(rig.runner.poll(result, true));
  CHECK_EQ(result.error, "");
  CHECK_EQ(result.sampled.at(0).id, only);
  CHECK_EQ(result.sampled.at(1).id, wanted);
  CHECK(result.seconds < 0.5);  // the wait is not compute time
}

TEST(a_mask_that_leaves_nothing_is_told_from_logits_that_are_not_finite) {
  Rig rig;
  Step step = rig.step({{0, 0, 5, static_cast<uint8_t>(kRowSample | kRowGrammar)}},
                       rig.joining(0, prompt_of(5, 1), 5, 0, 1));
  const auto num_words = static_cast<size_t>(rig.runner.caps().vocab_size + 31) / 32;
  const uint64_t epoch = step.epoch;
  rig.runner.submit(std::move(step));
  rig.runner.upload_masks(epoch, {{0, std::vector<uint32_t>(num_words, 0)}});
  StepResult result;
  CHECK(rig.runner.poll(result, true));
  CHECK_EQ(result.sampled.at(0).id, -1);
  CHECK(result.sampled.at(0).finite);
}

TEST(a_runner_that_waits_for_masks_can_be_destroyed) {
  Rig rig;
  rig.runner.submit(rig.step({{0, 0, 5, static_cast<uint8_t>(kRowSample | kRowGrammar)}},
                             rig.joining(0, prompt_of(5, 1), 5, 0, 1)));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

TEST(a_bias_moves_the_choice) {
  Rig rig;
  const std::vector<int32_t> prompt = prompt_of(12, 6);
  SamplingParams sampling = greedy();
  sampling.logit_bias = {{7, 1000.0f}};
  CHECK_EQ(rig.generate(prompt, 2, sampling), (std::vector<int32_t>{7, 7}));
  sampling.logit_bias = {{rig.generate(prompt, 1, greedy())[0], -1000.0f}};
  CHECK(rig.generate(prompt, 1, sampling)[0] != sampling.logit_bias[0].id);
}

// Each of these is the engine's fault: the step says so, and the runner goes on.
TEST(a_step_that_makes_no_sense_fails_with_its_reason) {
  Rig rig;
  const auto fault = [&](std::vector<Row> rows, Delta delta = {}) {
    return rig.run(rig.step(std::move(rows), std::move(delta))).error;
  };
  const auto holds = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  CHECK(holds(fault({{1, 0, 1, 0}}), "slot 1 is empty"));
  CHECK(holds(fault({{9, 0, 1, 0}}), "out of range") || holds(fault({{9, 0, 1, 0}}), "range"));
  CHECK(holds(fault({{0, 0, 21, 0}}, rig.joining(0, prompt_of(20, 1), 20, 0, 1)), "no ids"));
  CHECK(holds(fault({{0, 0, 20, 0}}), "no block"));
  CHECK(holds(fault({{0, 0, 10, kGenerates}}), "before its last id"));
  CHECK(holds(fault({{0, 0, 10, 8}}), "flags"));
  CHECK(holds(fault({}, rig.joining(0, prompt_of(5, 1), 5, 0, 1)), "joined twice"));
  CHECK(holds(fault({}, rig.joining(1, {1, 2, 1 << 20}, 3, 0, 1)), "vocabulary"));
  Delta gap;
  gap.blocks.push_back({0, 5, 1});
  CHECK(holds(fault({}, std::move(gap)), "gap"));
  Delta outside;
  outside.blocks.push_back({0, 1, kNumBlocks});
  CHECK(holds(fault({}, std::move(outside)), "outside"));
  Delta lost;
  lost.copies.push_back({0, kNumBlocks});
  CHECK(holds(fault({}, std::move(lost)), "outside"));
  CHECK(holds(fault({{2, 0, 65, 0}}, rig.joining(2, prompt_of(65, 1), 65, 0, 5)), "too many tokens"));
  Delta leaving;
  leaving.leaves.push_back(0);
  CHECK_EQ(fault({}, std::move(leaving)), "");
  CHECK_EQ(rig.generate(prompt_of(20, 1), 3, greedy()).size(), size_t{3});
}

TEST(options_that_make_no_sense_are_named) {
  CHECK_THROWS(std::invalid_argument, CpuRunner(model(), {.kv_memory_bytes = 10}), "kv_memory_bytes", "10");
  CHECK_THROWS(std::invalid_argument, CpuRunner(model(), {.num_blocks = 4, .context_length = 1 << 20}),
               "context_length");
  CHECK_THROWS(std::invalid_argument, CpuRunner(model(), {.num_blocks = 4, .max_slots = 0}), "max_slots");
  CHECK_THROWS(std::invalid_argument, CpuRunner(model(), {.kv_memory_bytes = int64_t{1} << 42}), "KV cache",
               "bytes");
}

TEST(blocks_follow_from_memory) {
  const int64_t block_bytes = model()->kv_block_bytes();
  const CpuRunner given(model(), {.kv_memory_bytes = 10 * block_bytes + 1});
  CHECK_EQ(given.caps().num_blocks, 10);
  const CpuRunner free(model(), {.max_slots = 2});
  CHECK(free.caps().num_blocks >= model()->config().context_length / 16);
}

}  // namespace
}  // namespace ion

int main(int argc, char** argv) {
  return check::main(argc, argv);
}
