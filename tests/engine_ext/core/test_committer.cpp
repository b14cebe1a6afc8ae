// Committer: results made by hand, also those that no good runner gives.
#include "check.h"
#include "core/committer.h"

namespace {

constexpr ion::Caps kCaps{.num_blocks = 16,
                          .block_size = 4,
                          .max_slots = 4,
                          .max_tokens_per_step = 64,
                          .context_length = 64,
                          .vocab_size = 10};

struct Desk {
  Desk() : scheduler(kCaps, {}, ""), committer(scheduler, {"", "a", "b", "c"}, kCaps.vocab_size) {}

  ion::SequencePtr add(int32_t num_prompt = 3, int32_t max_new = 20) {
    const auto sequence = std::make_shared<ion::Sequence>(next_id++, std::vector<int32_t>(num_prompt, 5),
                                                          std::vector<std::string>{});
    sequence->max_new = max_new;
    sequence->ending_ids = {0};
    scheduler.add(sequence, 0);
    return sequence;
  }

  // Runs one step in which each sampling row gets the next of `ids`.
  std::vector<ion::Event> turn(const std::vector<int32_t>& ids) {
    const ion::ScheduledStep step = scheduler.schedule();
    ion::StepResult result;
    result.epoch = step.epoch;
    for (size_t i = 0; i < ids.size(); ++i)
      result.sampled.push_back({step.rows[i].slot, ids[i], true, 0, {}});
    return commit(step, result);
  }

  std::vector<ion::Event> commit(const ion::ScheduledStep& step, ion::StepResult result) {
    committer.commit(step, result);
    scheduler.complete(step.epoch);
    scheduler.check_integrity();
    return committer.take_events();
  }

  ion::Scheduler scheduler;
  ion::Committer committer;
  uint64_t next_id = 1;
};

}  // namespace

TEST(an_ending_id_below_min_tokens_is_an_ordinary_token_even_if_the_runner_did_not_mask_it) {
  Desk desk;
  const auto sequence = desk.add();
  sequence->sampling.min_tokens = 2;
  for (int32_t id : {0, 0}) CHECK(desk.turn({id}).empty());
  const auto events = desk.turn({0});
  CHECK_EQ(events.size(), size_t{1});
  CHECK_EQ(events[0].packed_flags(), int64_t{ion::kStop | 3 << 8});
}

TEST(tokens_without_text_are_accounted_for_with_the_next_that_has_some) {
  Desk desk;
  desk.add();
  CHECK_EQ(desk.turn({1})[0].packed_flags(), int64_t{1 << 8});
  CHECK(desk.turn({9}).empty());
  CHECK(desk.turn({9}).empty());
  const auto events = desk.turn({2});
  CHECK_EQ(events[0].text, std::string("b"));
  CHECK_EQ(events[0].num_tokens, 3);
}

TEST(a_token_outside_the_vocabulary_ends_its_sequence_alone) {
  Desk desk;
  desk.add(), desk.add();
  const auto events = desk.turn({10, 1});
  CHECK_EQ(events.size(), size_t{2});
  CHECK_EQ(events[0].finish, ion::kError);
  CHECK(events[0].error.find("10") != std::string::npos);
  CHECK_EQ(events[1].text, std::string("a"));
  CHECK_EQ(desk.turn({-1})[0].finish, ion::kError);
}

TEST(samples_that_do_not_fit_the_rows_fail_the_step) {
  const std::vector<std::vector<int32_t>> wrong = {{}, {1}, {1, 1, 1}};
  for (const auto& ids : wrong) {
    Desk desk;
    desk.add(), desk.add();
    const ion::ScheduledStep step = desk.scheduler.schedule();
    ion::StepResult result;
    for (size_t i = 0; i < ids.size(); ++i) {
      result.sampled.push_back({static_cast<ion::SeqSlot>(i), ids[i], true, 0, {}});
    }
    const auto events = desk.commit(step, result);
    CHECK_EQ(events.size(), size_t{2});
    for (const auto& event : events) CHECK_EQ(event.finish, ion::kError);
  }
  Desk desk;
  desk.add();
  const ion::ScheduledStep step = desk.scheduler.schedule();
  ion::StepResult result;
  result.sampled.push_back({step.rows[0].slot + 1, 1, true, 0, {}});
  CHECK(desk.commit(step, result)[0].error.find("another slot") != std::string::npos);
}

