// The second tier: what is copied when, what comes back, and that a copy's blocks are nobody else's
// meanwhile. Whole conversations run over the fake runner, which notices a block used or changed too early.
#include "core/kv_tier.h"
#include "core/scheduler.h"
#include "rig.h"

using ion::BlockId;
using ion::BlockManager;
using ion::HostBlock;
using ion::KvTier;
using ion::PrefixChain;

namespace {

constexpr int32_t kSize = 4;

// A first tier whose sequence owns `num_blocks` blocks of ids 0, 1, 2, ..., beside a second tier.
struct Desk {
  explicit Desk(int32_t num_host_blocks, int32_t num_blocks = 8, fake::Faults faults = {})
      : runner({.num_blocks = 16, .block_size = kSize, .num_host_blocks = num_host_blocks}, {}, 1, faults),
        device(16, kSize),
        tier(runner, device, "") {
    for (int32_t i = 0; i < num_blocks; ++i) blocks.push_back(device.allocate());
    for (int32_t i = 0; i < num_blocks * kSize + 1; ++i) ids.push_back(i);
  }

  void write_back(int32_t num_blocks) { tier.write_back(chain, ids, num_blocks * kSize, blocks); }
  void settle() {
    while (tier.is_copying()) tier.poll(true);
    tier.check_integrity();
  }
  size_t num_found(const std::string& salt = "") const { return tier.match(salt, ids).size(); }

  fake::Runner runner;
  BlockManager device;
  KvTier tier;
  PrefixChain chain;
  std::vector<BlockId> blocks;
  std::vector<int32_t> ids;
};

// Copies are over when the test says so.
class PatientRunner : public ion::Runner {
 public:
  explicit PatientRunner(ion::Caps caps) : caps_(caps) {}
  const ion::Caps& caps() const override { return caps_; }
  void submit(ion::Step) override {}
  void upload_masks(uint64_t, std::vector<ion::Mask>) override {}
  bool poll(ion::StepResult&, bool) override { return false; }
  ion::Ticket copy_out(BlockId, HostBlock) override { return ++num_out; }
  ion::Ticket copy_in(HostBlock, BlockId) override {
    ++num_in;
    return kIn + num_in;
  }
  ion::CopyState done(ion::Ticket ticket, bool wait) override {
    if (wait) waited_for.push_back(ticket);
    return wait || ticket < kIn || are_in ? ion::CopyState::kDone : ion::CopyState::kPending;
  }

  static constexpr ion::Ticket kIn = 1000;
  uint64_t num_out = 0, num_in = 0;
  bool are_in = false;
  std::vector<ion::Ticket> waited_for;

 private:
  ion::Caps caps_;
};

ion::SequencePtr sequence_of(uint64_t id, int32_t first, int32_t count, int32_t max_new) {
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < count; ++i) prompt.push_back(first + i);
  auto sequence = std::make_shared<ion::Sequence>(id, prompt, std::vector<std::string>{});
  sequence->max_new = max_new;
  return sequence;
}

// What commit does: a token for each row that samples.
void commit(ion::Scheduler& scheduler, const ion::ScheduledStep& step) {
  for (size_t i = 0; i < step.rows.size(); ++i) {
    ion::Sequence& owner = *step.owners[i];
    owner.num_computed = step.rows[i].start + step.rows[i].count;
    if (!(step.rows[i].flags & ion::kRowSample)) continue;
    --owner.num_in_flight;
    scheduler.seal(owner);
    owner.ids.push_back(7);
  }
  scheduler.complete(step.epoch);
  scheduler.check_integrity();
}

// Room for one conversation in the first tier and for all of them in the second.
rig::Setup small_first_tier(int32_t num_host_blocks) {
  rig::Setup setup;
  setup.caps.num_blocks = 16;
  setup.caps.num_host_blocks = num_host_blocks;
  return setup;
}

struct Talk {
  std::vector<oracle::Output> answers;
  int64_t num_prefilled = 0;
  int64_t num_fetched = 0;
};

// Three conversations take turns; each turn's prompt holds all that was said before.
Talk talk(rig::Setup setup) {
  Talk out;
  rig::Rig rig(setup);
  std::vector<std::vector<int32_t>> prompts;
  for (uint64_t i = 0; i < 3; ++i) prompts.push_back(rig::prompt(60, 100 + i));
  for (uint64_t turn = 0; turn < 4; ++turn) {
    for (uint64_t i = 0; i < prompts.size(); ++i) {
      ion::SubmitParams params = rig::request(1, turn, 8);
      params.prompt = prompts[i];
      params.ignore_eos = true;
      const oracle::Output want = rig.expected(params);
      out.answers.push_back(rig.run(params));
      CHECK_EQ(out.answers.back(), want);
      for (int32_t id : rig::prompt(30, 10 * turn + i)) prompts[i].push_back(id);
    }
  }
  CHECK(rig.gets_all_blocks_back());
  out.num_prefilled = rig.engine().stats().tokens_prefilled;
  out.num_fetched = rig.engine().stats().tier_hit_tokens;
  return out;
}

}  // namespace

