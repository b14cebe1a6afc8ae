// What prefill costs those who decode: over runners whose steps take a known time, mixed steps come to stay
// within the bound, use most of it, and every prompt ends. Time is what the runner says; nobody waits.
#include <random>

#include "core/loop.h"
#include "core/step_cost.h"
#include "rig.h"

namespace {

using fake::Work;

constexpr double kRatio = 1.8;
constexpr int kLearning = 24;  // mixed steps in which the table may still be wrong

// A machine: how long a step takes, but for noise.
struct Machine {
  const char* name;
  double (*seconds)(const Work&);
  bool has_room = true;  // a block of prefill fits the bound
};

double alone(const Machine& machine, Work work) {
  work.prefill_tokens = 0, work.prefill_context = 0;
  return machine.seconds(work);
}

double gpu(const Work& w, double fixed, double token, double context) {
  const double decode = 5e-3 + 1e-5 * w.decode_rows + 2e-8 * static_cast<double>(w.decode_context);
  if (w.prefill_tokens == 0) return decode;
  return decode + fixed + token * w.prefill_tokens + context * static_cast<double>(w.prefill_context);
}

const Machine kMachines[] = {
    {"every token costs the same", [](const Work& w) { return gpu(w, 0.0, 2.5e-5, 0.0); }},
    {"a mixed step costs something by itself", [](const Work& w) { return gpu(w, 1.5e-3, 1.5e-5, 0.0); }},
    {"long contexts cost more", [](const Work& w) { return gpu(w, 2e-4, 1e-5, 1.5e-8); }},
    {"beyond 128 rows comes a jump",
     [](const Work& w) { return gpu(w, w.decode_rows + w.prefill_tokens > 128 ? 1.5e-3 : 0.0, 1e-5, 0.0); }},
    {"prefill is nearly free at first",
     [](const Work& w) { return gpu(w, 0.0, 0.0, 0.0) + 3e-5 * std::max(0, w.prefill_tokens - 200); }},
    {"a block is too much already", [](const Work& w) { return gpu(w, 0.0, 1e-3, 0.0); }, false},
    {"few tokens wait for a long context as long as many",
     [](const Work& w) {
       if (w.prefill_tokens == 0) return gpu(w, 0.0, 0.0, 0.0);
       const double context = static_cast<double>(w.prefill_context) / w.prefill_tokens;
       return gpu(w, 1e-5 * context * std::max(1.0, w.prefill_tokens / 300.0), 2e-6, 0.0);
     },
     false},
};

// `num_decoding` long answers, and a prompt of `num_prompt` tokens whenever `every` steps have passed.
struct Traffic {
  int32_t num_decoding = 32, num_prompt = 1500, num_prompts = 8;
  int every = 100;
  double ratio = kRatio;
  int32_t depth = 1;
  uint64_t seed = 1;
  double surprise_s = 0.0;  // what the first step with a number of prefill tokens takes more
};

struct Run {
  std::vector<std::pair<Work, double>> work;
  std::map<uint64_t, std::string> texts;
  ion::Stats stats;
  int num_ended = 0;
};

void start(ion::Loop& loop, uint64_t id, int32_t num_prompt, int32_t max_new) {
  const auto prompt = rig::prompt(static_cast<size_t>(num_prompt), id);
  auto sequence = std::make_shared<ion::Sequence>(id, prompt, std::vector<std::string>{});
  sequence->max_new = max_new;
  loop.start(sequence, 0);
}

Run run(const Machine& machine, const Traffic& traffic) {
  ion::Caps caps{.num_blocks = 10000,
                 .max_slots = 64,
                 .max_tokens_per_step = 4096,
                 .context_length = 4000,
                 .vocab_size = 64};
  fake::Runner runner(caps, {}, traffic.seed);
  std::mt19937_64 random(traffic.seed);
  std::set<int32_t> met;
  runner.keep_time([&](const Work& work) {
    const bool is_new = work.prefill_tokens > 0 && met.insert(work.prefill_tokens).second;
    const double noise = std::uniform_real_distribution<>(0.99, 1.01)(random);
    return machine.seconds(work) * noise + (is_new ? traffic.surprise_s : 0.0);
  });
  ion::EngineOptions options{.token_budget = 4096,
                             .context_length = 4000,
                             .pipeline_depth = traffic.depth,
                             .max_mixed_step_ratio = traffic.ratio,
                             .check_integrity = true};
  ion::Loop loop(runner, rig::token_bytes(), options);
  Run out;
  const int num_steps = traffic.every * (traffic.num_prompts + 1);
  for (int i = 0; i < traffic.num_decoding; ++i) start(loop, static_cast<uint64_t>(i + 1), 20, num_steps);
  int num_sent = 0;
  for (int step = 1; !loop.is_idle() || num_sent < traffic.num_prompts; ++step) {
    if (step % traffic.every == 0 && num_sent < traffic.num_prompts)
      start(loop, static_cast<uint64_t>(1000 + num_sent++), traffic.num_prompt, 4);
    loop.advance(0.0);
    for (const ion::Event& event : loop.take_events()) {
      out.texts[event.sequence] += event.text;
      out.num_ended += event.finish == ion::kLength ? 1 : 0;
    }
  }
  out.work = runner.work_done();
  out.stats = loop.stats();
  for (const std::string& violation : runner.violations()) check::fault("fake_runner", 0, violation);
  return out;
}

bool is_mixed(const Work& work) {
  return work.decode_rows > 0 && work.prefill_tokens > 0;
}

// Of mixed steps: how many times as long as their decode rows alone.
std::vector<double> ratios(const Machine& machine, const Run& run) {
  std::vector<double> out;
  for (const auto& [work, seconds] : run.work) {
    if (is_mixed(work)) out.push_back(seconds / alone(machine, work));
  }
  return out;
}

}  // namespace

