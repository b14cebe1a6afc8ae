// Scheduler: what is in a step, in which order, and when slots and blocks are
// given out again.
#include <map>

#include "check.h"
#include "core/scheduler.h"

using ion::Caps;
using ion::kRowSample;
using ion::Row;
using ion::ScheduledStep;
using ion::Scheduler;
using ion::SequencePtr;
using ion::Status;

namespace {

struct Desk {
  explicit Desk(Caps caps, ion::SchedulerOptions options = {}) : scheduler(caps, options, "") {}

  SequencePtr add(int32_t num_prompt, int32_t priority = 0, int32_t max_new = 100) {
    std::vector<int32_t> prompt;
    for (int32_t i = 0; i < num_prompt; ++i) prompt.push_back(next_token++);
    auto sequence = std::make_shared<ion::Sequence>(next_id++, prompt, std::vector<std::string>{});
    sequence->max_new = max_new;
    scheduler.add(sequence, priority);
    return sequence;
  }

  // Schedules one step and leaves it in flight.
  ScheduledStep schedule() {
    ScheduledStep step = scheduler.schedule();
    scheduler.check_integrity();
    return step;
  }

  // What commit does when nothing ends: one more token for each sampling row.
  void commit(const ScheduledStep& step) {
    for (size_t i = 0; i < step.rows.size(); ++i) {
      ion::Sequence& owner = *step.owners[i];
      if (owner.status == Status::kFinished) continue;
      if (owner.status == Status::kRunning) owner.num_computed = step.rows[i].start + step.rows[i].count;
      if (!(step.rows[i].flags & kRowSample)) continue;
      --owner.num_in_flight;
      scheduler.seal(owner);
      owner.ids.push_back(next_token++);
    }
    scheduler.complete(step.epoch);
    scheduler.check_integrity();
  }

  ScheduledStep turn() {
    ScheduledStep step = schedule();
    commit(step);
    return step;
  }

  Scheduler scheduler;
  int32_t next_token = 0;
  uint64_t next_id = 1;
};

constexpr Caps kCaps{.num_blocks = 64,
                     .block_size = 4,
                     .max_slots = 8,
                     .max_tokens_per_step = 512,
                     .context_length = 200,
                     .vocab_size = 1000};

// "slot start count sample" of each row.
std::vector<std::string> rows(const ScheduledStep& step) {
  std::vector<std::string> shown;
  for (size_t i = 0; i < step.rows.size(); ++i) {
    const Row& row = step.rows[i];
    shown.push_back(std::to_string(step.owners[i]->id) + ":" + std::to_string(row.start) + "+" +
                    std::to_string(row.count) + (row.flags & kRowSample ? "s" : ""));
  }
  return shown;
}

using Rows = std::vector<std::string>;

}  // namespace

TEST(decode_rows_come_first_then_chunks_then_joins_within_the_budget) {
  Desk desk(kCaps, {.token_budget = 10});
  desk.add(3);
  CHECK_EQ(rows(desk.turn()), (Rows{"1:0+3s"}));
  desk.add(12);
  desk.add(9);
  CHECK_EQ(rows(desk.turn()), (Rows{"1:3+1s", "2:0+9"}));
  CHECK_EQ(rows(desk.turn()), (Rows{"1:4+1s", "2:9+3s", "3:0+6"}));
  CHECK_EQ(rows(desk.turn()), (Rows{"1:5+1s", "2:12+1s", "3:6+3s"}));
}

TEST(a_join_carries_its_ids_and_the_step_all_its_blocks) {
  Desk desk(kCaps);
  const auto sequence = desk.add(9);
  const auto step = desk.schedule();
  CHECK_EQ(step.step.delta.joins.size(), size_t{1});
  CHECK_EQ(step.step.delta.joins[0].ids, sequence->ids);
  CHECK_EQ(step.step.delta.joins[0].num_prompt, 9);
  CHECK_EQ(step.step.delta.blocks.size(), size_t{3});
}

TEST(a_decode_row_may_run_ahead_of_commit_but_not_beyond_the_last_token) {
  Desk desk(kCaps);
  desk.add(3, 0, 2);
  const auto first = desk.schedule(), second = desk.schedule();
  CHECK_EQ(rows(second), (Rows{"1:3+1s"}));
  CHECK(desk.schedule().is_empty());
  desk.commit(first);
  CHECK(desk.schedule().is_empty());
}

TEST(priority_is_a_head_start_and_equal_ones_keep_their_order) {
  Desk desk(kCaps, {.max_running = 1});
  desk.add(3), desk.add(3, 1), desk.add(3, 1), desk.add(3, 5);
  std::vector<uint64_t> order;
  for (int i = 0; i < 4; ++i) {
    const auto step = desk.turn();
    order.push_back(step.owners[0]->id);
    desk.scheduler.remove(step.owners[0]);
  }
  CHECK_EQ(order, (std::vector<uint64_t>{4, 2, 3, 1}));
}

