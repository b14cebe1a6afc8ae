// Sequences with a grammar: each sample waits for its mask, whatever else happens to it meanwhile. The
// grammars are kept by a thread of their own, as in the real thing, which takes its time.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "keeper.h"
#include "rig.h"

using rig::every_third;
using rig::Keeper;

namespace {

// One token long, then nothing is allowed.
std::vector<uint32_t> dead_end(const std::vector<int32_t>& generated) {
  return generated.empty() ? std::vector<uint32_t>{0xFFFFFFFC, 0xFFFFFFFF} : std::vector<uint32_t>{0, 0};
}

ion::SubmitParams with_grammar(size_t length, uint64_t seed, int32_t max_tokens = 40) {
  ion::SubmitParams params = rig::request(length, seed, max_tokens);
  params.has_grammar = true;
  return params;
}

rig::Setup setup_at(int depth, oracle::Grammar grammar = every_third) {
  rig::Setup setup;
  setup.options.pipeline_depth = depth;
  setup.grammar = grammar;
  setup.max_delay_us = 50;
  return setup;
}

}  // namespace

TEST(masks_decide_what_is_sampled_at_every_pipeline_depth) {
  for (int depth = 0; depth <= 3; ++depth) {
    rig::Rig rig(setup_at(depth));
    Keeper keeper(rig.engine(), every_third, 200);
    const auto params = with_grammar(20, 3);
    CHECK_EQ(rig.run(params), rig.expected(params));
    auto free = params;
    free.has_grammar = false;
    CHECK(!(rig.expected(free) == rig.expected(params)));
    CHECK_EQ(rig.run(free), rig.expected(free));
    keeper.stop();
    CHECK_EQ(keeper.num_kept(), size_t{0});
  }
}

TEST(sequences_with_and_without_grammar_share_steps_preemptions_and_prefixes) {
  std::mt19937_64 random(11);
  int64_t num_preemptions = 0;
  for (int round = 0; round < 30; ++round) {
    rig::Setup setup = setup_at(round % 4);
    setup.caps.num_blocks = 8 + static_cast<int32_t>(random() % 12);
    setup.caps.block_size = 4;
    setup.seed = random();
    rig::Rig rig(setup);
    Keeper keeper(rig.engine(), every_third, 100);
    std::vector<std::pair<uint64_t, oracle::Output>> sent;
    rig.runner().pause();  // until all are there, so that they run side by side
    for (int i = 0; i < 12; ++i) {
      ion::SubmitParams params =
          rig::request(1 + random() % 12, random() % 4, 1 + static_cast<int32_t>(random() % 20));
      params.has_grammar = random() % 3 > 0;
      const oracle::Output want = rig.expected(params);
      sent.push_back({rig.engine().submit(params), want});
    }
    rig.runner().resume();
    for (const auto& [id, want] : sent) CHECK_EQ(rig.answer(id).output, want);
    CHECK(rig.gets_all_blocks_back());
    CHECK(!keeper.was_out_of_turn());
    num_preemptions += rig.engine().stats().preemptions;
  }
  CHECK(num_preemptions > 20);
}

TEST(an_abort_does_not_wait_for_a_mask_that_never_comes) {
  for (int depth = 0; depth <= 1; ++depth) {
    rig::Rig rig(setup_at(depth));
    const uint64_t stuck = rig.engine().submit(with_grammar(20, 3));
    const auto other = rig::request(9, 4);
    const uint64_t beside = rig.engine().submit(other);
    rig.engine().abort(stuck);
    CHECK_EQ(int{rig.answer(stuck).output.finish}, int{ion::kAborted});
    CHECK_EQ(rig.answer(beside).output, rig.expected(other));
    CHECK(rig.gets_all_blocks_back());
  }
}

TEST(newcomers_are_no_sign_of_progress_while_a_mask_does_not_come) {
  rig::Rig rig(setup_at(1));
  const auto stuck = rig.engine().submit(with_grammar(20, 1));
  CHECK(rig.eventually([](const ion::Stats& s) { return s.unresponsive_s > 0.02; }));
  std::vector<uint64_t> others;
  double longest_s = 0.0;
  for (uint64_t seed = 2; seed < 12; ++seed) {
    others.push_back(rig.engine().submit(rig::request(10, seed, 4)));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    longest_s = std::max(longest_s, rig.engine().stats().unresponsive_s);
  }
  CHECK(longest_s > 0.1);  // the first mask was asked for 120 ms ago
  rig.engine().abort(stuck);
  for (uint64_t other : others) CHECK(rig.answer(other).output.num_tokens > 0);
  CHECK(rig.eventually([](const ion::Stats& s) { return s.unresponsive_s == 0.0; }));
}

