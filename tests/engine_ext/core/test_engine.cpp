// Engine: what a caller sees, one behaviour a test.
#include <utility>

#include "core/engine.h"
#include "core/loop.h"
#include "rig.h"

using rig::request;
using rig::Rig;
using rig::Setup;

namespace {

// A request that runs to its limit: nothing ends it early.
ion::SubmitParams endless(size_t length, uint64_t seed, int32_t max_tokens) {
  ion::SubmitParams params = request(length, seed, max_tokens);
  params.ignore_eos = true;
  return params;
}

// A loop without a thread, with sequences 1 .. `count` of five prompt tokens each in its queue.
struct BareLoop {
  BareLoop(const Setup& setup, uint64_t count, int32_t max_new, double submitted_at = 0.0)
      : runner(setup.caps, setup.model, 1), loop(runner, rig::token_bytes(), options_of(setup)) {
    for (uint64_t id = 1; id <= count; ++id) {
      auto sequence = std::make_shared<ion::Sequence>(id, rig::prompt(5, id), std::vector<std::string>{});
      sequence->max_new = max_new;
      sequence->submitted_at = submitted_at;
      loop.start(sequence, 0);
    }
  }

  static ion::EngineOptions options_of(const Setup& setup) {
    ion::EngineOptions options = setup.options;
    options.context_length = setup.caps.context_length;
    return options;
  }

  fake::Runner runner;
  ion::Loop loop;
};

bool is_readable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return poll(&entry, 1, 0) == 1;
}

}  // namespace

TEST(a_sequence_alone_gives_what_the_model_says) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    check::context() = "seed " + std::to_string(seed);
    Rig rig;
    const auto params = request(1 + seed * 3, seed);
    CHECK_EQ(rig.run(params), rig.expected(params));
  }
}

TEST(sequences_together_give_what_each_gives_alone_at_every_depth) {
  for (int32_t depth = 0; depth <= 3; ++depth) {
    check::context() = "depth " + std::to_string(depth);
    Setup setup;
    setup.options.pipeline_depth = depth;
    setup.max_delay_us = 100;
    Rig rig(setup);
    std::vector<std::pair<uint64_t, oracle::Output>> wanted;
    for (uint64_t seed = 0; seed < 32; ++seed) {
      auto params = request(5 + seed * 5, seed);
      if (seed % 2) params.stop = {"ab", "c w", "\xC3\xA9"};
      const auto output = rig.expected(params);
      wanted.emplace_back(rig.engine().submit(std::move(params)), output);
    }
    int64_t num_tokens = 0;
    for (const auto& [id, output] : wanted) {
      CHECK_EQ(rig.answer(id).output, output);
      num_tokens += output.num_tokens;
    }
    CHECK(rig.gets_all_blocks_back());
    CHECK_EQ(rig.engine().stats().tokens_generated, num_tokens);
    CHECK_EQ(rig.engine().stats().finished, int64_t{32});
    CHECK(rig.runner().max_in_flight() <= depth + 1);
    if (depth > 0) CHECK(rig.runner().max_in_flight() > 1);
  }
}

TEST(a_long_prompt_is_prefilled_in_chunks_beside_decoding_neighbours) {
  Setup setup;
  setup.options.token_budget = 24;
  Rig rig(setup);
  const auto small = endless(4, 1, 100), large = endless(200, 2, 20);
  const auto first = rig.engine().submit(small), second = rig.engine().submit(large);
  CHECK_EQ(rig.answer(first).output, rig.expected(small));
  CHECK_EQ(rig.answer(second).output, rig.expected(large));
  CHECK(rig.runner().max_step_tokens() <= 24);
}

TEST(max_tokens_ends_with_length_after_exactly_that_many) {
  for (int32_t max_tokens : {1, 2, 17}) {
    Rig rig;
    const auto output = rig.run(endless(9, 3, max_tokens));
    CHECK_EQ(output.num_tokens, max_tokens);
    CHECK_EQ(output.finish, ion::kLength);
  }
}

