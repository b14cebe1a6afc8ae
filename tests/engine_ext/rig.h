// An engine over the fake runner, a small vocabulary, and a reader that gathers what each sequence produced.
#pragma once

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "core/detokenizer.h"
#include "core/engine.h"
#include "fake_runner.h"
#include "oracle.h"

namespace rig {

// 64 tokens: two stop ids, letters, words, whole and cut characters, noise.
inline std::vector<std::string> token_bytes() {
  std::vector<std::string> table = {"",         "",         "\xC3",         "\xA9", "\xF0\x9F",
                                    "\x98\x80", "\xC3\xA9", "\xE2\x82\xAC", "\xFF", ""};
  const std::string letters = "abcd";
  for (char first : letters) table.emplace_back(1, first);
  for (char first : letters) {
    for (char second : letters) table.push_back({first, second});
  }
  while (table.size() < 64) table.push_back(" w" + std::to_string(table.size()));
  return table;
}

inline const std::vector<int32_t> kStopIds = {0, 1};

struct Setup {
  ion::Caps caps{.num_blocks = 64,
                 .block_size = 16,
                 .max_slots = 16,
                 .max_tokens_per_step = 512,
                 .context_length = 256,
                 .vocab_size = 64};
  ion::EngineOptions options{.check_integrity = true};
  fake::Model model;
  fake::Faults faults;
  int max_delay_us = 0;
  oracle::Grammar grammar = nullptr;
  uint64_t seed = 1;
};

struct Answer {
  oracle::Output output;
  std::string error;
  int32_t num_cached_tokens = 0;
  double queue_s = -1.0;
  std::vector<ion::TokenLogprobs> logprobs;
  std::vector<ion::PromptToken> prompt_logprobs;
  bool has_begun = false;
};

inline bool is_same(const std::vector<ion::PromptToken>& one, const std::vector<ion::PromptToken>& other) {
  const auto same_entry = [](const ion::TokenLogprob& a, const ion::TokenLogprob& b) {
    return a.id == b.id && a.logprob == b.logprob;
  };
  const auto same_token = [&](const ion::PromptToken& a, const ion::PromptToken& b) {
    return a.id == b.id && a.logprob == b.logprob && a.rank == b.rank &&
           std::equal(a.top.begin(), a.top.end(), b.top.begin(), b.top.end(), same_entry);
  };
  return std::equal(one.begin(), one.end(), other.begin(), other.end(), same_token);
}

// What the engine owns and frees with its close; the fake runner behind it stays for questions.
class Handle : public ion::Runner {
 public:
  explicit Handle(std::shared_ptr<fake::Runner> runner) : runner_(std::move(runner)) {}
  const ion::Caps& caps() const override { return runner_->caps(); }
  void submit(ion::Step step) override { runner_->submit(std::move(step)); }
  void upload_masks(uint64_t epoch, std::vector<ion::Mask> masks) override {
    runner_->upload_masks(epoch, std::move(masks));
  }
  bool poll(ion::StepResult& result, bool wait) override { return runner_->poll(result, wait); }
  ion::Ticket copy_out(ion::BlockId block, ion::HostBlock host) override {
    return runner_->copy_out(block, host);
  }
  ion::Ticket copy_in(ion::HostBlock host, ion::BlockId block) override {
    return runner_->copy_in(host, block);
  }
  ion::CopyState done(ion::Ticket ticket, bool wait) override { return runner_->done(ticket, wait); }

 private:
  std::shared_ptr<fake::Runner> runner_;
};

class Rig {
 public:
  explicit Rig(Setup setup = {}) : setup_(setup) {
    runner_ =
        std::make_shared<fake::Runner>(setup.caps, setup.model, setup.seed, setup.faults, setup.max_delay_us);
    engine_ = std::make_unique<ion::Engine>(std::make_unique<Handle>(runner_), token_bytes(), kStopIds,
                                            setup.options);
  }
  ~Rig() {
    runner_->resume();
    engine_->close();
    check_protocol();
  }

