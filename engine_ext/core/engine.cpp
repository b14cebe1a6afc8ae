// The engine's thread and its door. See engine.h; what happens in a turn is in loop.cpp.
#include "core/engine.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "core/loop.h"
#include "core/submit_check.h"

namespace ion {
namespace {

using Clock = std::chrono::steady_clock;

// What other threads leave for the engine's. Submissions come before aborts: an abort names an id that submit
// has returned.
struct Inbox {
  struct Submission {
    SequencePtr sequence;
    int32_t priority;
  };
  std::vector<Submission> submissions;
  std::vector<uint64_t> aborts;
  std::vector<MaskAnswer> masks;
  bool is_closing = false;
  bool is_empty() const { return submissions.empty() && aborts.empty() && masks.empty() && !is_closing; }
};

double seconds_now() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

void count_waiting(const Inbox::Submission& submission, Stats& stats) {
  ++stats.waiting;
  stats.waiting_tokens += submission.sequence->num_prompt;
}

EngineOptions effective(EngineOptions options, const Caps& caps) {
  const auto least = [](int32_t option, int32_t most) { return option > 0 ? std::min(option, most) : most; };
  if (caps.vocab_size < 1 || caps.context_length < 1 || caps.max_slots < 1 || caps.max_tokens_per_step < 1) {
    throw std::invalid_argument("runner: its caps are not all positive");
  }
  // The runner holds at most 4 steps: those in flight and the one being submitted.
  if (options.pipeline_depth < 0 || options.pipeline_depth > 3) {
    throw std::invalid_argument("pipeline_depth: " + std::to_string(options.pipeline_depth) +
                                " is outside [0, 3]");
  }
  if (options.max_mixed_step_ratio != 0.0 && !(options.max_mixed_step_ratio >= 1.0)) {
    throw std::invalid_argument("max_mixed_step_ratio: " + std::to_string(options.max_mixed_step_ratio) +
                                " is neither 0 (no bound) nor at least 1");
  }
  options.token_budget = least(options.token_budget, caps.max_tokens_per_step);
  // A decode row for every running sequence fits the budget, so none starves and prefill always gets a token.
  options.max_running = std::min(least(options.max_running, caps.max_slots), options.token_budget);
  const int64_t pool = int64_t{caps.num_blocks} * caps.block_size;
  options.context_length = least(options.context_length, caps.context_length);
  options.context_length = static_cast<int32_t>(std::min<int64_t>(options.context_length, pool));
  return options;
}

}  // namespace

// Two owners, no third:
//
//   the engine's thread   loop (and through it the runner, the scheduler, every sequence)
//   whoever holds mutex   inbox, published, has_work, last_progress, next_id, is_closed, broken
//
// A sequence is built by the submitting thread, passes through the inbox, and is the loop's from then on. The
// event queue has a mutex of its own.
struct Engine::Impl {
  std::unique_ptr<Runner> runner;  // until close
  const Caps caps;
  const EngineOptions options;
  const std::vector<int32_t> stop_ids;
  EventQueue events;
  MaskRequests mask_requests;
  Loop loop;  // the thread's alone, after construction

  mutable std::mutex mutex;  // guards everything down to next_id
  std::condition_variable wake;
  Inbox inbox;
  bool is_closed = false;  // takes no submissions: closing, or broken
  std::string broken;      // why, if a fault of the loop ended it
  Stats published;         // of the loop, as of its last turn
  bool has_work = false;   // of the loop, as of its last turn
  Clock::time_point last_progress = Clock::now();
  uint64_t next_id = 1;

  std::mutex join_mutex;  // several threads may close
  std::thread thread;

  Impl(std::unique_ptr<Runner> runner_, std::vector<std::string> token_bytes, std::vector<int32_t> stop_ids_,
       EngineOptions options_)
      : runner(std::move(runner_)),
        caps(runner->caps()),
        options(effective(std::move(options_), caps)),
        stop_ids(std::move(stop_ids_)),
        loop(*runner, std::move(token_bytes), options, seconds_now),
        published(loop.stats()) {}