TEST(prompt_and_generated_reaching_the_context_end_with_length) {
  Rig rig;
  const auto output = rig.run(endless(250, 3, 100));
  CHECK_EQ(output.num_tokens, 6);
  CHECK_EQ(output.finish, ion::kLength);
}

TEST(a_pool_smaller_than_the_context_bounds_the_sequence) {
  Setup setup;
  setup.caps.num_blocks = 3;
  Rig rig(setup);
  CHECK_EQ(rig.engine().context_length(), 48);
  const auto output = rig.run(endless(40, 3, 100));
  CHECK_EQ(output.num_tokens, 8);
  CHECK_EQ(output.finish, ion::kLength);
}

TEST(a_prompt_that_can_never_fit_is_refused_with_both_lengths) {
  Rig rig;
  CHECK_THROWS(std::invalid_argument, rig.engine().submit(request(256, 1)), "prompt", "256 tokens",
               "holds 256");
  CHECK_THROWS(std::invalid_argument, rig.engine().submit(request(300, 1)), "300", "256");
  CHECK_EQ(rig.engine().stats().waiting, int64_t{0});
}

TEST(a_bad_field_is_refused_by_name) {
  Rig rig;
  struct Case {
    const char* field;
    void (*spoil)(ion::SubmitParams&);
  };
  const Case cases[] = {
      {"prompt", [](ion::SubmitParams& p) { p.prompt.clear(); }},
      {"prompt[1]: token 64", [](ion::SubmitParams& p) { p.prompt[1] = 64; }},
      {"prompt[0]: token -1", [](ion::SubmitParams& p) { p.prompt[0] = -1; }},
      {"max_tokens: 0", [](ion::SubmitParams& p) { p.max_tokens = 0; }},
      {"min_tokens", [](ion::SubmitParams& p) { p.sampling.min_tokens = 41; }},
      {"temperature", [](ion::SubmitParams& p) { p.sampling.temperature = -0.1f; }},
      {"temperature", [](ion::SubmitParams& p) { p.sampling.temperature = std::nanf(""); }},
      {"top_p", [](ion::SubmitParams& p) { p.sampling.top_p = 0.0f; }},
      {"top_p", [](ion::SubmitParams& p) { p.sampling.top_p = 1.5f; }},
      {"min_p", [](ion::SubmitParams& p) { p.sampling.min_p = -0.5f; }},
      {"top_k", [](ion::SubmitParams& p) { p.sampling.top_k = -2; }},
      {"repetition_penalty", [](ion::SubmitParams& p) { p.sampling.repetition_penalty = 0.0f; }},
      {"presence_penalty", [](ion::SubmitParams& p) { p.sampling.presence_penalty = INFINITY; }},
      {"frequency_penalty", [](ion::SubmitParams& p) { p.sampling.frequency_penalty = std::nanf(""); }},
      {"logprobs", [](ion::SubmitParams& p) { p.sampling.num_logprobs = -2; }},
      {"logprobs", [](ion::SubmitParams& p) { p.sampling.num_logprobs = 65; }},
      {"prompt_logprobs", [](ion::SubmitParams& p) { p.sampling.num_prompt_logprobs = -2; }},
      {"prompt_logprobs", [](ion::SubmitParams& p) { p.sampling.num_prompt_logprobs = 65; }},
      {"max_tokens: -1",
       [](ion::SubmitParams& p) {
         p.sampling.num_prompt_logprobs = 0;
         p.max_tokens = -1;
       }},
      {"stop_ids[0]", [](ion::SubmitParams& p) { p.sampling.stop_ids = {99}; }},
      {"stop[1]: is empty", [](ion::SubmitParams& p) { p.stop = {"a", ""}; }},
      {"stop[0]: is not valid UTF-8", [](ion::SubmitParams& p) { p.stop = {"\xA9x"}; }},
  };
  for (const Case& c : cases) {
    auto params = request(4, 1);
    c.spoil(params);
    CHECK_THROWS(std::invalid_argument, rig.engine().submit(params), c.field);
  }
}

