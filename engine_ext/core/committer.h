// Takes a step's results in: appends tokens, ends sequences, turns ids into events. The third verb of the
// engine. Knows no threads and no queue; the scheduler keeps the books of slots and blocks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/event_queue.h"
#include "core/mask_requests.h"
#include "core/runner.h"
#include "core/scheduler.h"
#include "core/sequence.h"

namespace ion {

struct CommitCounters {
  int64_t tokens_generated = 0;
  int64_t finished = 0;
  int64_t aborts = 0;
  int64_t errors = 0;
  int64_t non_finite_rows = 0;
};

class Committer {
 public:
  // token_bytes[i]: raw bytes of token i; ids beyond it have no text.
  Committer(Scheduler& scheduler, std::vector<std::string> token_bytes, int32_t vocab_size);

  // Rows of sequences that ended since the step was scheduled are ignored: what a runner computed past a stop
  // is neither text, nor billed, nor cached. A failed step, or one whose samples do not fit its rows, ends
  // its sequences with kError. The caller tells the scheduler afterwards that the epoch is complete.
  void commit(const ScheduledStep& scheduled, StepResult& result);
  // Ends a sequence that has not ended. Its slot and blocks are free once no step names them.
  void end(const SequencePtr& sequence, Finish finish, std::string error = {});

  // Ends a sequence with kError and leaves the scheduler's books alone: they are what is broken.
  void abandon(Sequence& sequence, const std::string& error);

  // Asks for the mask of a sequence's first token.
  void ask_first_mask(const Sequence& sequence);

  std::vector<Event> take_events();
  std::vector<MaskRequest> take_mask_requests();
  const CommitCounters& counters() const { return counters_; }

 private:
  void commit_row(const SequencePtr& sequence, const Row& row, Sampled* sampled, PromptLogprobs* scores);
  bool take_scores(const SequencePtr& sequence, const Row& row, PromptLogprobs& scores);
  void accept(const SequencePtr& sequence, Sampled& sampled);
  void conclude(const SequencePtr& sequence, Event event);
  void publish(Sequence& sequence, Event event);

  Scheduler& scheduler_;
  const std::vector<std::string> token_bytes_;
  const int32_t vocab_size_;
  std::vector<Event> events_;
  std::vector<MaskRequest> mask_requests_;
  CommitCounters counters_;
};

}  // namespace ion