TEST(close_does_not_wait_for_a_mask_that_never_comes) {
  rig::Rig rig(setup_at(1));
  const uint64_t stuck = rig.engine().submit(with_grammar(20, 3));
  CHECK(rig.eventually([](const ion::Stats& s) { return s.running == 1; }));
  rig.engine().close();
  CHECK_EQ(int{rig.answer(stuck).output.finish}, int{ion::kAborted});
  CHECK(rig.engine().take_mask_requests(std::chrono::seconds(60)).size() <= 2);
  CHECK(rig.engine().take_mask_requests(std::chrono::seconds(60)).empty());
}

TEST(a_grammar_that_gives_up_ends_its_own_sequence_only) {
  rig::Rig rig(setup_at(1));
  Keeper keeper(rig.engine(), every_third, 50, 12);
  std::vector<std::pair<uint64_t, ion::SubmitParams>> sent;
  for (uint64_t seed = 0; seed < 16; ++seed) {
    auto params = with_grammar(5 + seed, seed);
    params.has_grammar = seed % 2 == 0;
    sent.push_back({rig.engine().submit(params), params});
  }
  int num_lost = 0;
  for (const auto& [id, params] : sent) {
    const rig::Answer& answer = rig.answer(id);
    if (answer.output.finish == ion::kError) {
      CHECK(params.has_grammar);
      CHECK_EQ(answer.error, std::string("the grammar is lost"));
      ++num_lost;
    } else {
      CHECK_EQ(answer.output, rig.expected(params));
    }
  }
  CHECK(num_lost > 0);
  CHECK(rig.gets_all_blocks_back());
}

TEST(a_mask_that_leaves_nothing_is_an_error_of_that_sequence) {
  rig::Rig rig(setup_at(1, dead_end));
  Keeper keeper(rig.engine(), dead_end, 0);
  auto params = with_grammar(6, 2);
  params.ignore_eos = true;
  const uint64_t id = rig.engine().submit(params);
  CHECK_EQ(rig.answer(id).output, rig.expected(params));
  CHECK(rig.answer(id).error.find("no token is left") == 0);
}

TEST(failed_steps_end_their_sequences_and_ask_for_no_more_masks) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    rig::Setup setup = setup_at(static_cast<int>(seed % 4));
    setup.seed = seed;
    setup.faults = {.fail_step = 0.05, .refuse_submit = 0.05, .lose_result = 0.05, .delay_result = 0.05};
    rig::Rig rig(setup);
    Keeper keeper(rig.engine(), every_third, 30);
    std::vector<std::pair<uint64_t, oracle::Output>> sent;
    for (uint64_t i = 0; i < 8; ++i) {
      const auto params = with_grammar(3 + i, i);
      const oracle::Output want = rig.expected(params);
      sent.push_back({rig.engine().submit(params), want});
    }
    for (const auto& [id, want] : sent) {
      const rig::Answer& answer = rig.answer(id);
      if (answer.output.finish != ion::kError) CHECK_EQ(answer.output, want);
    }
    CHECK(rig.gets_all_blocks_back());
    while (rig.engine().stats().running + rig.engine().stats().waiting > 0) {
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    keeper.stop();
    for (const ion::MaskRequest& rest : rig.engine().take_mask_requests(std::chrono::seconds(0)))
      CHECK(rest.has_ended);
  }
}

TEST(a_grammar_and_a_mask_are_checked_at_the_door) {
  rig::Rig rig(setup_at(1));
  auto params = with_grammar(5, 1);
  params.sampling.min_tokens = 3;
  CHECK_THROWS(std::invalid_argument, rig.engine().submit(params), "min_tokens");
  CHECK_THROWS(std::invalid_argument, rig.engine().give_masks({{1, 0, {0}, {}}}), "mask: has 1 words");
  rig.engine().give_masks({{99, 0, {1, 1}, {}}});  // for nobody: ignored
}

int main(int argc, char** argv) {
  return check::main(argc, argv);
}