TEST(sealed_blocks_are_copied_out_at_once_and_once) {
  Desk desk(16);
  desk.write_back(5);
  CHECK_EQ(desk.runner.num_copies_out(), int64_t{5});
  CHECK_EQ(desk.num_found(), size_t{0});  // not before they are there
  desk.settle();
  CHECK_EQ(desk.num_found(), size_t{5});
  desk.write_back(6);
  desk.chain = {};
  desk.write_back(6);
  desk.settle();
  CHECK_EQ(desk.runner.num_copies_out(), int64_t{6});
  CHECK_EQ(desk.num_found("another tenant"), size_t{0});
}

// Case E23.
TEST(a_copy_owns_both_its_blocks_until_it_is_over) {
  Desk desk(16);
  desk.write_back(8);
  desk.device.release(desk.blocks);  // the sequence has ended
  CHECK_EQ(desk.device.num_free(), 8);
  CHECK_EQ(desk.tier.blocks().num_used(), 8);
  desk.settle();
  CHECK_EQ(desk.device.num_free(), 16);
  CHECK_EQ(desk.tier.blocks().num_cached(), 8);

  const std::vector<HostBlock> found = desk.tier.match("", desk.ids);
  const BlockId target = desk.device.allocate();
  const auto fetch = desk.tier.fetch(std::span(found).first(1), {&target, 1});
  desk.device.release({&target, 1});
  CHECK_EQ(desk.device.num_used(), 1);
  CHECK(!fetch->is_over);
  desk.settle();
  CHECK(fetch->is_over);
  CHECK_EQ(fetch->num_whole, 1);
  CHECK_EQ(desk.device.num_used(), 0);
}

TEST(copies_out_hold_half_of_the_first_tier_at_most_and_the_rest_follows) {
  Desk desk(16, 12);
  desk.write_back(12);
  CHECK_EQ(desk.runner.num_copies_out(), int64_t{8});
  desk.write_back(12);
  CHECK_EQ(desk.runner.num_copies_out(), int64_t{8});
  desk.settle();
  desk.write_back(12);
  desk.settle();
  CHECK_EQ(desk.num_found(), size_t{12});
}

TEST(the_prefix_unused_for_longest_gives_way_tail_first) {
  Desk desk(8, 4);
  desk.write_back(4);
  desk.settle();
  std::vector<int32_t> others(17, 7);
  PrefixChain chain;
  desk.tier.write_back(chain, others, 3 * kSize, desk.blocks);
  desk.settle();
  CHECK_EQ(desk.num_found(), size_t{4});
  std::vector<int32_t> thirds(17, 9);
  PrefixChain third;
  desk.tier.write_back(third, thirds, 3 * kSize, desk.blocks);
  desk.settle();
  CHECK_EQ(desk.num_found(), size_t{2});
  CHECK_EQ(desk.tier.match("", others).size(), size_t{3});
}

TEST(a_prefix_longer_than_the_tier_keeps_its_beginning_there) {
  Desk desk(3);
  for (int32_t n = 1; n <= 8; ++n) desk.write_back(n);
  desk.settle();
  CHECK_EQ(desk.num_found(), size_t{3});
  desk.write_back(8);
  desk.settle();
  CHECK_EQ(desk.runner.num_copies_out(), int64_t{3});
}

TEST(a_failed_copy_is_a_miss_with_all_behind_it) {
  Desk desk(16, 8, {.fail_copy = 1.0});
  desk.write_back(8);
  desk.settle();
  CHECK_EQ(desk.num_found(), size_t{0});
  CHECK_EQ(desk.tier.blocks().num_free(), 16);
  CHECK_EQ(desk.tier.counters().copies_failed, int64_t{8});
}

TEST(conversations_beyond_the_first_tier_come_back_from_the_second) {
  const Talk without = talk(small_first_tier(0)), with = talk(small_first_tier(64));
  CHECK_EQ(with.answers.size(), without.answers.size());
  for (size_t i = 0; i < with.answers.size(); ++i) CHECK_EQ(with.answers[i], without.answers[i]);
  CHECK_EQ(without.num_fetched, int64_t{0});
  CHECK(with.num_fetched > 9 * 48);  // nine turns had a history of 60 and more
  CHECK(with.num_prefilled + with.num_fetched <= without.num_prefilled + 16);
  CHECK(with.num_prefilled < without.num_prefilled * 2 / 3);
}

