// Results in, events out. See committer.h.
#include "core/committer.h"

#include <optional>
#include <utility>

namespace ion {
namespace {

constexpr const char* kNotFinite = "the model produced NaN or infinite logits";

// Why the reports on prompt tokens do not belong to the rows, or nothing.
std::string find_wrong_scores(const ScheduledStep& scheduled, const StepResult& result) {
  size_t num_scored = 0;
  for (size_t i = 0; i < scheduled.rows.size(); ++i) {
    const Row& row = scheduled.rows[i];
    if (!(row.flags & kRowPromptLogprobs)) continue;
    if (num_scored == result.prompt_logprobs.size()) return "the runner left out a report on prompt tokens";
    const PromptLogprobs& scores = result.prompt_logprobs[num_scored++];
    const auto num_wanted = static_cast<size_t>(num_reported(row, scheduled.owners[i]->num_prompt));
    if (scores.slot != row.slot || (scores.finite && scores.tokens.size() != num_wanted)) {
      return "the runner reported on other prompt tokens than asked";
    }
  }
  return num_scored == result.prompt_logprobs.size() ? "" : "the runner reported on prompt tokens unasked";
}

// Why the samples do not belong to the rows, or nothing.
std::string find_mismatch(const ScheduledStep& scheduled, const StepResult& result) {
  size_t num_sampled = 0;
  for (const Row& row : scheduled.rows) {
    if (!(row.flags & kRowSample)) continue;
    if (num_sampled < result.sampled.size() && result.sampled[num_sampled].slot != row.slot) {
      return "the runner sampled for another slot than asked";
    }
    ++num_sampled;
  }
  if (num_sampled == result.sampled.size()) return find_wrong_scores(scheduled, result);
  return "the runner returned " + std::to_string(result.sampled.size()) + " samples for " +
         std::to_string(num_sampled) + " rows";
}

}  // namespace

Committer::Committer(Scheduler& scheduler, std::vector<std::string> token_bytes, int32_t vocab_size)
    : scheduler_(scheduler), token_bytes_(std::move(token_bytes)), vocab_size_(vocab_size) {}

void Committer::commit(const ScheduledStep& scheduled, StepResult& result) {
  const std::string error = result.error.empty() ? find_mismatch(scheduled, result) : result.error;
  size_t next = 0, next_scored = 0;
  for (size_t i = 0; i < scheduled.rows.size(); ++i) {
    const SequencePtr& owner = scheduled.owners[i];
    if (!error.empty()) {
      if (owner->status != Status::kFinished) end(owner, kError, error);
      continue;
    }
    const Row& row = scheduled.rows[i];
    Sampled* sampled = row.flags & kRowSample ? &result.sampled[next++] : nullptr;
    const bool is_scored = row.flags & kRowPromptLogprobs;
    commit_row(owner, row, sampled, is_scored ? &result.prompt_logprobs[next_scored++] : nullptr);
  }
}

void Committer::commit_row(const SequencePtr& sequence, const Row& row, Sampled* sampled,
                           PromptLogprobs* scores) {
  Sequence& s = *sequence;
  if (s.status == Status::kFinished) return;
  // A sequence preempted since then has no KV any more, but its sample counts.
  if (s.status == Status::kRunning) s.num_computed = row.start + row.count;
  if (scores != nullptr && !take_scores(sequence, row, *scores)) return;
  if (sampled == nullptr) return;
  --s.num_in_flight;
  if (!sampled->finite) {
    ++counters_.non_finite_rows;
    end(sequence, kError, kNotFinite);
    return;
  }
  if (s.max_new == 0) {  // the prompt was all: what is sampled behind it is no answer
    scheduler_.seal(s);
    conclude(sequence, Event{.finish = kLength});
    return;
  }
  if (sampled->id == -1) {
    end(sequence, kError, "no token is left to sample: the request's mask and parameters exclude them all");
    return;
  }
  if (sampled->id < 0 || sampled->id >= vocab_size_) {
    end(sequence, kError,
        "the runner sampled token " + std::to_string(sampled->id) + ", outside the vocabulary");
    return;
  }
  // Blocks enter the prefix tree only here: finite logits vouch for every KV entry the row attended to, since
  // attention carries a NaN in any of them to the output. Entries that a sliding window has left behind are
  // not vouched for; whoever computed them anew would get the same values.
  scheduler_.seal(s);
  accept(sequence, *sampled);
}

// False: the sequence has ended. What was reported before a preemption is not reported again.
bool Committer::take_scores(const SequencePtr& sequence, const Row& row, PromptLogprobs& scores) {
  Sequence& s = *sequence;
  if (!scores.finite) {
    ++counters_.non_finite_rows;
    end(sequence, kError, kNotFinite);
    return false;
  }
  for (size_t i = 0; i < scores.tokens.size(); ++i) {
    if (row.start + static_cast<int32_t>(i) < s.num_scored) continue;
    s.prompt_logprobs.push_back(std::move(scores.tokens[i]));
    ++s.num_scored;
  }
  return true;
}

void Committer::accept(const SequencePtr& sequence, Sampled& sampled) {
  Sequence& s = *sequence;
  const bool may_end_by_id = s.num_generated() >= s.sampling.min_tokens;
  // An id ends the text before itself, a stop string with its last token: hence the two readings of the
  // count, min_tokens others before a stop id, min_tokens in all for a stop string.
  s.ids.push_back(sampled.id);
  ++s.num_unreported;
  ++counters_.tokens_generated;
  const bool may_end_by_text = s.num_generated() >= s.sampling.min_tokens;
  Event event;
  if (may_end_by_id && s.is_ending_id(sampled.id)) {
    s.text.finish(true, event.text);
    event.finish = kStop;
  } else {
    std::optional<TokenLogprobs> logprobs;
    if (s.sampling.num_logprobs >= 0) {
      logprobs = TokenLogprobs{sampled.id, sampled.logprob, std::move(sampled.top)};
    }
    const auto id = static_cast<size_t>(sampled.id);
    const std::string_view bytes = id < token_bytes_.size() ? std::string_view(token_bytes_[id]) : "";
    if (s.text.push(bytes, may_end_by_text, std::move(logprobs), event.text)) {
      event.finish = kStop;
    } else if (s.num_generated() >= s.max_new) {
      event.finish = s.text.finish(may_end_by_text, event.text) ? kStop : kLength;
    }
  }
  s.text.take_logprobs(event.logprobs);
  event.stop = s.text.stop();
  if (s.has_grammar && event.finish == kRunning)
    mask_requests_.push_back({s.id, sampled.id, s.num_generated()});
  conclude(sequence, std::move(event));
}

// A good event; with a finish the last one.
void Committer::conclude(const SequencePtr& sequence, Event event) {
  event.prompt_logprobs = std::exchange(sequence->prompt_logprobs, {});
  if (event.finish != kRunning) {
    ++counters_.finished;
    scheduler_.remove(sequence);
  }
  publish(*sequence, std::move(event));
}

void Committer::end(const SequencePtr& sequence, Finish finish, std::string error) {
  ++(finish == kAborted ? counters_.aborts : counters_.errors);
  scheduler_.remove(sequence);
  Event event;
  event.finish = finish;
  event.error = std::move(error);
  publish(*sequence, std::move(event));
}

void Committer::abandon(Sequence& sequence, const std::string& error) {
  ++counters_.errors;
  sequence.status = Status::kFinished;
  Event event;
  event.finish = kError;
  event.error = error;
  publish(sequence, std::move(event));
}

void Committer::ask_first_mask(const Sequence& sequence) {
  if (sequence.has_grammar) mask_requests_.push_back({.sequence = sequence.id});
}

void Committer::publish(Sequence& sequence, Event event) {
  if (sequence.has_grammar && event.finish != kRunning) {
    mask_requests_.push_back({.sequence = sequence.id, .has_ended = true});
  }
  // A token without text to show waits for the next that has some: nobody wants an empty delta.
  if (event.finish == kRunning && event.text.empty() && event.logprobs.empty() &&
      event.prompt_logprobs.empty())
    return;
  event.sequence = sequence.id;
  event.queue_s = sequence.queue_s;
  event.num_tokens = std::exchange(sequence.num_unreported, 0);
  if (event.finish != kRunning) event.num_cached_tokens = sequence.num_cached_tokens;
  events_.push_back(std::move(event));
}

std::vector<Event> Committer::take_events() {
  return std::exchange(events_, {});
}

std::vector<MaskRequest> Committer::take_mask_requests() {
  return std::exchange(mask_requests_, {});
}

}  // namespace ion
