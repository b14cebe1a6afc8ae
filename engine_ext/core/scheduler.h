// Decides what the next step computes: who runs, how much of whom, in which blocks. See docs/engine.md.
// Knows no logits, no text, no threads and no clock; it is told how long steps took.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <vector>

#include "core/block_manager.h"
#include "core/kv_tier.h"
#include "core/runner.h"
#include "core/sequence.h"
#include "core/step_cost.h"

namespace ion {

struct SchedulerOptions {
  int32_t token_budget = 512;
  int32_t max_running = 64;
  bool prefix_cache = true;
  double max_mixed_step_ratio = 0.0;  // see EngineOptions; 0: no bound
};

// A step with what commit has to know about it. rows and owners run in parallel.
struct ScheduledStep {
  Step step;
  uint64_t epoch = 0;
  std::vector<Row> rows;  // epoch and rows are copies: the runner takes the step itself
  std::vector<SequencePtr> owners;
  StepLoad load;
  double alone_s = 0.0;      // expected of its decode rows alone; 0: unknown
  double predicted_s = 0.0;  // of a mixed step; 0: unknown
  bool is_empty() const { return rows.empty(); }
};

// The rules:
//
// - Order of service is (rank, id), a total order fixed at submission, rank = arrival step - priority *
//   kHeadStart. A priority is a head start, so everybody's turn comes: later arrivals have ever larger ranks.
// - A step holds a row for each decoding sequence first, then prefill chunks, then joins, up to the token
//   budget. max_running never exceeds the budget, so decode rows fit and leave a token to each prefill.
// - Beside decode rows a step holds no more prefill than keeps it within max_mixed_step_ratio times the time
//   of the decode rows alone, as StepCost has learned, and at least a block; now and then none, for one step,
//   to measure those. The bound protects many from few: it is off while more than kFew sequences, and more
//   than a quarter as many as decode, could be computing their prompts.
// - Admission is strictly in order; the first in line waits for the blocks of all its ids plus one spare
//   block for each running sequence, so that it is not preempted at once. With nobody running it needs no
//   spare, and one sequence always fits the pool: admission cannot deadlock.
// - It waits, too, while a running sequence still computes a good piece of the same prefix: a few steps later
//   that piece is in the cache. Of many requests with one long system prompt, the first computes it and the
//   rest reuse it.
// - A sequence whose prompt tokens are reported on computes them itself: prefix hits end where the report
//   does, at the beginning of a new sequence. Its blocks serve others as any do.
// - A decode row that needs a block when none is available preempts the last in order of service, possibly
//   itself. The victim waits with its prompt and generated ids and later computes them again (or finds them
//   cached, in either tier).
// - With a second tier, sealed blocks are copied there at once. A new member whose prefix goes on there gets
//   its blocks copied back before it joins; it holds slot and blocks meanwhile and others pass it. What fails
//   to come back is computed.
// - Where every layer has a window, a decoding sequence gives back the blocks that no later position reads. A
//   prompt keeps its own until it is sealed.
// - A slot or block is given out again only after the newest step that names it is done: release is deferred
//   until complete(epoch) says so. What is deferred counts as used. A copy holds references of its own.
class Scheduler {
 public:
  static constexpr int64_t kHeadStart = 256;  // steps per point of priority, a few seconds of a busy engine
  static constexpr int32_t kMaxPriority = 1000;
  static constexpr int32_t kFew = 1;
  static constexpr int32_t kMinTwinTokens = 64;  // a shared prefix worth a wait of one or two steps

  // `tier` is the runner whose second tier is used, null for none; it outlives the scheduler.
  Scheduler(const Caps& caps, SchedulerOptions options, std::string cache_identity, Runner* tier = nullptr);