TEST(a_stream_of_higher_priorities_does_not_starve_the_lowest) {
  Desk desk(kCaps, {.max_running = 1});
  const auto low = desk.add(3, 0);
  int num_others = 0;
  for (; low->status == Status::kWaiting && num_others < 10000; ++num_others) {
    desk.add(3, 2);
    const auto step = desk.turn();
    desk.scheduler.remove(step.owners[0]);
  }
  CHECK_EQ(low->status, Status::kFinished);
  CHECK(num_others <= 2 * Scheduler::kHeadStart + 2);
}

TEST(priorities_beyond_the_range_are_as_good_as_its_ends) {
  Desk desk(kCaps);
  const auto most = desk.add(3, 2147483647), least = desk.add(3, -2147483647 - 1);
  CHECK_EQ(most->rank, -Scheduler::kHeadStart * Scheduler::kMaxPriority);
  CHECK_EQ(least->rank, Scheduler::kHeadStart * Scheduler::kMaxPriority);
}

TEST(a_slot_and_its_blocks_are_given_out_again_only_when_no_step_in_flight_names_them) {
  Caps caps = kCaps;
  caps.max_slots = 1;
  caps.num_blocks = 2;
  Desk desk(caps, {.prefix_cache = false});
  const auto first = desk.add(5);
  const auto one = desk.schedule(), two = desk.schedule();
  desk.add(5);
  desk.scheduler.remove(first);
  CHECK(desk.schedule().is_empty());
  desk.commit(one);
  CHECK(desk.schedule().is_empty());
  CHECK_EQ(desk.scheduler.blocks().num_used(), 2);
  desk.commit(two);
  const auto three = desk.schedule();
  CHECK_EQ(rows(three), (Rows{"2:0+5s"}));
  CHECK_EQ(three.step.delta.leaves, (std::vector<ion::SeqSlot>{0}));
  CHECK_EQ(three.step.delta.joins[0].slot, 0);
}

TEST(the_last_in_order_is_preempted_and_later_joins_with_all_its_ids) {
  Caps caps = kCaps;
  caps.num_blocks = 5;
  Desk desk(caps, {.prefix_cache = false});
  const auto first = desk.add(7), second = desk.add(3);
  while (second->status == Status::kWaiting) desk.turn();
  while (second->status == Status::kRunning) desk.turn();
  CHECK_EQ(first->status, Status::kRunning);
  CHECK_EQ(desk.scheduler.num_preemptions(), int64_t{1});
  const auto ids = second->ids;
  CHECK(ids.size() > 3);
  desk.scheduler.remove(first);
  const auto step = desk.turn();
  CHECK_EQ(step.step.delta.joins[0].ids, ids);
  CHECK_EQ(step.step.delta.joins[0].num_prompt, 3);
  CHECK_EQ(step.rows[0].count, static_cast<int32_t>(ids.size()));
}

TEST(a_preempted_sequence_waits_for_its_sample_in_flight) {
  Caps caps = kCaps;
  caps.num_blocks = 4;
  Desk desk(caps, {.prefix_cache = false});
  const auto first = desk.add(7), second = desk.add(3);
  desk.turn();                       // 8 and 4 ids: 2 and 1 blocks
  const auto one = desk.schedule();  // position 7 and 3: still fit
  const auto two = desk.schedule();  // positions 8 and 4: the first takes the
                                     // last block, the second preempts itself
  CHECK_EQ(rows(two), (Rows{"1:8+1s"}));
  CHECK_EQ(second->status, Status::kWaiting);
  CHECK_EQ(second->num_in_flight, 1);
  desk.scheduler.remove(first);
  CHECK(desk.schedule().is_empty());
  desk.commit(one);
  CHECK_EQ(second->num_ids(), 5);
  desk.commit(two);
  CHECK_EQ(rows(desk.turn()), (Rows{"2:0+5s"}));
}

TEST(nobody_is_preempted_for_a_block_that_a_step_in_flight_is_about_to_free) {
  Caps caps = kCaps;
  caps.num_blocks = 4;
  Desk desk(caps, {.prefix_cache = false});
  const auto first = desk.add(1), second = desk.add(6);
  for (int i = 0; i < 3; ++i) desk.turn();
  const auto in_flight = desk.schedule();
  CHECK_EQ(rows(in_flight), (Rows{"1:3+1s", "2:8+1s"}));
  CHECK_EQ(desk.scheduler.blocks().num_available(), 0);
  desk.scheduler.remove(second);
  CHECK(desk.schedule().is_empty());
  CHECK_EQ(first->status, Status::kRunning);
  desk.commit(in_flight);
  CHECK_EQ(rows(desk.turn()), (Rows{"1:4+1s"}));
  CHECK_EQ(desk.scheduler.num_preemptions(), int64_t{0});
}

TEST(admission_keeps_a_spare_block_for_each_running_sequence) {
  Caps caps = kCaps;
  caps.num_blocks = 4;
  Desk desk(caps, {.prefix_cache = false});
  desk.add(8);
  const auto second = desk.add(8);
  desk.turn();
  CHECK_EQ(second->status, Status::kWaiting);
}