  ion::Engine& engine() { return *engine_; }
  fake::Runner& runner() { return *runner_; }

  oracle::Output expected(const ion::SubmitParams& params) const {
    return oracle::expected(setting(), params);
  }
  std::vector<ion::PromptToken> expected_scores(const ion::SubmitParams& params) const {
    return oracle::expected_scores(setting(), params);
  }

  // Takes what is there, waiting at most `wait_ms` for something.
  void read(int wait_ms) {
    pollfd fd{engine_->event_fd(), POLLIN, 0};
    if (poll(&fd, 1, wait_ms) <= 0) return;
    for (ion::Event& event : engine_->drain()) take(event);
  }

  // The answer of a sequence, once it has ended. Gives up loudly after a minute.
  const Answer& answer(uint64_t sequence) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (answers_[sequence].output.finish == ion::kRunning) {
      if (std::chrono::steady_clock::now() > deadline)
        throw std::runtime_error("a sequence did not end in a minute");
      read(1000);
    }
    return answers_[sequence];
  }

  // The sequences that have ended, in the order of their last events.
  const std::vector<uint64_t>& ended() const { return ended_; }
  const Answer& so_far(uint64_t sequence) { return answers_[sequence]; }

  oracle::Output run(ion::SubmitParams params) { return answer(engine_->submit(std::move(params))).output; }

  // Waits until `holds(stats)`; false if it does not in a minute.
  template <typename Predicate>
  bool eventually(Predicate holds) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!holds(engine_->stats())) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

  bool gets_all_blocks_back() {
    return eventually([](const ion::Stats& s) { return s.blocks_free + s.blocks_cached == s.blocks_total; });
  }

  void check_protocol() {
    for (const std::string& violation : runner_->violations()) check::fault("fake_runner", 0, violation);
  }

 private:
  oracle::Setting setting() const {
    return {setup_.model,       token_bytes(), kStopIds, engine_->context_length(),
            setup_.caps.window, setup_.grammar};
  }

  void take(ion::Event& event) {
    Answer& answer = answers_[event.sequence];
    if (answer.output.finish != ion::kRunning) check::fault("rig", 0, "an event after the last one");
    if (!ion::is_valid_utf8(event.text))
      check::fault("rig", 0, "half a character: " + check::show(event.text));
    if (event.finish == ion::kRunning && event.text.empty() && event.logprobs.empty() &&
        event.prompt_logprobs.empty()) {
      check::fault("rig", 0, "an empty event");
    }
    if (std::exchange(answer.has_begun, true) && !event.prompt_logprobs.empty())
      check::fault("rig", 0, "prompt log-probabilities behind the first event");
    if (!event.prompt_logprobs.empty()) answer.prompt_logprobs = event.prompt_logprobs;
    answer.output.text += event.text;
    answer.output.num_tokens += event.num_tokens;
    answer.output.finish = event.finish;
    if (event.finish != ion::kRunning) ended_.push_back(event.sequence);
    answer.error = event.error;
    answer.num_cached_tokens = event.num_cached_tokens;
    answer.queue_s = event.queue_s;
    answer.logprobs.insert(answer.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
  }

  Setup setup_;
  std::shared_ptr<fake::Runner> runner_;
  std::unique_ptr<ion::Engine> engine_;
  std::map<uint64_t, Answer> answers_;
  std::vector<uint64_t> ended_;
};

inline std::vector<int32_t> prompt(size_t length, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> ids(length);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % 64);
  return ids;
}

inline ion::SubmitParams request(size_t length, uint64_t seed, int32_t max_tokens = 40) {
  ion::SubmitParams params;
  params.prompt = prompt(length, seed);
  params.max_tokens = max_tokens;
  params.sampling.seed = seed;
  return params;
}

}  // namespace rig