  SequencePtr make_sequence(SubmitParams& params, uint64_t id) const;
  Inbox take_inbox();
  void run();
  void turn(Inbox inbox);
  void publish();
  void break_down(const std::string& error);
};

SequencePtr Engine::Impl::make_sequence(SubmitParams& params, uint64_t id) const {
  auto sequence = std::make_shared<Sequence>(id, std::move(params.prompt), params.stop, params.drops_space);
  sequence->max_new = std::min(params.max_tokens, options.context_length - sequence->num_prompt);
  sequence->chain.salt = std::move(params.cache_salt);
  sequence->has_grammar = params.has_grammar;
  sequence->ending_ids = params.sampling.stop_ids;
  sequence->sampling = std::move(params.sampling);
  if (sequence->sampling.top_k < 0) sequence->sampling.top_k = 0;
  // Below min_tokens the runner masks every stop id, the engine's even with ignore_eos.
  auto& masked = sequence->sampling.stop_ids;
  masked.insert(masked.end(), stop_ids.begin(), stop_ids.end());
  if (!params.ignore_eos) sequence->ending_ids = masked;
  return sequence;
}

Inbox Engine::Impl::take_inbox() {
  std::unique_lock lock(mutex);
  if (loop.is_idle() || loop.is_short_of_masks()) wake.wait(lock, [&] { return !inbox.is_empty(); });
  // From here on it is the loop's work, and counted as such even before the loop publishes.
  for (const Inbox::Submission& submission : inbox.submissions) count_waiting(submission, published);
  has_work = has_work || !inbox.submissions.empty();
  return std::exchange(inbox, {});
}

void Engine::Impl::turn(Inbox inbox_) {
  for (auto& [sequence, priority] : inbox_.submissions) loop.start(std::move(sequence), priority);
  for (uint64_t id : inbox_.aborts) loop.abort(id);
  for (MaskAnswer& answer : inbox_.masks) loop.give_mask(std::move(answer));
  if (inbox_.is_closing) {
    loop.shut_down();
  } else {
    loop.advance(seconds_now());
  }
  // Gauges first: whoever has read a sequence's last event does not find it running any more.
  publish();
  mask_requests.push(loop.take_mask_requests());
  events.push(loop.take_events());
}

void Engine::Impl::run() {
  for (;;) {
    Inbox taken = take_inbox();
    const bool is_last = taken.is_closing;
    try {
      turn(std::move(taken));
    } catch (const std::exception& e) {
      break_down(e.what());
      return;
    }
    if (is_last) return;
  }
}

void Engine::Impl::publish() {
  Stats stats = loop.stats();
  // While steps wait for masks the loop turns for every newcomer; that moves nothing.
  const bool is_stuck = stats.steps == published.steps && loop.is_short_of_masks();
  std::lock_guard lock(mutex);
  if (!is_stuck) last_progress = Clock::now();
  published = stats;
  has_work = !loop.is_idle();
}

// The loop's own state is not to be trusted any more: everybody is told, and nobody new gets in.
void Engine::Impl::break_down(const std::string& error) {
  const std::string message = "the engine broke down: " + error;
  Inbox rest;
  {
    std::lock_guard lock(mutex);
    is_closed = true;
    broken = message;
    has_work = false;
    rest = std::exchange(inbox, {});
  }
  for (auto& [sequence, priority] : rest.submissions) loop.start(std::move(sequence), priority);
  loop.fail_all(message);
  mask_requests.push(loop.take_mask_requests());
  events.push(loop.take_events());
}

Engine::Engine(std::unique_ptr<Runner> runner, std::vector<std::string> token_bytes,
               std::vector<int32_t> stop_ids, EngineOptions options) {
  if (runner == nullptr) throw std::invalid_argument("runner: is missing");
  for (int32_t id : stop_ids) {
    if (id < 0 || id >= runner->caps().vocab_size) {
      throw std::invalid_argument("stop_ids: token " + std::to_string(id) + " is outside the vocabulary");
    }
  }
  impl_ = std::make_unique<Impl>(std::move(runner), std::move(token_bytes), std::move(stop_ids),
                                 std::move(options));
  impl_->thread = std::thread([impl = impl_.get()] { impl->run(); });
}

Engine::~Engine() {
  close();
}

uint64_t Engine::submit(SubmitParams params) {
  check_submit(params, {impl_->options.context_length, impl_->caps.vocab_size, impl_->caps.max_logprobs,
                        impl_->caps.scores_prompts});
  const int32_t priority = params.priority;
  uint64_t id = 0;
  {
    std::lock_guard lock(impl_->mutex);
    id = impl_->next_id++;
  }
  SequencePtr sequence = impl_->make_sequence(params, id);
  sequence->submitted_at = seconds_now();
  std::lock_guard lock(impl_->mutex);
  if (impl_->is_closed)
    throw std::runtime_error(impl_->broken.empty() ? "the engine is closed" : impl_->broken);
  // An idle engine is not unresponsive; its clock starts with the first work.
  if (!impl_->has_work && impl_->inbox.submissions.empty()) impl_->last_progress = Clock::now();
  impl_->inbox.submissions.push_back({std::move(sequence), priority});
  impl_->wake.notify_one();
  return id;
}

void Engine::abort(uint64_t sequence) {
  std::lock_guard lock(impl_->mutex);
  if (impl_->is_closed) return;  // everything has ended or is about to
  impl_->inbox.aborts.push_back(sequence);
  impl_->wake.notify_one();
}

std::vector<Event> Engine::drain() {
  return impl_->events.drain();
}

std::vector<MaskRequest> Engine::take_mask_requests(std::chrono::duration<double> timeout) {
  return impl_->mask_requests.take(timeout);
}

void Engine::give_masks(std::vector<MaskAnswer> answers) {
  const auto num_words = static_cast<size_t>(impl_->caps.vocab_size + 31) / 32;
  for (const MaskAnswer& answer : answers) {
    if (answer.error.empty() && answer.words.size() != num_words) {
      throw std::invalid_argument("mask: has " + std::to_string(answer.words.size()) +
                                  " words, the vocabulary needs " + std::to_string(num_words));
    }
  }
  std::lock_guard lock(impl_->mutex);
  for (MaskAnswer& answer : answers) impl_->inbox.masks.push_back(std::move(answer));
  impl_->wake.notify_one();
}

Stats Engine::stats() const {
  std::lock_guard lock(impl_->mutex);
  Stats stats = impl_->published;
  for (const Inbox::Submission& submission : impl_->inbox.submissions) count_waiting(submission, stats);
  stats.is_broken = !impl_->broken.empty();
  if (impl_->has_work || !impl_->inbox.submissions.empty()) {
    stats.unresponsive_s = std::chrono::duration<double>(Clock::now() - impl_->last_progress).count();
  }
  return stats;
}

int Engine::event_fd() const {
  return impl_->events.fd();
}
const Caps& Engine::caps() const {
  return impl_->caps;
}
int32_t Engine::context_length() const {
  return impl_->options.context_length;
}

void Engine::close() {
  if (impl_ == nullptr) return;  // the constructor threw
  {
    std::lock_guard lock(impl_->mutex);
    impl_->is_closed = true;
    impl_->inbox.is_closing = true;
    impl_->wake.notify_one();
  }
  impl_->mask_requests.close();
  // Not under `mutex`: the thread needs that to see the closing.
  std::lock_guard lock(impl_->join_mutex);
  if (!impl_->thread.joinable()) return;
  impl_->thread.join();
  impl_->runner.reset();  // weights and KV: whoever still holds the engine has no use for them
}

}  // namespace ion