  void add(SequencePtr sequence, int32_t priority);
  // The next step, empty when nothing can run before a step in flight is done (or nothing waits at all).
  ScheduledStep schedule();
  // Takes a sequence out, whatever its state, with the status kFinished.
  void remove(const SequencePtr& sequence);
  // Every step up to `epoch` is done: what only they named is free.
  void complete(uint64_t epoch);
  // Such a step took so long.
  void learn(const StepLoad& load, double seconds) { cost_.learn(load, seconds); }
  // Enters the sequence's full blocks into the prefix tree, positions [0, num_computed), and starts copying
  // them into the second tier. What lies outside the window is given back.
  void seal(Sequence& sequence);
  // Whether copies between the tiers are under way: when nothing else is, the next step may wait for one.
  bool is_copying() const { return tier_ && tier_->is_copying(); }
  // Takes in the copies that are over; `wait` sleeps for the oldest.
  void poll_copies(bool wait);

  int32_t num_waiting() const { return static_cast<int32_t>(waiting_.size()); }
  int32_t num_running() const { return static_cast<int32_t>(running_.size()); }
  int64_t num_waiting_tokens() const;
  int64_t num_preemptions() const { return num_preemptions_; }
  int64_t num_prefix_hit_tokens() const { return num_prefix_hit_tokens_; }
  int64_t num_prefill_splits() const { return num_prefill_splits_; }
  int64_t num_tier_hit_tokens() const { return num_tier_hit_tokens_; }
  const BlockManager& blocks() const { return blocks_; }
  const KvTier* tier() const { return tier_ ? &*tier_ : nullptr; }  // null: there is none
  // Also checks that used blocks are those of running sequences and of deferred releases, slots likewise.
  void check_integrity() const;

 private:
  struct Deferred {
    uint64_t epoch;  // wait for this step
    SeqSlot slot;    // -1: blocks alone
    std::vector<BlockId> blocks;
  };

  void add_decode_rows(ScheduledStep& out);
  void bound_prefill(ScheduledStep& out);
  void add_prefill_rows(ScheduledStep& out);
  void add_prefill_row(const SequencePtr& sequence, ScheduledStep& out);
  void admit(ScheduledStep& out);
  bool try_admit(const SequencePtr& sequence, ScheduledStep& out);
  void place(Sequence& sequence, std::vector<BlockId> matched, int32_t num_new);
  void start_fetch(Sequence& sequence, int32_t num_matched);
  bool try_begin(Sequence& sequence, ScheduledStep& out);
  void begin(Sequence& sequence, ScheduledStep& out);
  bool has_twin(const Sequence& sequence, int32_t num_matched) const;
  void add_row(const SequencePtr& sequence, int32_t count, ScheduledStep& out);
  bool try_grow(const SequencePtr& sequence, ScheduledStep& out);
  void preempt(SequencePtr victim);
  void leave(Sequence& sequence);
  void release_passed(Sequence& sequence);
  std::vector<int32_t> passing_references() const;
  int32_t num_blocks_soon_free() const;

  const Caps caps_;
  const SchedulerOptions options_;
  BlockManager blocks_;
  std::optional<KvTier> tier_;
  StepCost cost_;
  std::set<SequencePtr, ByRank> waiting_;
  std::set<SequencePtr, ByRank> running_;
  std::vector<SeqSlot> free_slots_;  // a stack
  std::vector<SeqSlot> leaves_;      // to be told to the runner with the next step
  std::deque<Deferred> deferred_;
  uint64_t epoch_ = 0;  // of the newest step given out
  uint64_t completed_ = 0;
  int32_t budget_ = 0;             // tokens left in the step being built
  bool is_out_of_blocks_ = false;  // the first in line could not be admitted when it was last tried
  int32_t num_promised_ = 0;       // blocks soon free that rows skipped in this step wait for
  int64_t num_preemptions_ = 0;
  int64_t num_prefix_hit_tokens_ = 0;
  int64_t num_tier_hit_tokens_ = 0;
  int64_t num_prefill_splits_ = 0;
};

}  // namespace ion
