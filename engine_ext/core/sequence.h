// One request inside the engine: its tokens, where its KV lies, how far it is computed, how it ends.
// Pure state: the scheduler moves it, the committer fills it. Touched by the engine's thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/block_manager.h"
#include "core/event_queue.h"
#include "core/kv_tier.h"
#include "core/runner.h"
#include "core/text_stream.h"

namespace ion {

enum class Status : uint8_t {
  kWaiting,   // no slot, no blocks; also after a preemption
  kRunning,   // has a slot; prefilling or decoding
  kFinished,  // ended; rows still in flight for it are ignored
};

// Positions, half-open, of a running sequence:
//
//   ids        [0 ......... num_prompt) [num_prompt ............ ids.size())
//               prompt                   generated, committed
//   computed   [0 ... num_computed)     [num_computed .. num_scheduled)
//               KV valid                 in steps that are in flight
//   blocks     block i of the table holds positions [16 i, 16 i + 16); the table covers [0, num_scheduled);
//              [0, num_passed) of it are kNoBlock: given back, since no window reaches them any more
//
// While decoding at depth d, num_scheduled runs up to d positions ahead of ids.size(): the runner knows those
// ids first. num_in_flight counts samples that are under way; generated + num_in_flight never exceeds
// max_new.
struct Sequence {
  Sequence(uint64_t id, std::vector<int32_t> prompt, const std::vector<std::string>& stops,
           bool drops_space = false);

  const uint64_t id;
  std::vector<int32_t> ids;  // prompt, then generated
  const int32_t num_prompt;
  SamplingParams sampling;          // as the runner gets it; stop_ids also mask below min_tokens
  std::vector<int32_t> ending_ids;  // stop ids that end it (ignore_eos leaves the engine's own out)
  int32_t max_new = 0;              // min(max_tokens, context - prompt); 0: its prompt is scored, no more
  int64_t rank = 0;                 // order of service, smaller first; ties by id
  TextStream text;

  Status status = Status::kWaiting;
  SeqSlot slot = -1;
  std::vector<BlockId> blocks;
  int32_t num_passed = 0;
  PrefixChain chain;                   // where its prefix stands in the cache
  PrefixChain tier_chain;              // and in the second tier
  std::shared_ptr<const Fetch> fetch;  // not null: it waits for blocks of the second tier, and has not joined
  int32_t num_computed = 0;
  int32_t num_scheduled = 0;
  int32_t num_prefill = 0;        // ids at the last join: [0, num_prefill) are computed from given ids
  int32_t num_in_flight = 0;      // samples in steps not committed yet
  uint64_t last_epoch = 0;        // newest step that names its slot or blocks
  int32_t num_unreported = 0;     // generated tokens that no event accounts for yet
  int32_t num_cached_tokens = 0;  // prompt tokens found in the prefix cache at the first admission
  bool was_admitted = false;
  double submitted_at = 0.0;  // seconds of the engine's clock
  double queue_s = -1.0;      // from there to the step that had its first row; -1: none had yet

  int32_t num_scored = 0;                    // prompt tokens behind the first that are reported on
  std::vector<PromptToken> prompt_logprobs;  // theirs, until the first event takes them along

  bool has_grammar = false;    // a mask is wanted for each of its samples
  std::vector<uint32_t> mask;  // for the token with this number of generated ones before it ...
  int32_t mask_index = -1;     // ... or -1: none has come

  int32_t num_ids() const { return static_cast<int32_t>(ids.size()); }
  int32_t num_generated() const { return num_ids() - num_prompt; }
  bool is_scoring() const { return sampling.num_prompt_logprobs >= 0 && num_scored < num_prompt - 1; }
  // Positions from here on are computed even if their KV is cached: position p tells of prompt token p + 1.
  int32_t num_reusable() const { return is_scoring() ? num_scored : num_ids(); }
  bool is_prefilling() const { return num_scheduled < num_prefill; }
  bool can_sample_more() const { return num_generated() + num_in_flight < max_new; }
  bool is_ending_id(int32_t id) const;
  // How many generated tokens lie before the one that a row samples.
  int32_t sample_index(const Row& row) const { return row.start + row.count - num_prompt; }
};

using SequencePtr = std::shared_ptr<Sequence>;

struct ByRank {
  bool operator()(const SequencePtr& a, const SequencePtr& b) const {
    return a->rank != b->rank ? a->rank < b->rank : a->id < b->id;
  }
};

}  // namespace ion