TEST(options_that_make_no_sense_are_refused_by_name) {
  Setup deep;
  deep.options.pipeline_depth = 4;
  CHECK_THROWS(std::invalid_argument, Rig{deep}, "pipeline_depth");
  Setup quick;
  quick.options.max_mixed_step_ratio = 0.5;
  CHECK_THROWS(std::invalid_argument, Rig{quick}, "max_mixed_step_ratio", "0.5");
  Setup empty;
  empty.caps.num_blocks = 0;
  CHECK_THROWS(std::invalid_argument, Rig{empty}, "num_blocks");
}

TEST(an_ending_id_is_counted_but_is_no_text) {
  // A request whose first token ends it: the prompt is searched, not assumed.
  Rig rig;
  for (uint64_t seed = 0;; ++seed) {
    const auto params = request(3, seed);
    const auto output = rig.expected(params);
    if (output.finish != ion::kStop || output.num_tokens != 1) continue;
    CHECK_EQ(output.text, std::string());
    CHECK_EQ(rig.run(params), output);
    break;
  }
}

TEST(ignore_eos_runs_on_but_the_requests_own_stop_ids_still_end) {
  Rig rig;
  int num_ended_by_own = 0;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    auto params = endless(3, seed, 30);
    CHECK_EQ(rig.run(params).num_tokens, 30);
    params.sampling.stop_ids = {20, 21, 22, 0};
    const auto output = rig.run(params);
    CHECK_EQ(output, rig.expected(params));
    num_ended_by_own += output.finish == ion::kStop;
  }
  CHECK(num_ended_by_own > 0);
}

TEST(min_tokens_holds_off_stop_ids_and_stop_strings) {
  Rig rig;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    check::context() = "seed " + std::to_string(seed);
    auto params = request(3, seed, 30);
    params.sampling.min_tokens = static_cast<int32_t>(seed % 20);
    params.stop = {"a", "b", "w1", "w2", "w3", "w4"};
    const auto output = rig.run(params);
    CHECK(output.num_tokens >= params.sampling.min_tokens);
    CHECK_EQ(output, rig.expected(params));
  }
}

TEST(abort_gives_all_blocks_back_wherever_the_sequence_stands) {
  Setup setup;
  setup.options.max_running = 2;
  setup.options.token_budget = 16;
  setup.options.prefix_cache = false;
  setup.max_delay_us = 200;
  Rig rig(setup);
  // The first decodes, the second prefills, the third waits.
  const auto decoding = rig.engine().submit(endless(2, 1, 250));
  while (rig.so_far(decoding).output.text.empty()) rig.read(1000);
  const auto prefilling = rig.engine().submit(endless(200, 2, 50));
  const auto waiting = rig.engine().submit(endless(200, 3, 50));
  rig.eventually([](const ion::Stats& s) { return s.running == 2; });
  for (uint64_t id : {decoding, prefilling, waiting}) rig.engine().abort(id);
  for (uint64_t id : {decoding, prefilling, waiting}) CHECK_EQ(rig.answer(id).output.finish, ion::kAborted);
  CHECK(rig.eventually([](const ion::Stats& s) { return s.blocks_free == s.blocks_total; }));
  CHECK_EQ(rig.engine().stats().aborts, int64_t{3});
  CHECK_EQ(rig.engine().stats().running + rig.engine().stats().waiting, int64_t{0});
  const auto next = request(30, 4);
  CHECK_EQ(rig.run(next), rig.expected(next));
}

TEST(aborting_the_unknown_and_the_ended_changes_nothing) {
  Rig rig;
  const auto params = request(5, 1);
  const auto id = rig.engine().submit(params);
  CHECK_EQ(rig.answer(id).output, rig.expected(params));
  rig.engine().abort(id);
  rig.engine().abort(12345);
  CHECK_EQ(rig.run(params), rig.expected(params));
  CHECK_EQ(rig.engine().stats().aborts, int64_t{0});
}