TEST(what_was_computed_past_an_end_is_ignored) {
  Desk desk;
  const auto sequence = desk.add();
  const ion::ScheduledStep one = desk.scheduler.schedule(), two = desk.scheduler.schedule();
  ion::StepResult first{.epoch = one.epoch, .sampled = {{one.rows[0].slot, 0, true, 0, {}}}, .error = {}};
  CHECK_EQ(desk.commit(one, first)[0].packed_flags(), int64_t{ion::kStop | 1 << 8});
  CHECK_EQ(desk.scheduler.blocks().num_used(), 1);
  ion::StepResult second{.epoch = two.epoch, .sampled = {{two.rows[0].slot, 1, true, 0, {}}}, .error = {}};
  CHECK(desk.commit(two, second).empty());
  CHECK_EQ(desk.committer.counters().tokens_generated, int64_t{1});
  CHECK_EQ(sequence->num_generated(), 1);
  CHECK_EQ(desk.scheduler.blocks().num_used(), 0);
}

TEST(a_sequence_that_ends_with_its_first_token_leaves_its_prompt_in_the_cache) {
  Desk desk;
  desk.add(9, 1);
  CHECK_EQ(desk.turn({1})[0].finish, ion::kLength);
  CHECK_EQ(desk.scheduler.blocks().num_cached(), 2);
}

TEST(prompt_tokens_come_with_the_first_event_once) {
  Desk desk;
  const auto sequence = desk.add(5);
  sequence->sampling.num_prompt_logprobs = 0;
  sequence->num_scored = 2;  // reported before a preemption
  const auto report = [](ion::SeqSlot slot) {
    ion::PromptLogprobs scores{slot, true, {}};
    for (int32_t i = 0; i < 4; ++i) scores.tokens.push_back({5, -1.0f - static_cast<float>(i), 1, {}});
    return scores;
  };
  const ion::ScheduledStep step = desk.scheduler.schedule();
  ion::StepResult result{.epoch = step.epoch, .sampled = {{step.rows[0].slot, 9, true, 0, {}}}};
  result.prompt_logprobs.push_back(report(step.rows[0].slot));
  const auto events = desk.commit(step, result);
  CHECK_EQ(events.size(), size_t{1});  // although token 9 has no text
  CHECK_EQ(events[0].prompt_logprobs.size(), size_t{2});
  CHECK_EQ(events[0].prompt_logprobs[0].logprob, -3.0f);
  CHECK_EQ(sequence->num_scored, 4);
  CHECK(desk.turn({1})[0].prompt_logprobs.empty());
}

TEST(reports_that_do_not_fit_the_rows_fail_the_step) {
  const auto wrong = [](std::vector<ion::PromptLogprobs> reports) {
    Desk desk;
    desk.add(3)->sampling.num_prompt_logprobs = 0;
    const ion::ScheduledStep step = desk.scheduler.schedule();
    ion::StepResult result{.epoch = step.epoch, .sampled = {{step.rows[0].slot, 1, true, 0, {}}}};
    for (ion::PromptLogprobs& report : reports) report.slot += step.rows[0].slot;
    result.prompt_logprobs = std::move(reports);
    return desk.commit(step, result).at(0).error;
  };
  const ion::PromptToken token{5, -1.0f, 1, {}};
  CHECK_EQ(wrong({{0, true, {token, token}}}), "");
  CHECK(wrong({}).find("left out") != std::string::npos);
  CHECK(wrong({{0, true, {token}}}).find("other prompt tokens") != std::string::npos);
  CHECK(wrong({{1, true, {token, token}}}).find("other prompt tokens") != std::string::npos);
  CHECK(wrong({{0, true, {token, token}}, {0, true, {}}}).find("unasked") != std::string::npos);
  CHECK(wrong({{0, false, {}}}).find("NaN") != std::string::npos);
}

TEST(a_prompt_that_is_scored_only_ends_without_a_token_and_is_cached) {
  Desk desk;
  const auto sequence = desk.add(9, 0);
  sequence->sampling.num_prompt_logprobs = 0;
  const ion::ScheduledStep step = desk.scheduler.schedule();
  CHECK(desk.scheduler.schedule().is_empty());
  ion::StepResult result{.epoch = step.epoch, .sampled = {{step.rows[0].slot, 1, true, 0, {}}}};
  result.prompt_logprobs.push_back({step.rows[0].slot, true, std::vector<ion::PromptToken>(8)});
  const auto events = desk.commit(step, result);
  CHECK_EQ(events.at(0).packed_flags(), int64_t{ion::kLength});
  CHECK_EQ(events[0].text + events[0].error, "");
  CHECK_EQ(events[0].prompt_logprobs.size(), size_t{8});
  CHECK_EQ(desk.committer.counters().tokens_generated, int64_t{0});
  CHECK_EQ(desk.scheduler.blocks().num_cached(), 2);
  CHECK_EQ(desk.scheduler.blocks().num_used(), 0);
}

int main(int argc, char** argv) {
  return check::main(argc, argv);
}
