// The seam between deciding and computing: what a step is, and who runs it.
// Knows token ids, slots and blocks. Knows no weights, kernels, text or Python.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace ion {

using SeqSlot = int32_t;  // index into the runner's per-sequence state, reused after a leave
using BlockId = int32_t;  // index of a KV block of `Caps::block_size` tokens
constexpr BlockId kNoBlock = -1;
using HostBlock = int32_t;  // index of a block in the second tier (host memory or a file)
using Ticket = uint64_t;    // one copy between the tiers

enum RowFlag : uint8_t {
  kRowSample = 1,          // sample a token after the last position of this row
  kRowPromptLogprobs = 2,  // report log-probabilities of the prompt tokens computed by this row
  kRowGrammar = 4,         // a mask is uploaded before sampling
};

// One sequence's share of a step: positions [start, start + count) are computed and written to KV.
// Ids of prompt positions come from the join's prompt (or, after preemption, prompt + generated);
// the id of a decode row is the slot's last sampled id, which the runner keeps.
struct Row {
  SeqSlot slot;
  int32_t start;
  int32_t count;
  uint8_t flags;
};

// Added to the logit of one id before anything is masked.
struct LogitBias {
  int32_t id;
  float bias;
};

struct SamplingParams {
  float temperature = 1.0f;  // 0: greedy, ties to the lowest id
  int32_t top_k = 0;         // 0 or >= vocab: off
  float top_p = 1.0f;
  float min_p = 0.0f;
  float top_a = 0.0f;                // keeps ids of probability >= top_a * (largest probability)^2
  float repetition_penalty = 1.0f;   // counts prompt and generated tokens
  float presence_penalty = 0.0f;     // counts generated tokens only
  float frequency_penalty = 0.0f;    // counts generated tokens only
  uint64_t seed = 0;                 // draw = Philox(seed, position)
  int32_t min_tokens = 0;            // stop ids are masked below this many generated tokens
  int32_t num_logprobs = -1;         // -1: none; n >= 0: the chosen one and the top n
  int32_t num_prompt_logprobs = -1;  // the same of each prompt token but the first
  std::vector<int32_t> stop_ids;     // masked while generated < min_tokens
  std::vector<LogitBias> logit_bias;
};

struct Join {
  SeqSlot slot;
  SamplingParams sampling;
  std::vector<int32_t> ids;  // prompt, then tokens generated before a preemption
  int32_t num_prompt;        // ids[0, num_prompt) is the prompt
};

struct AppendedBlock {
  SeqSlot slot;
  int32_t index;  // position in the slot's block table
  BlockId block;
};

struct BlockCopy {
  BlockId from, to;
};

// Applied before the rows of the step, in this order: leaves, joins, blocks, copies.
struct Delta {
  std::vector<SeqSlot> leaves;
  std::vector<Join> joins;
  std::vector<AppendedBlock> blocks;
  std::vector<BlockCopy> copies;
};

struct Step {
  uint64_t epoch = 0;
  std::vector<Row> rows;
  Delta delta;
};

// Which ids one row may sample: bit id % 32 of words[id / 32]. No words: any id.
struct Mask {
  SeqSlot slot;
  std::vector<uint32_t> words;
};

struct TokenLogprob {
  int32_t id;
  float logprob;
};

struct Sampled {
  SeqSlot slot;
  int32_t id;          // -1: the mask and the parameters together leave nothing to sample
  bool finite = true;  // false: the row's logits held NaN or infinity; `id` means nothing
  float logprob = 0.0f;
  std::vector<TokenLogprob> top;  // descending, at most num_logprobs
};

// One prompt token as the model foresaw it, of raw logits.
struct PromptToken {
  int32_t id;
  float logprob;
  int32_t rank;                   // 1: the likeliest; ties to the lowest id
  std::vector<TokenLogprob> top;  // descending, at most num_prompt_logprobs
};