TEST(eviction_forgets_and_what_comes_back_holds_up_nobody_who_decodes) {
  const ion::Caps caps{.num_blocks = 12,
                       .block_size = kSize,
                       .max_slots = 4,
                       .context_length = 100,
                       .vocab_size = 1000,
                       .num_host_blocks = 64};
  PatientRunner runner(caps);
  ion::Scheduler scheduler(caps, {}, "", &runner);
  const auto play = [&](const ion::SequencePtr& sequence) {
    scheduler.add(sequence, 0);
    commit(scheduler, scheduler.schedule());
    scheduler.remove(sequence);
  };
  play(sequence_of(1, 0, 21, 9));    // leaves five blocks
  play(sequence_of(2, 100, 45, 9));  // takes all twelve, so those are forgotten
  CHECK_EQ(runner.num_out,
           uint64_t{5 + 6});  // copied out when sealed, six at most at a time; none for eviction

  const auto decoding = sequence_of(3, 200, 5, 50);
  scheduler.add(decoding, 0);
  commit(scheduler, scheduler.schedule());
  const auto returning = sequence_of(4, 0, 21, 9);
  scheduler.add(returning, 0);
  for (int i = 0; i < 3; ++i) {
    const ion::ScheduledStep step = scheduler.schedule();
    CHECK_EQ(step.owners.size(), size_t{1});
    CHECK(step.owners[0] == decoding);
    commit(scheduler, step);
  }
  CHECK_EQ(runner.num_in, uint64_t{5});
  CHECK(runner.waited_for.empty());
  runner.are_in = true;
  const ion::ScheduledStep step = scheduler.schedule();
  CHECK_EQ(step.owners.size(), size_t{2});
  CHECK(step.owners[1] == returning);
  CHECK_EQ(step.rows[1].start, 5 * kSize);
  CHECK_EQ(step.rows[1].count, 1);
  CHECK_EQ(scheduler.num_tier_hit_tokens(), int64_t{5 * kSize});
}

TEST(with_nothing_to_compute_what_comes_back_is_waited_for_first) {
  PatientRunner runner({.num_blocks = 16, .block_size = kSize, .num_host_blocks = 16});
  BlockManager device(16, kSize);
  KvTier tier(runner, device, "");
  std::vector<BlockId> blocks;
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 4; ++i) blocks.push_back(device.allocate());
  for (int32_t i = 0; i < 4 * kSize + 1; ++i) ids.push_back(i);
  PrefixChain chain;
  tier.write_back(chain, ids, 2 * kSize, blocks);
  tier.poll(false);
  tier.write_back(chain, ids, 4 * kSize, blocks);  // under way
  const std::vector<HostBlock> found = tier.match("", ids);
  const BlockId target = device.allocate();
  tier.fetch(std::span(found).first(1), {&target, 1});
  tier.poll(true);
  CHECK_EQ(runner.waited_for, (std::vector<ion::Ticket>{PatientRunner::kIn + 1}));
}

TEST(conversations_survive_copies_that_fail) {
  rig::Setup setup = small_first_tier(64);
  setup.faults.fail_copy = 0.3;
  talk(setup);
}

TEST(a_preempted_sequence_comes_back_from_the_tier) {
  rig::Setup setup = small_first_tier(64);
  setup.caps.num_blocks = 12;
  rig::Rig rig(setup);
  rig.runner().pause();  // until all are there, so that they run side by side
  std::vector<std::pair<uint64_t, oracle::Output>> sent;
  for (uint64_t i = 0; i < 4; ++i) {
    ion::SubmitParams params = rig::request(40, i, 100);
    params.ignore_eos = true;
    sent.emplace_back(rig.engine().submit(params), rig.expected(params));
  }
  rig.runner().resume();
  for (const auto& [id, want] : sent) CHECK_EQ(rig.answer(id).output, want);
  CHECK(rig.engine().stats().preemptions > 0);
  CHECK(rig.engine().stats().tier_hit_tokens > 0);
}

TEST(closing_waits_for_copies) {
  rig::Rig rig(small_first_tier(64));
  for (uint64_t i = 0; i < 4; ++i) rig.engine().submit(rig::request(100, i, 100));
  rig.engine().close();
  const ion::Stats stats = rig.engine().stats();
  CHECK_EQ(stats.tier_blocks_free + stats.tier_blocks_cached, stats.tier_blocks_total);
}

int main(int argc, char** argv) {
  return check::main(argc, argv);
}