// The chunk begins with a block and approaches the bound, so even the first steps stay below three times.
// Later one step in fifty may be above it, by little: the noise is 1%, and what looked too costly is tried
// again at times.
TEST(mixed_steps_come_to_stay_within_the_bound_and_use_it) {
  for (const Machine& machine : kMachines) {
    if (!machine.has_room) continue;
    for (uint64_t seed = 1; seed <= 2; ++seed) {
      check::context() = std::string(machine.name) + ", seed " + std::to_string(seed);
      const Run done = run(machine, {.seed = seed});
      CHECK_EQ(done.num_ended, 32 + 8);
      const std::vector<double> found = ratios(machine, done);
      CHECK(found.size() > kLearning + 20);
      size_t num_above = 0;
      double sum = 0.0;
      for (size_t i = 0; i < found.size(); ++i) {
        CHECK(found[i] < (i < kLearning ? 1.55 : 1.02) * kRatio);
        num_above += i >= kLearning && found[i] > kRatio ? 1 : 0;
        sum += i >= kLearning ? found[i] : 0.0;
      }
      CHECK(num_above <= found.size() / 50);
      // The last step of a prompt has what is left of it, so the mean is lower than the rest.
      CHECK(sum / static_cast<double>(found.size() - kLearning) > 1.4);
    }
  }
}

// A library that prepares itself for a shape: once, and for longer than many steps.
TEST(a_first_time_that_takes_long_is_forgotten) {
  for (const Machine& machine : kMachines) {
    if (!machine.has_room) continue;
    check::context() = machine.name;
    const std::vector<double> found = ratios(machine, run(machine, {.num_prompts = 12, .surprise_s = 0.04}));
    size_t num_above = 0;
    double sum = 0.0;
    for (size_t i = found.size() / 2; i < found.size(); ++i) num_above += found[i] > kRatio ? 1 : 0;
    for (size_t i = found.size() / 2; i < found.size(); ++i) sum += std::min(found[i], kRatio);
    CHECK(num_above <= 5);  // shapes not met before
    CHECK(sum / static_cast<double>(found.size() - found.size() / 2) > 1.3);
  }
}

TEST(without_the_bound_a_prompt_takes_all_of_a_step) {
  const Machine& machine = kMachines[0];
  const std::vector<double> found = ratios(machine, run(machine, {.ratio = 0.0}));
  CHECK(*std::max_element(found.begin(), found.end()) > 5.0);
}

