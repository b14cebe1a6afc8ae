// Schedule, run, commit. See loop.h.
#include "core/loop.h"

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <utility>

namespace ion {
namespace {

// What the exception being handled says; never empty, since an empty error means success.
std::string describe_fault() {
  try {
    throw;
  } catch (const std::exception& e) {
    if (*e.what() != '\0') return e.what();
  } catch (...) {
  }
  return "the runner failed without a reason";
}

}  // namespace

Loop::Loop(Runner& runner, std::vector<std::string> token_bytes, const EngineOptions& options,
           std::function<double()> clock)
    : runner_(runner),
      options_(options),
      scheduler_(
          runner.caps(),
          {options.token_budget, options.max_running, options.prefix_cache, options.max_mixed_step_ratio},
          options.cache_identity, &runner),
      committer_(scheduler_, std::move(token_bytes), runner.caps().vocab_size),
      clock_(std::move(clock)) {}

void Loop::start(SequencePtr sequence, int32_t priority) {
  live_.emplace(sequence->id, sequence);
  committer_.ask_first_mask(*sequence);
  scheduler_.add(std::move(sequence), priority);
}

void Loop::abort(uint64_t id) {
  const auto it = live_.find(id);
  if (it == live_.end()) return;
  committer_.end(it->second, kAborted);
  live_.erase(it);
}

void Loop::give_mask(MaskAnswer answer) {
  const auto it = live_.find(answer.sequence);
  if (it == live_.end()) return;
  Sequence& s = *it->second;
  if (!answer.error.empty()) {
    committer_.end(it->second, kError, std::move(answer.error));
    live_.erase(it);
  } else if (s.has_grammar && answer.index == s.num_generated()) {
    s.mask = std::move(answer.words);
    s.mask_index = answer.index;
  }
}

// Depth 1, in time; the runner always has the next step before the last one is looked at:
//
//   this thread   submit 1 | submit 2 | commit 1 | submit 3 | commit 2 | ...
//   runner          step 1 ............ | step 2 ............ | step 3 ...
void Loop::advance(double now) {
  // After a refused step the runner knows less than the scheduler: nothing is built on top until that step's
  // sequences have ended.
  const bool is_held_up = !in_flight_.empty() && !in_flight_.back().error.empty();
  // The pipeline stays full while its oldest step waits for masks.
  const bool is_full = in_flight_.size() > static_cast<size_t>(options_.pipeline_depth);
  const bool has_submitted = !is_held_up && !is_full && try_submit(now);
  // With nothing new to run there is nothing to overlap with: the oldest step is taken in at once.
  const size_t depth = has_submitted || is_full ? static_cast<size_t>(options_.pipeline_depth) : 0;
  if (in_flight_.size() > depth) {
    if (try_upload_masks()) commit_oldest();
  } else if (!has_submitted && scheduler_.is_copying()) {
    scheduler_.poll_copies(true);
  } else if (!has_submitted && !live_.empty()) {
    // The scheduler promises that this cannot be; without the check it would be a thread that spins for ever.
    throw std::logic_error("sequences wait, nothing is in flight, and nothing can be scheduled");
  }
}

bool Loop::try_submit(double now) {
  InFlight next{scheduler_.schedule(), {}};
  if (next.scheduled.is_empty()) return false;
  for (const SequencePtr& owner : next.scheduled.owners) {
    if (owner->queue_s < 0.0) owner->queue_s = std::max(now - owner->submitted_at, 0.0);
  }
  for (const Row& row : next.scheduled.rows)
    next.is_complete = next.is_complete && !(row.flags & kRowGrammar);
  try {
    runner_.submit(std::move(next.scheduled.step));
  } catch (...) {
    next.error = describe_fault();
  }
  in_flight_.push_back(std::move(next));
  return true;
}

bool Loop::is_short_of_masks() const {
  if (in_flight_.empty() || in_flight_.front().is_complete || !in_flight_.front().error.empty()) return false;
  const ScheduledStep& step = in_flight_.front().scheduled;
  for (size_t i = 0; i < step.rows.size(); ++i) {
    const Sequence& owner = *step.owners[i];
    if (!(step.rows[i].flags & kRowGrammar) || owner.status == Status::kFinished) continue;
    if (owner.mask_index != owner.sample_index(step.rows[i])) return true;
  }
  return false;
}

// Rows of sequences that have ended sample whatever they like: it is ignored.
bool Loop::try_upload_masks() {
  InFlight& oldest = in_flight_.front();
  if (oldest.is_complete || !oldest.error.empty()) return true;
  if (is_short_of_masks()) return false;
  std::vector<Mask> masks;
  for (size_t i = 0; i < oldest.scheduled.rows.size(); ++i) {
    const Row& row = oldest.scheduled.rows[i];
    if (!(row.flags & kRowGrammar)) continue;
    Sequence& owner = *oldest.scheduled.owners[i];
    masks.push_back({row.slot, {}});
    if (owner.status == Status::kFinished) continue;
    masks.back().words = std::exchange(owner.mask, {});
    owner.mask_index = -1;
  }
  runner_.upload_masks(oldest.scheduled.epoch, std::move(masks));
  oldest.is_complete = true;
  return true;
}

StepResult Loop::take_result(const InFlight& oldest) {
  StepResult result;
  result.epoch = oldest.scheduled.epoch;
  result.error = oldest.error;
  if (!result.error.empty()) return result;
  try {
    // Results older than the oldest step belong to steps already given up.
    do {
      if (!runner_.poll(result, true))
        throw std::runtime_error("the runner has no result for a step in flight");
    } while (result.epoch < oldest.scheduled.epoch);
    if (result.epoch > oldest.scheduled.epoch) throw std::runtime_error("the runner skipped a step");
  } catch (...) {
    result = StepResult{.epoch = oldest.scheduled.epoch, .sampled = {}, .error = describe_fault()};
  }
  return result;
}

void Loop::commit_oldest() {
  StepResult result = take_result(in_flight_.front());
  const InFlight oldest = std::move(in_flight_.front());
  in_flight_.pop_front();
  ++measured_.steps;
  measure(oldest.scheduled, result);
  // Commit first: it may end sequences, whose slots and blocks this step was the last to name.
  committer_.commit(oldest.scheduled, result);
  scheduler_.complete(result.epoch);
  for (const SequencePtr& owner : oldest.scheduled.owners) {
    if (owner->status == Status::kFinished) live_.erase(owner->id);
  }
  if (options_.check_integrity) scheduler_.check_integrity();
}

void Loop::measure(const ScheduledStep& scheduled, const StepResult& result) {
  measure_delay(result.seconds);
  if (!result.error.empty()) return;
  const StepLoad& load = scheduled.load;
  scheduler_.learn(load, result.seconds);
  measured_.last_step_s = result.seconds;
  measured_.step_seconds += result.seconds;
  measured_.tokens_prefilled += load.prefill_tokens;
  measured_.last_decode_rows = load.decode_rows;
  measured_.last_prefill_chunk = load.prefill_tokens;
  measured_.last_predicted_s = scheduled.predicted_s;
  measured_.last_decode_only_s = scheduled.alone_s;
  if (load.prefill_tokens > 0) prefill_rate_.add(load.prefill_tokens, result.seconds);
  if (load.decode_rows > 0) decode_rate_.add(load.decode_rows, result.seconds);
  if (!load.is_mixed()) return;
  ++measured_.mixed_steps;
  measured_.mixed_step_seconds += result.seconds;
  measured_.mixed_predicted_seconds += scheduled.predicted_s;
}

// Of steps that were with the runner when the one before came back: from there on only computing should pass.
void Loop::measure_delay(double seconds) {
  constexpr double kNotable = 1e-3;
  if (!clock_) return;
  const double now = clock_();
  measured_.last_step_delay_s = polled_at_ < 0.0 ? 0.0 : std::max(now - polled_at_ - seconds, 0.0);
  measured_.step_delay_seconds += measured_.last_step_delay_s;
  measured_.steps_delayed += measured_.last_step_delay_s > kNotable ? 1 : 0;
  polled_at_ = in_flight_.empty() ? -1.0 : now;
}

void Loop::shut_down() {
  // Ended before the steps in flight are taken in, so that what those computed is ignored.
  for (const auto& [id, sequence] : std::exchange(live_, {})) committer_.end(sequence, kAborted);
  while (!in_flight_.empty()) {
    try_upload_masks();
    commit_oldest();
  }
  while (scheduler_.is_copying()) scheduler_.poll_copies(true);
}

void Loop::fail_all(const std::string& error) {
  for (const auto& [id, sequence] : std::exchange(live_, {})) {
    if (sequence->status != Status::kFinished) committer_.abandon(*sequence, error);
  }
}

std::vector<Event> Loop::take_events() {
  return committer_.take_events();
}

std::vector<MaskRequest> Loop::take_mask_requests() {
  return committer_.take_mask_requests();
}

Stats Loop::stats() const {
  const CommitCounters& counters = committer_.counters();
  const BlockManager& blocks = scheduler_.blocks();
  Stats stats = measured_;
  stats.waiting = scheduler_.num_waiting();
  stats.running = scheduler_.num_running();
  stats.waiting_tokens = scheduler_.num_waiting_tokens();
  stats.blocks_total = blocks.num_total();
  stats.blocks_free = blocks.num_free();
  stats.blocks_cached = blocks.num_cached();
  if (const KvTier* tier = scheduler_.tier()) {
    stats.tier_blocks_total = tier->blocks().num_total();
    stats.tier_blocks_free = tier->blocks().num_free();
    stats.tier_blocks_cached = tier->blocks().num_cached();
    stats.tier_copies_out = tier->counters().copies_out;
    stats.tier_copies_in = tier->counters().copies_in;
    stats.tier_copies_failed = tier->counters().copies_failed;
    stats.tier_hit_tokens = scheduler_.num_tier_hit_tokens();
  }
  stats.block_bytes = runner_.caps().block_bytes;
  stats.tokens_generated = counters.tokens_generated;
  stats.prefill_splits = scheduler_.num_prefill_splits();
  stats.preemptions = scheduler_.num_preemptions();
  stats.finished = counters.finished;
  stats.aborts = counters.aborts;
  stats.errors = counters.errors;
  stats.non_finite_rows = counters.non_finite_rows;
  stats.prefix_hit_tokens = scheduler_.num_prefix_hit_tokens();
  stats.prefill_rate = prefill_rate_.per_second();
  stats.decode_rate = decode_rate_.per_second();
  return stats;
}

}  // namespace ion