TEST(a_non_finite_row_ends_its_sequence_alone_and_caches_nothing_of_the_step) {
  Setup setup;
  setup.model.nan_one_in = 40;
  setup.max_delay_us = 50;
  Rig rig(setup);
  std::vector<std::pair<uint64_t, oracle::Output>> wanted;
  int64_t num_errors = 0;
  for (uint64_t seed = 0; seed < 24; ++seed) {
    const auto params = endless(10, seed, 40);
    const auto output = rig.expected(params);
    num_errors += output.finish == ion::kError;
    wanted.emplace_back(rig.engine().submit(params), output);
  }
  CHECK(num_errors > 0 && num_errors < 24);
  for (const auto& [id, output] : wanted) {
    const auto& answer = rig.answer(id);
    CHECK_EQ(answer.output.finish, output.finish);
    CHECK_EQ(answer.output.num_tokens, output.num_tokens);
    CHECK_EQ(answer.output.text, output.text);
    CHECK_EQ(answer.error.empty(), output.finish != ion::kError);
  }
  CHECK_EQ(rig.engine().stats().errors, num_errors);
  CHECK_EQ(rig.engine().stats().non_finite_rows, num_errors);
}

TEST(a_prompt_that_ends_in_nan_leaves_nothing_in_the_prefix_cache) {
  Setup setup;
  setup.model.nan_one_in = 1;
  Rig rig(setup);
  CHECK_EQ(rig.run(request(100, 1)).finish, ion::kError);
  CHECK(rig.eventually([](const ion::Stats& s) { return s.blocks_free == s.blocks_total; }));
}

TEST(a_failing_runner_ends_the_sequences_it_touches_and_the_engine_goes_on) {
  const fake::Faults all[] = {
      {.fail_step = 1}, {.refuse_submit = 1}, {.lose_result = 1}, {.delay_result = 1}};
  for (const fake::Faults& faults : all) {
    Setup setup;
    setup.faults = faults;
    Rig rig(setup);
    for (uint64_t seed = 0; seed < 3; ++seed) {
      const auto id = rig.engine().submit(request(20, seed));
      CHECK_EQ(rig.answer(id).output.finish, ion::kError);
      CHECK(rig.answer(id).error.find("injected") != std::string::npos);
    }
    CHECK(rig.gets_all_blocks_back());
    CHECK_EQ(rig.engine().stats().errors, int64_t{3});
  }
}

// Throws what is no std::exception, once.
class RudeRunner : public fake::Runner {
 public:
  using fake::Runner::Runner;
  void submit(ion::Step step) override {
    if (std::exchange(is_rude_, false)) throw 42;
    fake::Runner::submit(std::move(step));
  }

 private:
  bool is_rude_ = true;
};

TEST(whatever_a_runner_throws_the_engine_survives) {
  const Setup setup;
  ion::Engine engine(std::make_unique<RudeRunner>(setup.caps, setup.model, 1), rig::token_bytes(),
                     rig::kStopIds);
  for (const ion::Finish want : {ion::kError, ion::kLength}) {
    engine.submit(endless(5, 1, 3));
    ion::Event last;
    while (last.finish == ion::kRunning) {
      for (ion::Event& event : engine.drain()) last = std::move(event);
      std::this_thread::yield();
    }
    CHECK_EQ(last.finish, want);
    CHECK_EQ(last.error.empty(), want == ion::kLength);
  }
}

TEST(a_fault_of_the_loop_itself_tells_every_sequence) {
  BareLoop bare(Setup{}, 3, 5);
  ion::Loop& loop = bare.loop;
  loop.advance(0.0);
  loop.fail_all("broken books");
  const auto events = loop.take_events();
  CHECK_EQ(events.size(), size_t{3});
  for (const ion::Event& event : events) {
    CHECK_EQ(event.finish, ion::kError);
    CHECK_EQ(event.error, std::string("broken books"));
  }
}