TEST(a_cached_prefix_shortens_the_first_row) {
  Desk desk(kCaps);
  const auto first = desk.add(10);
  desk.turn();
  desk.scheduler.remove(first);
  const auto again = std::make_shared<ion::Sequence>(
      9, std::vector<int32_t>(first->ids.begin(), first->ids.begin() + 10), std::vector<std::string>{});
  again->max_new = 5;
  desk.scheduler.add(again, 0);
  const auto step = desk.turn();
  CHECK_EQ(rows(step), (Rows{"9:8+2s"}));
  CHECK_EQ(again->num_cached_tokens, 8);
  CHECK_EQ(step.step.delta.blocks.size(), size_t{3});
}

TEST(of_twins_the_first_computes_the_common_prefix_and_the_others_reuse_it) {
  Desk desk(kCaps, {.token_budget = 50});
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 90; ++i) prompt.push_back(i);
  std::vector<SequencePtr> twins;
  for (uint64_t id = 1; id <= 3; ++id) {
    prompt.back() = static_cast<int32_t>(500 + id);
    twins.push_back(std::make_shared<ion::Sequence>(id, prompt, std::vector<std::string>{}));
    twins.back()->max_new = 5;
    twins.back()->chain.salt = id == 3 ? "another tenant" : "";
    desk.scheduler.add(twins.back(), 0);
  }
  // The first needs two steps; meanwhile nobody behind it starts, and the
  // second has the first one's 22 full blocks.
  CHECK_EQ(rows(desk.turn()), (Rows{"1:0+50"}));
  CHECK_EQ(rows(desk.turn()), (Rows{"1:50+40s"}));
  CHECK_EQ(rows(desk.turn()), (Rows{"1:90+1s", "2:88+2s", "3:0+47"}));
}

TEST(a_scored_prompt_is_reused_no_further_than_its_report_goes) {
  Desk desk(kCaps);
  const auto first = desk.add(12);
  desk.turn();
  desk.scheduler.remove(first);
  const auto again = [&](int32_t num_scored) {
    const std::vector<int32_t> prompt(first->ids.begin(), first->ids.begin() + 12);
    auto sequence = std::make_shared<ion::Sequence>(desk.next_id++, prompt, std::vector<std::string>{});
    sequence->max_new = 0;
    sequence->sampling.num_prompt_logprobs = 0;
    sequence->num_scored = num_scored;
    desk.scheduler.add(sequence, 0);
    const ScheduledStep step = desk.turn();
    desk.scheduler.remove(sequence);
    return step.rows.at(0);
  };
  for (const auto& [num_scored, start] : std::map<int32_t, int32_t>{{0, 0}, {3, 0}, {4, 4}, {7, 4}, {8, 8}}) {
    CHECK_EQ(again(num_scored).start, start);
    CHECK_EQ(again(num_scored).flags, uint8_t{kRowSample | ion::kRowPromptLogprobs});
  }
  CHECK_EQ(again(11).start, 8);  // nothing is left to report: as any prompt
  CHECK_EQ(again(11).flags, uint8_t{kRowSample});
}

TEST(a_scored_prompt_does_not_wait_for_a_twin_whose_blocks_it_could_not_use) {
  Caps caps = kCaps;
  caps.block_size = 16;
  Desk desk(caps, {.token_budget = 100});
  const auto first = desk.add(150);
  const auto twin = std::make_shared<ion::Sequence>(9, first->ids, std::vector<std::string>{});
  twin->max_new = 1;
  desk.scheduler.add(twin, 0);
  desk.turn();
  CHECK_EQ(rows(desk.schedule()), (Rows{"1:100+50s"}));
  Desk other(caps, {.token_budget = 100});
  other.scheduler.add(std::make_shared<ion::Sequence>(1, first->ids, std::vector<std::string>{}), 0);
  const auto scored = std::make_shared<ion::Sequence>(9, first->ids, std::vector<std::string>{});
  scored->sampling.num_prompt_logprobs = 0;
  other.scheduler.add(scored, 0);
  other.turn();
  CHECK_EQ(rows(other.schedule()), (Rows{"1:100+50s", "9:0+50"}));
}

TEST(rows_that_tell_of_no_prompt_token_are_not_asked_to) {
  Desk desk(kCaps, {.token_budget = 5});
  const auto sequence = desk.add(11);
  sequence->sampling.num_prompt_logprobs = 2;
  std::vector<uint8_t> flags;
  for (int i = 0; i < 4; ++i) flags.push_back(desk.turn().rows.at(0).flags);
  // The chunk of the last position alone, then a decode row.
  const uint8_t scored = ion::kRowPromptLogprobs;
  CHECK_EQ(flags, (std::vector<uint8_t>{scored, scored, kRowSample, kRowSample}));
}

int main(int argc, char** argv) {
  return check::main(argc, argv);
}
