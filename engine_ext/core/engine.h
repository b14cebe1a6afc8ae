// The engine: one thread that schedules, runs and commits; the door for every other thread.
// Knows no weights (that is the runner) and no Python; decisions are the scheduler's and the committer's.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/event_queue.h"
#include "core/mask_requests.h"
#include "core/runner.h"

namespace ion {

struct EngineOptions {
  int32_t token_budget = 512;  // tokens a step, at most what the runner takes
  int32_t max_running = 64;    // sequences a step, at most the runner's slots
  int32_t context_length = 0;  // prompt + generated; 0: the runner's; never above the KV pool
  int32_t pipeline_depth = 1;  // steps in flight while the next is scheduled: 0..3; the output is the same
  double max_mixed_step_ratio = 1.8;  // prefill beside decode rows makes a step so many times as long at most
                                      // (learned from the steps); 0: as much as the budget takes
  bool prefix_cache = true;           // reuse KV blocks of equal prefixes
  std::string cache_identity;         // model revision, dtype, numerics: part of every cached block's key
  bool check_integrity = false;       // verify block accounts after every commit (tests)
};

struct SubmitParams {
  std::vector<int32_t> prompt;
  int32_t max_tokens = 0;         // generated tokens, at least 1; with prompt logprobs 0 scores the prompt
  SamplingParams sampling;        // its stop_ids: the request's own
  std::vector<std::string> stop;  // UTF-8, not empty
  bool ignore_eos = false;        // the engine's stop ids do not end it; the request's own still do
  int32_t priority = 0;           // larger is served earlier; a head start, not an absolute right
  std::string cache_salt;         // prefixes are shared only between equal salts (tenants)
  bool drops_space = false;       // one space at the start of the answer is not text
  bool has_grammar = false;       // every sample waits for a mask: see take_mask_requests
};

// Gauges are as of the last step; counters run since the start. Rates are decayed over about 10 s of compute.
struct Stats {
  int64_t waiting = 0;         // sequences without a slot, those just submitted included
  int64_t running = 0;         // sequences with a slot
  int64_t waiting_tokens = 0;  // tokens still to be prefilled, in waiting and running sequences
  int64_t blocks_total = 0;
  int64_t blocks_free = 0;
  int64_t blocks_cached = 0;  // no owner, contents kept for reuse, taken when free ones run out
  // The second tier; all 0 without one. used = total - free - cached is what copies are at work on.
  int64_t tier_blocks_total = 0;
  int64_t tier_blocks_free = 0;
  int64_t tier_blocks_cached = 0;
  int64_t tier_copies_out = 0;  // blocks, failed ones included
  int64_t tier_copies_in = 0;
  int64_t tier_copies_failed = 0;
  int64_t tier_hit_tokens = 0;  // positions that came back instead of being computed
  int64_t block_bytes = 0;      // of one block, in either tier
  int64_t steps = 0;
  int64_t tokens_generated = 0;  // committed and billed
  int64_t tokens_prefilled = 0;  // computed prompt positions, recomputation after preemption included
  int64_t prefill_splits = 0;    // steps that ended within somebody's prompt
  int64_t preemptions = 0;
  int64_t finished = 0;  // by stop or length
  int64_t aborts = 0;
  int64_t errors = 0;           // sequences ended by an error
  int64_t non_finite_rows = 0;  // of these, by NaN or infinite logits
  int64_t prefix_hit_tokens = 0;
  double last_step_s = 0.0;   // compute time of the last step
  double step_seconds = 0.0;  // of all steps
  // Steps with decode rows and prefill tokens.
  int64_t mixed_steps = 0;
  double mixed_step_seconds = 0.0;
  double mixed_predicted_seconds = 0.0;  // what was expected of them; of the first ones nothing
  int64_t last_decode_rows = 0;          // of the last step
  int64_t last_prefill_chunk = 0;        // its prefill tokens
  double last_predicted_s = 0.0;         // what was expected of it, if it was mixed; 0: nothing
  double last_decode_only_s = 0.0;       // and of its decode rows alone
  // How much later than its computing explains a step's result came: the loop's work that no step hid.
  double last_step_delay_s = 0.0;
  double step_delay_seconds = 0.0;  // of all steps
  int64_t steps_delayed = 0;        // by more than 1 ms
  double prefill_rate = 0.0;        // tokens/s, over steps that prefill; 0: unknown
  double decode_rate = 0.0;         // tokens/s of all sequences together, over steps that decode; 0: unknown
  double unresponsive_s = 0.0;  // seconds since the last sign of progress while there is work; 0 when idle
  bool is_broken = false;       // a fault of its own ended it: it takes no more work
};

// All public calls are thread-safe and cheap; none waits for a step, except close.
class Engine {
 public:
  // token_bytes[i]: raw bytes of token i, empty for tokens that never reach the text. stop_ids end a
  // sequence. Throws std::invalid_argument for options or stop ids that make no sense.
  Engine(std::unique_ptr<Runner> runner, std::vector<std::string> token_bytes, std::vector<int32_t> stop_ids,
         EngineOptions options = {});
  ~Engine();  // close()
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Queues a sequence and returns its id (from 1, never reused). Throws std::invalid_argument, naming the
  // field, if it can never run; std::runtime_error after close.
  uint64_t submit(SubmitParams params);
  // Ends a sequence with kAborted; its blocks are free within a step. Unknown and ended ids are ignored.
  void abort(uint64_t sequence);
  std::vector<Event> drain();
  // What masks are wanted: one for a sequence's first token, then one after each token. Waits at most
  // `timeout` for something; empty after it, and from close on. A step waits for the masks of all its rows,
  // so this wants a thread that does nothing else.
  std::vector<MaskRequest> take_mask_requests(std::chrono::duration<double> timeout);
  // Throws std::invalid_argument for words that are not as many as the vocabulary needs.
  void give_masks(std::vector<MaskAnswer> answers);
  Stats stats() const;
  int event_fd() const;
  const Caps& caps() const;
  int32_t context_length() const;  // the effective one: option, runner and KV pool, whichever is least
  // Aborts everything, waits for the steps in flight, joins the thread, frees the runner. Events stay
  // drainable. Idempotent.
  void close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ion