TEST(the_time_in_the_queue_ends_with_the_first_step_that_has_a_row_of_the_sequence) {
  Setup setup;
  setup.options.max_running = 1;
  BareLoop bare(setup, 3, 5, 10.0);
  ion::Loop& loop = bare.loop;
  std::map<uint64_t, double> queued;
  double first_ended_at = 0.0;
  for (double now = 10.5; !loop.is_idle(); now += 1.0) {
    loop.advance(now);
    if (now > 100.0) loop.abort(3);
    for (const ion::Event& event : loop.take_events()) {
      if (queued.count(event.sequence))
        CHECK_EQ(event.queue_s, queued[event.sequence]);  // told once, it stays
      queued[event.sequence] = event.queue_s;
      if (event.sequence == 1 && event.finish != ion::kRunning) first_ended_at = now;
    }
  }
  CHECK_EQ(queued[1], 0.5);
  CHECK(first_ended_at > 10.5);
  CHECK(queued[2] >= first_ended_at - 10.0);  // one at a time: it waited for the first to end
  CHECK(queued[3] > queued[2]);
}

TEST(a_sequence_that_ends_in_the_queue_has_no_time_in_it) {
  Setup setup;
  setup.options.max_running = 1;
  BareLoop bare(setup, 2, 50);
  ion::Loop& loop = bare.loop;
  loop.advance(1.0);
  loop.abort(2);
  const auto events = loop.take_events();
  CHECK_EQ(events.back().sequence, uint64_t{2});
  CHECK_EQ(events.back().finish, ion::kAborted);
  CHECK_EQ(events.back().queue_s, -1.0);
  loop.shut_down();
}

TEST(a_sequence_behind_another_says_how_long_it_waited) {
  Setup setup;
  setup.options.max_running = 1;
  Rig rig(setup);
  rig.runner().pause();
  const uint64_t first = rig.engine().submit(request(5, 1, 3));
  const uint64_t second = rig.engine().submit(request(5, 2, 3));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  rig.runner().resume();
  CHECK(rig.answer(second).queue_s >= 0.05);
  CHECK(rig.answer(first).queue_s >= 0.0);
  CHECK(rig.answer(first).queue_s < rig.answer(second).queue_s);
}

TEST(an_equal_prefix_is_reused_and_another_salt_is_not) {
  Rig rig;
  auto params = endless(100, 1, 30);
  const auto want = rig.expected(params);
  CHECK_EQ(rig.answer(rig.engine().submit(params)).num_cached_tokens, 0);
  const auto& again = rig.answer(rig.engine().submit(params));
  CHECK_EQ(again.num_cached_tokens, 96);
  CHECK_EQ(again.output, want);
  params.cache_salt = "another tenant";
  const auto& salted = rig.answer(rig.engine().submit(params));
  CHECK_EQ(salted.num_cached_tokens, 0);
  CHECK_EQ(salted.output, want);
  CHECK_EQ(rig.engine().stats().prefix_hit_tokens, int64_t{96});
  CHECK(rig.engine().stats().blocks_cached > 0);
}

TEST(generated_tokens_are_part_of_the_prefix_of_the_next_turn) {
  Rig rig;
  auto params = endless(40, 1, 60);
  CHECK_EQ(rig.run(params).num_tokens, 60);
  // The next turn: prompt, answer, and something new. The fake's ids are asked from the model again.
  ion::SamplingParams sampling = params.sampling;
  sampling.stop_ids = rig::kStopIds;
  for (int32_t n = 0; n < 60; ++n) {
    uint64_t before = 0, history = 0;
    for (size_t i = 0; i < params.prompt.size(); ++i) {
      before = fake::position_digest(before, params.prompt[i]);
      history += fake::mix(before + i);
    }
    params.prompt.push_back(fake::next_token({}, history, sampling, n));
  }
  params.prompt.push_back(5);
  // The last generated token has no KV: 99 of 100 positions are computed, 96 in full blocks.
  CHECK_EQ(rig.answer(rig.engine().submit(params)).num_cached_tokens, 96);
}

