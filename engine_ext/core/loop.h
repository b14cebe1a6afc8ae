// The engine without its thread: schedule -> run -> commit, one turn at a time.
// Knows no locks and no clock: the time comes in. Everything here belongs to whoever calls it, one caller at
// a time.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/committer.h"
#include "core/decayed_rate.h"
#include "core/engine.h"
#include "core/runner.h"
#include "core/scheduler.h"

namespace ion {

class Loop {
 public:
  // `options` are checked and effective (no zeros that mean "the default"). `clock` gives seconds and serves
  // statistics alone; without it delays of steps are not known.
  Loop(Runner& runner, std::vector<std::string> token_bytes, const EngineOptions& options,
       std::function<double()> clock = {});

  void start(SequencePtr sequence, int32_t priority);
  void abort(uint64_t sequence);
  // A mask that nobody waits for any more is ignored.
  void give_mask(MaskAnswer answer);
  // One turn, begun at `now` (seconds, as Sequence::submitted_at). At depth d, steps n+1 .. n+d are with the
  // runner while step n is committed; at depth 0 the runner rests meanwhile. Sleeps only inside the runner,
  // and only for the oldest step in flight.
  void advance(double now);
  // Ends everything with kAborted and waits for the steps in flight.
  void shut_down();
  // Ends everything with kError; for a fault of the loop itself, after which only take_events makes sense.
  void fail_all(const std::string& error);

  // Whether the oldest step in flight waits for masks: the loop can do nothing more until one comes.
  bool is_short_of_masks() const;
  bool is_idle() const { return live_.empty() && in_flight_.empty() && !scheduler_.is_copying(); }
  std::vector<Event> take_events();
  std::vector<MaskRequest> take_mask_requests();
  Stats stats() const;

 private:
  struct InFlight {
    ScheduledStep scheduled;
    std::string error;        // the runner refused the step: it comes back failed, in its turn
    bool is_complete = true;  // false: the runner still lacks its masks
  };

  bool try_submit(double now);
  bool try_upload_masks();
  void commit_oldest();
  StepResult take_result(const InFlight& oldest);
  void measure(const ScheduledStep& scheduled, const StepResult& result);
  void measure_delay(double seconds);

  Runner& runner_;
  const EngineOptions options_;
  Scheduler scheduler_;
  Committer committer_;
  std::unordered_map<uint64_t, SequencePtr> live_;  // waiting and running
  std::deque<InFlight> in_flight_;
  Stats measured_;  // what steps did and took; the rest stays zero
  const std::function<double()> clock_;
  double polled_at_ = -1.0;  // when the last step's result came while the next was with the runner; else -1
  DecayedRate prefill_rate_;
  DecayedRate decode_rate_;
};

}  // namespace ion
