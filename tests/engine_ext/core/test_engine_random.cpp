// Engine under random load: arrivals, aborts, tiny pools, a second tier that loses blocks, grammars, shared
// prefixes, failures, random delays. Whatever the schedule, each answer is the answer of the sequence alone,
// and nothing is lost of blocks and slots. The block invariants are checked by the engine after every commit
// (check_integrity), the protocol by the runner.
#include <random>

#include "keeper.h"
#include "rig.h"

namespace {

struct Plan {
  rig::Setup setup;
  int num_sequences = 0;
  bool aborts = false;
};

struct Sent {
  uint64_t id;
  oracle::Output want;
  std::vector<ion::PromptToken> want_scores;
  bool is_aborted = false;
};

int between(std::mt19937_64& random, int least, int most) {
  return least + static_cast<int>(random() % static_cast<uint64_t>(most - least + 1));
}

Plan random_plan(std::mt19937_64& random) {
  Plan plan;
  rig::Setup& setup = plan.setup;
  setup.caps.block_size = between(random, 0, 1) ? 16 : between(random, 1, 8);
  setup.caps.num_blocks = between(random, 4, 40);
  setup.caps.max_slots = between(random, 1, 8);
  setup.caps.context_length = between(random, 24, 200);
  setup.options.token_budget = between(random, 0, 1) ? 512 : between(random, 1, 40);
  setup.options.max_running = between(random, 1, 8);
  setup.options.pipeline_depth = between(random, 0, 3);
  setup.options.max_mixed_step_ratio = between(random, 0, 2) * 1.2;
  setup.options.prefix_cache = between(random, 0, 3) > 0;
  setup.caps.num_host_blocks = between(random, 0, 1) ? 0 : between(random, 1, 80);
  setup.faults.fail_copy = between(random, 0, 2) ? 0.0 : 0.2;
  setup.max_delay_us = between(random, 0, 1) ? 0 : 60;
  setup.seed = random();
  setup.grammar = rig::every_third;
  plan.num_sequences = between(random, 4, 24);
  plan.aborts = between(random, 0, 1);
  return plan;
}

// Prompts share prefixes of one of three trunks.
ion::SubmitParams random_request(std::mt19937_64& random, int context_length) {
  ion::SubmitParams params;
  const int length = between(random, 1, context_length - 1);
  params.prompt = rig::prompt(static_cast<size_t>(length), static_cast<uint64_t>(between(random, 1, 3)));
  const int num_own = between(random, 0, length);
  for (int i = length - num_own; i < length; ++i)
    params.prompt[static_cast<size_t>(i)] = between(random, 0, 63);
  params.max_tokens = between(random, 1, 80);
  params.sampling.seed = random() % 3;
  params.sampling.min_tokens = between(random, 0, 3) ? 0 : between(random, 0, params.max_tokens);
  params.ignore_eos = between(random, 0, 1);
  if (between(random, 0, 2) == 0) params.sampling.stop_ids = {between(random, 0, 63)};
  if (between(random, 0, 2) == 0) params.stop = {"ab", "bca", "\xC3\xA9", "w4"};
  params.priority = between(random, -2, 2);
  if (between(random, 0, 3) == 0) params.cache_salt = "other";
  if (between(random, 0, 3) == 0) {
    params.has_grammar = true;
    params.sampling.min_tokens = 0;  // a grammar says itself when an answer is complete
  }
  if (between(random, 0, 3) == 0) {
    params.sampling.num_prompt_logprobs = between(random, 0, 3);
    if (!params.has_grammar && between(random, 0, 2) == 0)
      params.max_tokens = params.sampling.min_tokens = 0;  // scored only
  }
  return params;
}

bool is_prefix(const oracle::Output& part, const oracle::Output& whole) {
  return whole.text.compare(0, part.text.size(), part.text) == 0 && part.num_tokens <= whole.num_tokens;
}

std::vector<Sent> send_all(std::mt19937_64& random, const Plan& plan, rig::Rig& rig) {
  std::vector<Sent> sent;
  for (int i = 0; i < plan.num_sequences; ++i) {
    const auto params = random_request(random, rig.engine().context_length());
    const oracle::Output want = rig.expected(params);
    const auto want_scores = rig.expected_scores(params);
    sent.push_back({rig.engine().submit(params), want, want_scores});
    if (between(random, 0, 3) == 0) rig.read(between(random, 0, 3));
    if (plan.aborts && between(random, 0, 3) == 0) {
      Sent& unlucky = sent[random() % sent.size()];
      unlucky.is_aborted = true;
      rig.engine().abort(unlucky.id);
    }
  }
  return sent;
}

void check_answers(const std::vector<Sent>& sent, bool may_fail, rig::Rig& rig) {
  for (const Sent& one : sent) {
    const rig::Answer& answer = rig.answer(one.id);
    const bool was_cut = (one.is_aborted && answer.output.finish == ion::kAborted) ||
                         (may_fail && answer.error.find("injected") != std::string::npos);
    if (was_cut) {
      CHECK(is_prefix(answer.output, one.want));
    } else {
      CHECK_EQ(answer.output, one.want);
    }
    // Whole or, of a sequence that ended before its first word, not at all.
    const bool has_ended_well = answer.output.finish == ion::kStop || answer.output.finish == ion::kLength;
    if (has_ended_well || !answer.prompt_logprobs.empty())
      CHECK(rig::is_same(answer.prompt_logprobs, one.want_scores));
  }
  CHECK(rig.gets_all_blocks_back());
  const ion::Stats stats = rig.engine().stats();
  CHECK_EQ(stats.finished + stats.aborts + stats.errors, static_cast<int64_t>(sent.size()));
  CHECK_EQ(stats.tier_blocks_free + stats.tier_blocks_cached, stats.tier_blocks_total);
}

// IONTEST_ROUNDS makes it longer, for a night.
int num_rounds(int usual) {
  const char* text = std::getenv("IONTEST_ROUNDS");
  return text ? std::atoi(text) : usual;
}

void run_rounds(int rounds, uint64_t first_seed, void (*adjust)(std::mt19937_64&, Plan&)) {
  int64_t num_preemptions = 0, num_hits = 0, num_fetched = 0, num_lost = 0;
  for (uint64_t seed = first_seed; seed < first_seed + static_cast<uint64_t>(rounds); ++seed) {
    check::context() = "seed " + std::to_string(seed);
    std::mt19937_64 random(seed);
    Plan plan = random_plan(random);
    adjust(random, plan);
    rig::Rig rig(plan.setup);
    rig::Keeper keeper(rig.engine(), rig::every_third, between(random, 0, 1) ? 0 : 40);
    const bool may_fail = plan.setup.faults.any();
    check_answers(send_all(random, plan, rig), may_fail, rig);
    num_preemptions += rig.engine().stats().preemptions;
    num_hits += rig.engine().stats().prefix_hit_tokens;
    num_fetched += rig.engine().stats().tier_hit_tokens;
    num_lost += rig.engine().stats().tier_copies_failed;
  }
  // The load must have been what it claims to be.
  CHECK(num_preemptions > 0);
  CHECK(num_hits > 0);
  CHECK(num_fetched > 0);
  CHECK(num_lost > 0);
}

}  // namespace

TEST(random_schedules_give_the_answers_of_sequences_alone) {
  run_rounds(num_rounds(150), 1000, [](std::mt19937_64&, Plan&) {});
}

TEST(random_failures_cut_answers_short_and_change_nothing_else) {
  run_rounds(num_rounds(100), 5000, [](std::mt19937_64& random, Plan& plan) {
    plan.setup.faults.fail_step = between(random, 0, 2) * 0.01;
    plan.setup.faults.refuse_submit = between(random, 0, 2) * 0.01;
    plan.setup.faults.lose_result = between(random, 0, 2) * 0.01;
    plan.setup.faults.delay_result = between(random, 0, 2) * 0.01;
  });
}

TEST(random_non_finite_rows_end_their_sequences_alone) {
  run_rounds(num_rounds(60), 9000, [](std::mt19937_64&, Plan& plan) { plan.setup.model.nan_one_in = 60; });
}

int main(int argc, char** argv) {
  return check::main(argc, argv);
}