TEST(preemption_changes_no_output) {
  Setup setup;
  setup.caps.num_blocks = 12;
  setup.options.prefix_cache = false;
  setup.max_delay_us = 50;
  Rig rig(setup);
  rig.runner().pause();  // until all are there: alone, a sequence might be over before the next one comes
  std::vector<std::pair<uint64_t, oracle::Output>> wanted;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const auto params = endless(10, seed, 90);
    wanted.emplace_back(rig.engine().submit(params), rig.expected(params));
  }
  rig.runner().resume();
  for (const auto& [id, output] : wanted) CHECK_EQ(rig.answer(id).output, output);
  CHECK(rig.engine().stats().preemptions > 0);
  CHECK(rig.eventually([](const ion::Stats& s) { return s.blocks_free == s.blocks_total; }));
}

TEST(a_higher_priority_is_served_first) {
  Setup setup;
  setup.options.max_running = 1;
  Rig rig(setup);
  rig.runner().pause();
  const auto running = rig.engine().submit(endless(4, 1, 5));
  rig.eventually([](const ion::Stats& s) { return s.running == 1; });
  const auto low = rig.engine().submit(endless(4, 2, 5));
  auto urgent = endless(4, 3, 5);
  urgent.priority = 1;
  const auto high = rig.engine().submit(urgent);
  rig.runner().resume();
  for (uint64_t id : {running, low, high}) CHECK_EQ(rig.answer(id).output.finish, ion::kLength);
  CHECK_EQ(rig.ended(), (std::vector<uint64_t>{running, high, low}));
}

TEST(log_probabilities_are_one_for_each_token_of_the_text) {
  Rig rig;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    auto params = request(6, seed, 30);
    params.sampling.num_logprobs = 3;
    const auto& answer = rig.answer(rig.engine().submit(params));
    const auto want = rig.expected(params);
    const int32_t num_text_tokens = want.num_tokens - (want.finish == ion::kStop ? 1 : 0);
    CHECK_EQ(static_cast<int32_t>(answer.logprobs.size()), num_text_tokens);
    for (const auto& entry : answer.logprobs) CHECK_EQ(entry.top.size(), size_t{3});
  }
}

TEST(a_prompt_is_scored_the_same_in_any_chunks_with_a_cold_and_a_warm_cache) {
  for (const int32_t budget : {1, 3, 16, 512}) {
    for (const int32_t depth : {0, 1, 3}) {
      Setup setup;
      setup.options.token_budget = budget;
      setup.options.pipeline_depth = depth;
      Rig rig(setup);
      for (const size_t length : {1, 2, 16, 17, 100}) {
        for (const int32_t max_tokens : {0, 1, 5, 5}) {
          auto params = request(length, 7, max_tokens);
          params.sampling.num_prompt_logprobs = 2;
          const auto& answer = rig.answer(rig.engine().submit(params));
          CHECK_EQ(answer.output, rig.expected(params));
          CHECK_EQ(answer.prompt_logprobs.size(), length - 1);
          CHECK(rig::is_same(answer.prompt_logprobs, rig.expected_scores(params)));
          CHECK_EQ(answer.num_cached_tokens, 0);
        }
      }
      // What it computed serves those that are not scored.
      CHECK(rig.answer(rig.engine().submit(request(100, 7))).num_cached_tokens >= 96);
    }
  }
}

TEST(close_aborts_everything_and_later_submissions_are_refused) {
  Rig rig;
  std::vector<uint64_t> ids;
  for (uint64_t seed = 0; seed < 30; ++seed) ids.push_back(rig.engine().submit(endless(10, seed, 240)));
  rig.engine().close();
  rig.engine().close();
  for (uint64_t id : ids) {
    const auto finish = rig.answer(id).output.finish;
    CHECK(finish == ion::kAborted || finish == ion::kLength);
  }
  CHECK_THROWS(std::runtime_error, rig.engine().submit(request(3, 1)), "closed");
  CHECK_EQ(rig.engine().stats().blocks_free + rig.engine().stats().blocks_cached,
           rig.engine().stats().blocks_total);
}