// Position p tells of token p + 1, also where that token is another step's to compute. The prompt's last
// position tells of no prompt token, and generated tokens are not reported.
struct PromptLogprobs {
  SeqSlot slot;
  bool finite = true;  // false: a row of logits held NaN or infinity; `tokens` mean nothing
  std::vector<PromptToken> tokens;
};

// How many tokens a row with kRowPromptLogprobs reports on: prompt tokens from row.start + 1 on.
inline int32_t num_reported(const Row& row, int32_t num_prompt) {
  return std::max(0, std::min(row.count, num_prompt - 1 - row.start));
}

struct StepResult {
  uint64_t epoch = 0;
  std::vector<Sampled> sampled;                 // one per row with kRowSample, in row order
  std::vector<PromptLogprobs> prompt_logprobs;  // one per row with kRowPromptLogprobs, in row order
  double seconds = 0.0;                         // time spent computing
  std::string error;                            // not empty: the whole step failed
};

struct Caps {
  int32_t num_blocks = 0;
  int32_t block_size = 16;
  int32_t max_slots = 64;
  int32_t max_tokens_per_step = 512;
  int32_t context_length = 0;
  int32_t vocab_size = 0;
  int32_t num_host_blocks = 0;       // of the second tier; 0: there is none
  int64_t block_bytes = 0;           // of one block with all its layers
  int32_t max_logprobs = INT32_MAX;  // most num_logprobs that a sequence may ask for
  bool scores_prompts = true;        // answers rows with kRowPromptLogprobs
  int32_t window = 0;                // position p reads KV of (p - window, p] alone; 0: of all before it
};

enum class CopyState : uint8_t {
  kPending,
  kDone,
  kFailed,  // the target's contents mean nothing
};

// What a runner may rely on, and what it must put up with:
// - A join resets everything its slot held. One delta may hold a leave and a join of the same slot.
// - A sequence's first row may start above 0: the blocks before it are prefix hits and hold KV already.
// - Of a sequence's rows each starts where the last ended; a slot may sit out a step and keeps its state.
// - A slot whose sequence has ended may get a few rows more, as many as steps were in flight: their samples
//   are ignored.
// - A slot joins, and a block goes to another slot, only when every step that named it has been polled.
// - A failed step ends its sequences. Steps already submitted behind it may hold rows for the same slots,
//   whose positions then do not follow on: any samples, or an error, are a right answer. A leave that was
//   lost with a failed step is made good by the slot's next join.
// - A poll that throws has failed the oldest step, and that step is over: nothing of it is computed any more.
//
// - A step with kRowGrammar rows gets one upload of masks, with a mask for each of those rows. Its forward
//   pass need not wait for them, its sampling does, and so do the steps behind it.
//
// - Copies between the tiers run in the background, beside steps and other copies, in any order. The engine
//   copies out only blocks whose contents no step in flight changes, and names neither end of a copy in a
//   step or another copy that would change it before the copy is over. What was copied out whole comes back
//   bit for bit, or the copy fails.
//
// Computes steps in epoch order. `submit` never blocks; up to 4 epochs may be in flight, then it throws.
// All calls come from one thread, the engine's.
class Runner {
 public:
  virtual ~Runner() = default;
  virtual const Caps& caps() const = 0;
  virtual void submit(Step step) = 0;
  // Never blocks. Only for steps in flight that have kRowGrammar rows, once for each.
  virtual void upload_masks(uint64_t epoch, std::vector<Mask> masks) = 0;
  // Takes the oldest finished step, or returns false. `wait` sleeps until one is finished.
  virtual bool poll(StepResult& result, bool wait) = 0;

  // Only with num_host_blocks > 0. They start a copy and do not wait for it.
  virtual Ticket copy_out(BlockId, HostBlock) { throw std::logic_error("the runner has no second tier"); }
  virtual Ticket copy_in(HostBlock, BlockId) { throw std::logic_error("the runner has no second tier"); }
  // `wait` sleeps until the copy is over. A ticket is asked about until it is, and never again.
  virtual CopyState done(Ticket, bool /*wait*/) { throw std::logic_error("the runner has no second tier"); }
};

}  // namespace ion
