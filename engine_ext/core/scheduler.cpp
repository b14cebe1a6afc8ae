// Continuous batching under a token budget. The rules are in scheduler.h.
#include "core/scheduler.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace ion {
namespace {

// Leaves at most `most` blocks.
void cut(std::vector<int32_t>& blocks, int32_t most) {
  if (static_cast<int32_t>(blocks.size()) > most) blocks.resize(static_cast<size_t>(most));
}

}  // namespace

Scheduler::Scheduler(const Caps& caps, SchedulerOptions options, std::string cache_identity, Runner* tier)
    : caps_(caps),
      options_(options),
      blocks_(caps.num_blocks, caps.block_size, cache_identity),
      cost_({.ratio = options.max_mixed_step_ratio, .least = caps.block_size}) {
  // Without a prefix cache nothing would ever be found in it.
  if (tier != nullptr && caps.num_host_blocks > 0 && options.prefix_cache) {
    tier_.emplace(*tier, blocks_, std::move(cache_identity));
  }
  for (SeqSlot slot = caps.max_slots - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

void Scheduler::add(SequencePtr sequence, int32_t priority) {
  const int64_t head_start = std::clamp(priority, -kMaxPriority, kMaxPriority) * kHeadStart;
  sequence->rank = static_cast<int64_t>(epoch_) - head_start;
  sequence->status = Status::kWaiting;
  waiting_.insert(std::move(sequence));
}

// Decode rows first: somebody reads those streams, and each costs one token of the budget. What is left goes
// to prompts, old ones before new ones.
ScheduledStep Scheduler::schedule() {
  ScheduledStep out;
  budget_ = options_.token_budget;
  num_promised_ = 0;
  poll_copies(false);
  add_decode_rows(out);
  bound_prefill(out);
  add_prefill_rows(out);
  admit(out);
  if (out.step.rows.empty()) return out;
  if (out.load.is_mixed()) out.predicted_s = cost_.predict(out.load);
  out.epoch = out.step.epoch = ++epoch_;
  // Leaves wait for a step with rows. Their slots may be free by then, even taken by a join of this very
  // step: the runner applies leaves before joins.
  out.step.delta.leaves = std::exchange(leaves_, {});
  out.rows = out.step.rows;
  for (const SequencePtr& owner : out.owners) owner->last_epoch = epoch_;
  return out;
}

void Scheduler::add_decode_rows(ScheduledStep& out) {
  // Growing may preempt the last in order, so the next one is looked up anew. A victim never has a row in
  // this step: it comes after the sequence that asks, or is that sequence.
  for (auto it = running_.begin(); it != running_.end();) {
    const SequencePtr sequence = *it;
    if (!sequence->is_prefilling() && sequence->can_sample_more() && try_grow(sequence, out)) {
      ++out.load.decode_rows;
      out.load.decode_context += sequence->num_scheduled + 1;
      add_row(sequence, 1, out);
    }
    it = running_.upper_bound(sequence);
  }
}

// Lowers the budget to what the decode rows can bear. Where a newcomer will begin is not known yet.
void Scheduler::bound_prefill(ScheduledStep& out) {
  const auto is_prefilling = [](const SequencePtr& s) {
    return s->is_prefilling() && (!s->fetch || s->fetch->is_over);
  };
  const auto first = std::ranges::find_if(running_, is_prefilling);
  const auto num_prefilling = static_cast<int32_t>(std::count_if(first, running_.end(), is_prefilling));
  int32_t num_behind = num_prefilling;
  if (!is_out_of_blocks_) {
    const auto num_free_slots = static_cast<int32_t>(free_slots_.size());
    num_behind += std::min({num_waiting(), options_.max_running - num_running(), num_free_slots});
  }
  const int32_t num_decoding = out.load.decode_rows;
  if (num_decoding == 0 || num_behind == 0 || num_behind > std::max(kFew, num_decoding / 4)) return;
  int64_t context = 0;
  if (first != running_.end()) {
    const auto& fetch = (*first)->fetch;
    context = (*first)->num_scheduled + (fetch ? fetch->num_whole * caps_.block_size : 0);
  }
  const StepCost::Choice choice = cost_.choose(out.load, context, budget_);
  budget_ = choice.tokens;
  out.alone_s = choice.alone_s;
}

// The first in order takes all of the budget it can use. Sharing it would give every prompt its first token
// when the last of them is done; this way the first has it early and the last no later.
void Scheduler::add_prefill_rows(ScheduledStep& out) {
  for (const SequencePtr& sequence : running_) {
    if (budget_ == 0) return;
    if (sequence->is_prefilling() && try_begin(*sequence, out)) add_prefill_row(sequence, out);
  }
}

void Scheduler::add_prefill_row(const SequencePtr& sequence, ScheduledStep& out) {
  const int32_t count = std::min(budget_, sequence->num_prefill - sequence->num_scheduled);
  out.load.prefill_tokens += count;
  out.load.prefill_context += int64_t{count} * (sequence->num_scheduled + count / 2);
  add_row(sequence, count, out);
}

void Scheduler::admit(ScheduledStep& out) {
  while (budget_ > 0 && !waiting_.empty() && num_running() < options_.max_running && !free_slots_.empty()) {
    const SequencePtr sequence = *waiting_.begin();
    is_out_of_blocks_ = !try_admit(sequence, out);
    if (is_out_of_blocks_) return;
    if (!sequence->fetch) add_prefill_row(sequence, out);
  }
}

// The table of a new member, in blocks:
//
//   [0 ....... num_matched)   [num_matched ....... num_needed)
//    found in the cache,       new: written by this sequence alone
//    shared, never written
//
// All blocks of the known ids are taken at once, so a half-computed prompt never waits for one.
bool Scheduler::try_admit(const SequencePtr& sequence, ScheduledStep& out) {
  // A preempted sequence may still have a sample under way: its ids are not known yet.
  if (sequence->last_epoch > completed_) return false;
  std::vector<BlockId> matched;
  if (options_.prefix_cache) matched = blocks_.match(sequence->chain.salt, sequence->ids);
  cut(matched, sequence->num_reusable() / caps_.block_size);
  const auto num_matched = static_cast<int32_t>(matched.size());
  if (has_twin(*sequence, num_matched)) return false;
  const int32_t num_new = blocks_.num_needed(sequence->num_ids()) - num_matched;
  const int32_t num_available = blocks_.num_available() - blocks_.num_cached_among(matched);
  if (num_new + num_running() > num_available) return false;

  waiting_.erase(sequence);
  place(*sequence, std::move(matched), num_new);
  running_.insert(sequence);
  if (tier_) start_fetch(*sequence, num_matched);
  if (!sequence->fetch) begin(*sequence, out);
  return true;
}

void Scheduler::place(Sequence& s, std::vector<BlockId> matched, int32_t num_new) {
  s.chain = blocks_.acquire(s.chain.salt, matched);
  s.num_computed = s.num_scheduled = static_cast<int32_t>(matched.size()) * caps_.block_size;
  s.num_prefill = s.num_ids();
  s.blocks = std::move(matched);
  for (int32_t i = 0; i < num_new; ++i) s.blocks.push_back(blocks_.allocate());
  s.slot = free_slots_.back();
  free_slots_.pop_back();
  s.status = Status::kRunning;
}

// Of the new blocks, those that the second tier holds come from there:
//
//   [0 ....... num_matched)   [num_matched ... num_found)   [num_found ....... num_needed)
//    first tier                second tier                   computed
void Scheduler::start_fetch(Sequence& s, int32_t num_matched) {
  s.tier_chain.salt = s.chain.salt;
  const auto first = static_cast<size_t>(num_matched);
  std::vector<HostBlock> found = tier_->match(s.chain.salt, s.ids);
  cut(found, s.num_reusable() / caps_.block_size);
  if (found.size() <= first) return;
  const size_t count = found.size() - first;
  s.fetch = tier_->fetch(std::span(found).subspan(first, count), std::span(s.blocks).subspan(first, count));
}

// False: its blocks are still on their way.
bool Scheduler::try_begin(Sequence& s, ScheduledStep& out) {
  if (!s.fetch) return true;
  if (!s.fetch->is_over) return false;
  const int32_t num_fetched = s.fetch->num_whole * caps_.block_size;
  s.fetch.reset();
  s.num_computed += num_fetched;
  s.num_scheduled += num_fetched;
  num_tier_hit_tokens_ += num_fetched;
  begin(s, out);
  return true;
}

void Scheduler::begin(Sequence& s, ScheduledStep& out) {
  for (size_t i = 0; i < s.blocks.size(); ++i) {
    out.step.delta.blocks.push_back({s.slot, static_cast<int32_t>(i), s.blocks[i]});
  }
  if (!std::exchange(s.was_admitted, true)) {
    s.num_cached_tokens = std::min(s.num_computed, s.num_prompt);
    num_prefix_hit_tokens_ += s.num_cached_tokens;
  }
  out.step.delta.joins.push_back({s.slot, s.sampling, s.ids, s.num_prompt});
}

// Whether a running sequence is about to seal at least kMinTwinTokens beyond what is matched. It cannot be
// waited for in vain: it samples, and seals, within a bounded number of steps, or it leaves.
bool Scheduler::has_twin(const Sequence& sequence, int32_t num_matched) const {
  if (!options_.prefix_cache) return false;
  for (const SequencePtr& other : running_) {
    if (other->num_computed >= other->num_prefill || other->chain.salt != sequence.chain.salt) continue;
    const auto end = other->ids.begin() + other->num_prefill;
    const auto differ =
        std::mismatch(other->ids.begin(), end, sequence.ids.begin(), sequence.ids.end()).first;
    const auto num_common = static_cast<int32_t>(differ - other->ids.begin());
    // Of its last block a sequence computes at least one token itself (see BlockManager::match).
    const int32_t num_useful = std::min(num_common, sequence.num_reusable());
    const int32_t num_shared = std::min(num_useful, sequence.num_ids() - 1) / caps_.block_size;
    if ((num_shared - num_matched) * caps_.block_size >= kMinTwinTokens) return true;
  }
  return false;
}

void Scheduler::add_row(const SequencePtr& sequence, int32_t count, ScheduledStep& out) {
  Sequence& s = *sequence;
  const bool is_sampling = s.num_scheduled + count >= s.num_prefill;
  uint8_t flags = is_sampling ? (s.has_grammar ? kRowSample | kRowGrammar : kRowSample) : 0;
  // After a preemption the first rows may lie within what is reported already.
  const bool has_news = s.num_scheduled + count > s.num_scored && s.num_scheduled < s.num_prompt - 1;
  if (s.is_scoring() && has_news) flags |= kRowPromptLogprobs;
  out.step.rows.push_back({s.slot, s.num_scheduled, count, flags});
  out.owners.push_back(sequence);
  s.num_scheduled += count;
  s.num_in_flight += is_sampling ? 1 : 0;
  num_prefill_splits_ += is_sampling ? 0 : 1;
  budget_ -= count;
}

bool Scheduler::try_grow(const SequencePtr& sequence, ScheduledStep& out) {
  // The row writes position num_scheduled; the table covers it unless a block has just been filled.
  if (blocks_.num_needed(sequence->num_scheduled + 1) <= static_cast<int32_t>(sequence->blocks.size()))
    return true;
  for (;;) {
    if (blocks_.num_available() > 0) {
      const BlockId block = blocks_.allocate();
      out.step.delta.blocks.push_back({sequence->slot, static_cast<int32_t>(sequence->blocks.size()), block});
      sequence->blocks.push_back(block);
      return true;
    }
    // Blocks that a step or copy in flight is the last to use are as good as free; the row waits for it.
    if (num_promised_ < num_blocks_soon_free()) {
      ++num_promised_;
      return false;
    }
    const SequencePtr victim = *running_.rbegin();
    preempt(victim);
    if (victim == sequence) return false;
  }
}

// The victim keeps its rank and so is in general the first to come back. A sample of it may still be under
// way: commit appends it to ids all the same, and try_admit waits for it.
void Scheduler::preempt(SequencePtr victim) {
  ++num_preemptions_;
  leave(*victim);
  running_.erase(victim);
  victim->status = Status::kWaiting;
  waiting_.insert(std::move(victim));
}

void Scheduler::remove(const SequencePtr& sequence) {
  if (sequence->status == Status::kRunning) {
    leave(*sequence);
    running_.erase(sequence);
  } else {
    waiting_.erase(sequence);
  }
  sequence->status = Status::kFinished;
}

// Slot and blocks pass from the sequence to deferred_, and from there to free_slots_ and the block manager:
//
//   owner        the sequence ........ deferred_ ................ nobody
//                              leave            complete(epoch),
//                                               epoch >= last_epoch
void Scheduler::leave(Sequence& sequence) {
  if (!sequence.fetch) leaves_.push_back(sequence.slot);  // else it never joined
  sequence.fetch.reset();
  deferred_.push_back({sequence.last_epoch, sequence.slot, std::move(sequence.blocks)});
  sequence.slot = -1;
  sequence.blocks.clear();
  sequence.chain = PrefixChain{.salt = std::move(sequence.chain.salt)};
  sequence.num_computed = sequence.num_scheduled = 0;
  complete(completed_);  // nothing is in flight for it: the second passage follows at once
}

void Scheduler::complete(uint64_t epoch) {
  completed_ = std::max(completed_, epoch);
  std::erase_if(deferred_, [&](const Deferred& deferred) {
    if (deferred.epoch > completed_) return false;
    blocks_.release(deferred.blocks);
    free_slots_.push_back(deferred.slot);
    return true;
  });
}

void Scheduler::seal(Sequence& sequence) {
  if (!options_.prefix_cache || sequence.status != Status::kRunning) return;
  blocks_.seal(sequence.chain, sequence.ids, sequence.num_computed, sequence.blocks);
  if (tier_) {
    tier_->write_back(sequence.tier_chain, sequence.ids, sequence.num_computed, sequence.blocks);
  }
}

void Scheduler::poll_copies(bool wait) {
  if (tier_) tier_->poll(wait);
}

// References of each block that end by themselves: with a step in flight or with a copy.
std::vector<int32_t> Scheduler::passing_references() const {
  std::vector<int32_t> num_passing(static_cast<size_t>(caps_.num_blocks), 0);
  if (tier_) tier_->count_references(num_passing);
  for (const Deferred& deferred : deferred_) {
    for (BlockId block : deferred.blocks) ++num_passing[static_cast<size_t>(block)];
  }
  return num_passing;
}

int32_t Scheduler::num_blocks_soon_free() const {
  // A block with another owner does not become free; counting it would make a row wait for nothing.
  const std::vector<int32_t> num_passing = passing_references();
  int32_t num_blocks = 0;
  for (BlockId block = 0; block < caps_.num_blocks; ++block) {
    const int32_t num_refs = num_passing[static_cast<size_t>(block)];
    num_blocks += num_refs > 0 && num_refs == blocks_.num_refs(block) ? 1 : 0;
  }
  return num_blocks;
}

int64_t Scheduler::num_waiting_tokens() const {
  int64_t num_tokens = 0;
  for (const SequencePtr& sequence : waiting_) num_tokens += sequence->num_ids();
  for (const SequencePtr& sequence : running_) {
    num_tokens += std::max(0, sequence->num_prefill - sequence->num_scheduled);
  }
  return num_tokens;
}

void Scheduler::check_integrity() const {
  blocks_.check_integrity();
  if (tier_) tier_->check_integrity();
  std::vector<int32_t> num_owners = passing_references();
  for (const SequencePtr& sequence : running_) {
    if (sequence->status != Status::kRunning) throw std::logic_error("a running sequence has another status");
    for (BlockId block : sequence->blocks) ++num_owners[static_cast<size_t>(block)];
  }
  for (BlockId block = 0; block < caps_.num_blocks; ++block) {
    if (num_owners[static_cast<size_t>(block)] != blocks_.num_refs(block)) {
      throw std::logic_error("block " + std::to_string(block) + ": owners and references differ in number");
    }
  }
  if (free_slots_.size() + running_.size() + deferred_.size() != static_cast<size_t>(caps_.max_slots)) {
    throw std::logic_error("free, running and deferred slots are not all slots");
  }
}

}  // namespace ion