TEST(the_descriptor_is_readable_exactly_while_there_are_events) {
  Rig rig;
  CHECK(!is_readable(rig.engine().event_fd()));
  rig.engine().submit(endless(3, 1, 5));
  CHECK(rig.eventually([](const ion::Stats& s) { return s.finished == 1; }));
  while (!is_readable(rig.engine().event_fd())) std::this_thread::yield();
  std::vector<ion::Event> events;
  do {
    for (auto& event : rig.engine().drain()) events.push_back(std::move(event));
  } while (events.empty() || events.back().finish == ion::kRunning);
  CHECK(!is_readable(rig.engine().event_fd()));
  CHECK(rig.engine().drain().empty());
}

TEST(an_idle_engine_runs_no_steps) {
  Rig rig;
  rig.run(request(5, 1));
  CHECK(rig.eventually([](const ion::Stats& s) { return s.unresponsive_s == 0.0; }));
  const int before = rig.runner().num_submitted();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK_EQ(rig.runner().num_submitted(), before);
}

TEST(stats_tell_waiting_work_and_a_runner_that_does_not_answer) {
  Setup setup;
  setup.options.max_running = 1;
  Rig rig(setup);
  CHECK_EQ(rig.engine().stats().unresponsive_s, 0.0);
  rig.runner().pause();
  const auto first = rig.engine().submit(endless(10, 1, 3)), second = rig.engine().submit(endless(20, 2, 3)),
             third = rig.engine().submit(endless(30, 3, 3));
  CHECK(rig.eventually([](const ion::Stats& s) { return s.unresponsive_s > 0.02; }));
  const auto stats = rig.engine().stats();
  CHECK_EQ(stats.running + stats.waiting, int64_t{3});
  CHECK(stats.waiting_tokens >= 50);
  rig.runner().resume();
  for (uint64_t id : {first, second, third}) CHECK_EQ(rig.answer(id).output.num_tokens, 3);
  CHECK(rig.eventually([](const ion::Stats& s) { return s.unresponsive_s == 0.0; }));
  const auto after = rig.engine().stats();
  CHECK_EQ(after.waiting_tokens, int64_t{0});
  CHECK_EQ(after.tokens_generated, int64_t{9});
  CHECK_EQ(after.tokens_prefilled, int64_t{60});
  // The fake takes a millisecond a token.
  CHECK(after.prefill_rate > 900 && after.prefill_rate < 1100);
  CHECK(after.decode_rate > 900 && after.decode_rate < 1100);
}

// Four answers of 200 tokens take 56 blocks where all is kept, and at most five each with a window of 20.
TEST(blocks_that_every_window_has_passed_are_given_back) {
  for (const bool has_cache : {true, false}) {
    Setup setup;
    setup.caps.num_blocks = 20;
    setup.caps.window = 20;
    setup.options.prefix_cache = has_cache;
    Rig rig(setup);
    std::vector<uint64_t> ids;
    for (uint64_t seed = 0; seed < 4; ++seed) ids.push_back(rig.engine().submit(endless(10, seed, 200)));
    for (uint64_t seed = 0; seed < 4; ++seed) {
      CHECK_EQ(rig.answer(ids[seed]).output, rig.expected(endless(10, seed, 200)));
    }
    CHECK_EQ(rig.engine().stats().preemptions, int64_t{0});
    CHECK(rig.gets_all_blocks_back());
  }
}

TEST(many_threads_may_submit_abort_and_read_at_once) {
  Setup setup;
  setup.max_delay_us = 20;
  Rig rig(setup);
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::vector<uint64_t> ids;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < 25; ++i) {
        const uint64_t id = rig.engine().submit(request(5 + i, t * 100 + i, 20));
        if (i % 5 == 0) rig.engine().abort(id);
        rig.engine().stats();
        std::lock_guard lock(mutex);
        ids.push_back(id);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (uint64_t id : ids) rig.answer(id);
  CHECK(rig.gets_all_blocks_back());
}

int main(int argc, char** argv) {
  return check::main(argc, argv);
}