// No step takes less than a block, so prompts get on, and hardly any takes more: what costs too much is tried
// once in a while.
TEST(a_machine_that_is_too_slow_for_the_bound_computes_a_block_a_step) {
  const Machine& machine = kMachines[5];
  const Run done = run(machine, {.num_prompt = 200, .num_prompts = 3});
  CHECK_EQ(done.num_ended, 32 + 3);
  int num_longer = 0;
  for (const auto& [work, seconds] : done.work) {
    CHECK(work.decode_rows == 0 || work.prefill_tokens <= 32);
    num_longer += work.decode_rows > 0 && work.prefill_tokens > 16 ? 1 : 0;
  }
  CHECK(num_longer <= 3);
}

// Seen on a GPU whose attention did not cut the context of a short chunk: a step with 16 tokens took as long
// as one with 300, four times as long as without.
TEST(where_few_tokens_cost_as_much_as_many_it_computes_many) {
  const Machine& machine = kMachines[6];
  const Run done = run(machine, {.num_prompt = 3000});
  CHECK_EQ(done.num_ended, 32 + 8);
  int num_mixed = 0;
  for (const auto& [work, seconds] : done.work) num_mixed += is_mixed(work) ? 1 : 0;
  CHECK(num_mixed < 8 * 3000 / 100);
  for (double ratio : ratios(machine, done)) CHECK(ratio < 10.0);
}

TEST(decode_rows_are_measured_alone_even_while_prompts_never_end) {
  const Run done = run(kMachines[0], {.num_prompt = 3000, .num_prompts = 20, .every = 30});
  size_t num_without = 0, longest = 0;
  for (const auto& [work, seconds] : done.work) {
    num_without = is_mixed(work) ? num_without + 1 : 0;
    longest = std::max(longest, num_without);
  }
  CHECK_EQ(done.num_ended, 32 + 20);
  CHECK(longest > 15);
  CHECK(longest <= 70);
}

TEST(with_nobody_decoding_prompts_have_the_whole_budget) {
  const Run done = run(kMachines[0], {.num_decoding = 0, .num_prompt = 3000, .num_prompts = 2});
  CHECK_EQ(done.work.front().first.prefill_tokens, 3000);
}

// Many prompts at once are no disturbance of few but the load itself.
TEST(a_burst_of_prompts_is_not_held_back) {
  const Run done = run(kMachines[0], {.num_decoding = 2, .num_prompt = 3000, .num_prompts = 30, .every = 1});
  int32_t most = 0;
  for (const auto& [work, seconds] : done.work) {
    if (is_mixed(work)) most = std::max(most, work.prefill_tokens);
  }
  CHECK(most > 4000);
}

TEST(the_bound_changes_no_answer_at_any_depth) {
  const Run want = run(kMachines[1], {.ratio = 0.0, .depth = 0});
  for (int32_t depth = 0; depth <= 3; ++depth) {
    const Run found = run(kMachines[1], {.depth = depth});
    CHECK(found.texts == want.texts);
  }
}

TEST(statistics_tell_what_was_expected_of_mixed_steps) {
  const Run done = run(kMachines[2], {});
  CHECK(done.stats.mixed_steps > 50);
  CHECK(done.stats.mixed_predicted_seconds > 0.9 * done.stats.mixed_step_seconds);
  CHECK(done.stats.mixed_predicted_seconds < 1.1 * done.stats.mixed_step_seconds);
}

TEST(the_table_follows_a_machine_that_changes) {
  ion::StepCost cost({.ratio = 2.0, .least = 16});
  const auto settle = [&](double token_s) {
    ion::StepLoad load{.decode_rows = 8, .decode_context = 8000};
    int32_t last = 0;
    for (int i = 0; i < 400; ++i) {
      load.prefill_tokens = cost.choose(load, 0, 4096).tokens;
      load.prefill_context = 0;
      cost.learn(load, 0.01 + token_s * load.prefill_tokens);
      if (load.prefill_tokens > 0) last = load.prefill_tokens;
    }
    return last;
  };
  // 95% of the bound is 9 ms: 90, 900 and 30 tokens.
  const auto is_between = [](int32_t tokens, int32_t least, int32_t most) {
    return tokens >= least && tokens <= most;
  };
  CHECK(is_between(settle(1e-4), 80, 90));
  CHECK(is_between(settle(1e-5), 768, 900));
  CHECK_EQ(settle(3e-4), 16);
}

int main(int argc, char** argv) {
  return check::main(argc, argv);
}
