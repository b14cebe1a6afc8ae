// A runner that computes nothing but misses nothing: its "KV cache" holds digests of token histories in
// blocks, so a block that is shared, reused, copied or skipped wrongly changes the tokens that come out. It
// works in a thread of its own with random delays, and checks the protocol of core/runner.h as it goes.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/runner.h"

namespace fake {

using ion::BlockId;
using ion::SeqSlot;

struct Model {
  int32_t vocab_size = 64;
  uint64_t nan_one_in = 0;  // 0: never; else a history in so many gives non-finite logits
};

inline uint64_t mix(uint64_t x) {
  x ^= x >> 33;
  x *= 0xFF51AFD7ED558CCDull;
  x ^= x >> 33;
  x *= 0xC4CEB9FE1A85EC53ull;
  return x ^ (x >> 33);
}

// Digest of a position: what the "KV" holds for it. `before` is the digest of the position before.
inline uint64_t position_digest(uint64_t before, int32_t id) {
  return mix(before * 31 + static_cast<uint64_t>(id) + 1);
}

inline bool is_nan(const Model& model, uint64_t history) {
  return model.nan_one_in > 0 && mix(history ^ 0x4E414E) % model.nan_one_in == 0;
}

// The next token is a function of everything attended to (the sum of all digests), of the seed and of what is
// masked. -1 where a mask leaves nothing.
inline int32_t next_token(const Model& model, uint64_t history, const ion::SamplingParams& sampling,
                          int32_t num_generated, const std::vector<uint32_t>& mask = {}) {
  if (!mask.empty() && std::all_of(mask.begin(), mask.end(), [](uint32_t word) { return word == 0; }))
    return -1;
  for (uint64_t draw = mix(history ^ mix(sampling.seed));; draw = mix(draw + 1)) {
    const auto id = static_cast<int32_t>(draw % static_cast<uint64_t>(model.vocab_size));
    const auto& stops = sampling.stop_ids;
    const bool is_masked =
        num_generated < sampling.min_tokens && std::find(stops.begin(), stops.end(), id) != stops.end();
    const bool is_allowed = mask.empty() || (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1u) != 0;
    if (!is_masked && is_allowed) return id;
  }
}

// What the model says beforehand of the token behind a history.
inline ion::PromptToken foreseen(const Model& model, uint64_t history, int32_t id, int32_t num_top) {
  const uint64_t digest = mix(history + static_cast<uint64_t>(id) * 977);
  const auto rank = static_cast<int32_t>(digest % static_cast<uint64_t>(model.vocab_size)) + 1;
  ion::PromptToken token{id, -static_cast<float>(digest % 1009) / 64.0f, rank, {}};
  for (int32_t i = 0; i < num_top; ++i) token.top.push_back({i, token.logprob - static_cast<float>(i)});
  return token;
}

struct Faults {
  double fail_step = 0.0;      // probability that a step comes back with an error
  double refuse_submit = 0.0;  // that submit throws
  double lose_result = 0.0;    // that poll throws and the result is gone
  double delay_result = 0.0;   // that poll throws and the next one gives the result
  double fail_copy = 0.0;      // that a copy between the tiers fails; nobody's answer may show it
  bool any() const { return fail_step + refuse_submit + lose_result + delay_result > 0; }
};

// What a step is to a clock: rows that decode, tokens of prompts, and the positions that each kind attends
// to.
struct Work {
  int32_t decode_rows = 0, prefill_tokens = 0;
  int64_t decode_context = 0, prefill_context = 0;
};

class Runner : public ion::Runner {
 public:
  using Duration = std::function<double(const Work&)>;  // seconds of a step

  Runner(ion::Caps caps, Model model, uint64_t seed, Faults faults = {}, int max_delay_us = 0)
      : caps_(caps),
        model_(model),
        faults_(faults),
        max_delay_us_(max_delay_us),
        random_(seed),
        slots_(static_cast<size_t>(caps.max_slots)),
        slot_epochs_(static_cast<size_t>(caps.max_slots)),
        kv_(static_cast<size_t>(caps.num_blocks) * static_cast<size_t>(caps.block_size)),
        host_(static_cast<size_t>(caps.num_host_blocks) * static_cast<size_t>(caps.block_size)),
        worker_([this] { work(); }) {}

  ~Runner() override {
    {
      std::lock_guard lock(mutex_);
      is_stopping_ = true;
    }
    changed_.notify_all();
    worker_.join();
  }

  const ion::Caps& caps() const override { return caps_; }

  void submit(ion::Step step) override {
    std::lock_guard lock(mutex_);
    if (chance(faults_.refuse_submit)) throw std::runtime_error("injected: submit refused");
    if (num_in_flight_ >= 4 && has_faults()) throw std::runtime_error("injected: busy with late results");
    check_reuse(step);
    if (step.epoch <= newest_epoch_) violation("epochs do not rise");
    if (num_in_flight_ >= 4) violation("more than 4 steps in flight");
    newest_epoch_ = step.epoch;
    ++num_in_flight_;
    ++num_submitted_;
    max_in_flight_ = std::max(max_in_flight_, num_in_flight_);
    max_step_tokens_ = std::max(max_step_tokens_, num_tokens(step));
    todo_.push_back(std::move(step));
    changed_.notify_all();
  }

  void upload_masks(uint64_t epoch, std::vector<ion::Mask> masks) override {
    std::lock_guard lock(mutex_);
    if (epoch <= polled_epoch_ || epoch > newest_epoch_) violation("masks for a step that is not in flight");
    if (!masks_.emplace(epoch, std::move(masks)).second) violation("masks twice for one step");
    changed_.notify_all();
  }

  bool poll(ion::StepResult& result, bool wait) override {
    std::unique_lock lock(mutex_);
    if (wait) changed_.wait(lock, [&] { return !done_.empty(); });
    if (done_.empty()) return false;
    // A result fails once: if it was delayed, the next poll gives it.
    const bool may_fail = done_.front().epoch > polled_epoch_;
    polled_epoch_ = done_.front().epoch;
    if (may_fail && chance(faults_.delay_result)) throw std::runtime_error("injected: poll failed");
    result = std::move(done_.front());
    done_.pop_front();
    --num_in_flight_;
    if (may_fail && chance(faults_.lose_result)) throw std::runtime_error("injected: poll failed");
    return true;
  }

  // A copy takes effect as late as possible: when it is found to be over.
  ion::Ticket copy_out(BlockId block, ion::HostBlock host) override {
    std::lock_guard lock(mutex_);
    ++num_copies_out_;
    return start_copy({false, block, host, cells(kv_, block), {}});
  }

  ion::Ticket copy_in(ion::HostBlock host, BlockId block) override {
    std::lock_guard lock(mutex_);
    ++num_copies_in_;
    if (block_epochs_[block] > polled_epoch_) violation("a block in flight is copied over");
    for (const auto& [ticket, other] : copies_) {
      if (other.block == block) violation("a block in another copy is copied over");
      if (!other.is_in && other.host == host) violation("a half copied block is copied back");
    }
    return start_copy({true, block, host, cells(host_, host), {}});
  }

  ion::CopyState done(ion::Ticket ticket, bool wait) override {
    std::lock_guard lock(mutex_);
    const auto it = copies_.find(ticket);
    if (it == copies_.end()) {
      violation("asked about a copy that is over");
      return ion::CopyState::kFailed;
    }
    if (!wait && it->second.num_asks_left-- > 0) return ion::CopyState::kPending;
    const Copy copy = it->second;
    copies_.erase(it);
    std::vector<uint64_t>&from = copy.is_in ? host_ : kv_, &to = copy.is_in ? kv_ : host_;
    if (cells(from, copy.is_in ? copy.host : copy.block) != copy.contents)
      violation("the source of a copy changed under it");
    const bool fails = chance(faults_.fail_copy);
    for (size_t i = 0; i < copy.contents.size(); ++i) {
      const auto block = static_cast<size_t>(copy.is_in ? copy.block : copy.host);
      to[block * copy.contents.size() + i] = fails ? random_() : copy.contents[i];
    }
    return fails ? ion::CopyState::kFailed : ion::CopyState::kDone;
  }

  int64_t num_copies_out() const {
    std::lock_guard lock(mutex_);
    return num_copies_out_;
  }
  int64_t num_copies_in() const {
    std::lock_guard lock(mutex_);
    return num_copies_in_;
  }

  // From now on steps take (or say so) what `duration` says, and are kept for `work`.
  void keep_time(Duration duration) {
    std::lock_guard lock(mutex_);
    duration_ = std::move(duration);
  }
  std::vector<std::pair<Work, double>> work_done() const {
    std::lock_guard lock(mutex_);
    return work_;
  }

  // A paused runner accepts steps and finishes none.
  void pause() { set_paused(true); }
  void resume() { set_paused(false); }
  std::vector<std::string> violations() const {
    std::lock_guard lock(mutex_);
    return violations_;
  }
  int max_in_flight() const {
    std::lock_guard lock(mutex_);
    return max_in_flight_;
  }
  int num_submitted() const {
    std::lock_guard lock(mutex_);
    return num_submitted_;
  }
  int max_step_tokens() const {
    std::lock_guard lock(mutex_);
    return max_step_tokens_;
  }

 private:
  struct Slot {
    bool is_joined = false;
    ion::SamplingParams sampling;
    std::vector<int32_t> ids;
    int32_t num_prompt = 0;
    int32_t num_computed = -1;  // -1: no row yet, the first says where it starts
    std::map<int32_t, BlockId> table;
  };

  struct Copy {
    bool is_in;
    BlockId block;
    ion::HostBlock host;
    std::vector<uint64_t> contents;  // of the source when it began
    int num_asks_left;
  };

  std::vector<uint64_t> cells(const std::vector<uint64_t>& all, int32_t block) const {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(block) * caps_.block_size;
    return {begin, begin + caps_.block_size};
  }

  ion::Ticket start_copy(Copy copy) {
    copy.num_asks_left = static_cast<int>(random_() % 4);
    // Until it is over, the target holds what nobody may use.
    const auto size = static_cast<size_t>(caps_.block_size);
    std::vector<uint64_t>& to = copy.is_in ? kv_ : host_;
    const auto block = static_cast<size_t>(copy.is_in ? copy.block : copy.host);
    for (size_t i = 0; i < size; ++i) to[block * size + i] = random_();
    copies_.emplace(++newest_ticket_, std::move(copy));
    return newest_ticket_;
  }

  static int num_tokens(const ion::Step& step) {
    int num = 0;
    for (const ion::Row& row : step.rows) num += row.count;
    return num;
  }

  void set_paused(bool is_paused) {
    {
      std::lock_guard lock(mutex_);
      is_paused_ = is_paused;
    }
    changed_.notify_all();
  }

  bool chance(double probability) {
    return probability > 0.0 && std::uniform_real_distribution<>(0, 1)(random_) < probability;
  }

  void violation(const std::string& what) { violations_.push_back(what); }

  // At the door: a slot joins, and a block that will be written changes hands, only when the newest step that
  // named it has been polled.
  void check_reuse(const ion::Step& step) {
    std::map<SeqSlot, int32_t> first_start;
    for (const ion::Row& row : step.rows) first_start.try_emplace(row.slot, row.start);
    std::set<SeqSlot> joined;
    for (const ion::Join& join : step.delta.joins) {
      joined.insert(join.slot);
      if (slot_epochs_[static_cast<size_t>(join.slot)] > polled_epoch_)
        violation("a slot was reused in flight");
      slot_blocks_[join.slot].clear();
    }
    for (const ion::AppendedBlock& appended : step.delta.blocks) {
      slot_blocks_[appended.slot].insert(appended.block);
      const bool is_hit =
          appended.index * caps_.block_size < first_start[appended.slot] && joined.count(appended.slot);
      if (!is_hit && block_epochs_[appended.block] > polled_epoch_) violation("a block was reused in flight");
    }
    for (const auto& [ticket, copy] : copies_) {
      for (const ion::Row& row : step.rows) {
        if (copy.is_in && slot_blocks_[row.slot].count(copy.block)) violation("a block was used half copied");
      }
    }
    for (const ion::Row& row : step.rows) {
      slot_epochs_[static_cast<size_t>(row.slot)] = step.epoch;
      for (BlockId block : slot_blocks_[row.slot]) block_epochs_[block] = step.epoch;
    }
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return is_stopping_ || (!todo_.empty() && !is_paused_); });
      if (is_stopping_) return;
      ion::Step step = std::move(todo_.front());
      todo_.pop_front();
      const int delay_us =
          max_delay_us_ > 0 ? static_cast<int>(random_() % static_cast<uint64_t>(max_delay_us_)) : 0;
      const bool fails = chance(faults_.fail_step);
      lock.unlock();
      if (delay_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
      lock.lock();
      changed_.wait(lock, [&] { return is_stopping_ || has_masks(step); });
      if (is_stopping_) return;
      // A failing step applies nothing, not even its delta: the worst a runner may do.
      ion::StepResult result = fails ? failed(step) : compute(step);
      done_.push_back(std::move(result));
      changed_.notify_all();
    }
  }

  bool has_masks(const ion::Step& step) const {
    for (const ion::Row& row : step.rows) {
      if (row.flags & ion::kRowGrammar) return masks_.count(step.epoch) > 0;
    }
    return true;
  }

  std::vector<uint32_t> mask_of(uint64_t epoch, const ion::Row& row) {
    if (!(row.flags & ion::kRowGrammar)) return {};
    for (const ion::Mask& mask : masks_[epoch]) {
      if (mask.slot == row.slot) return mask.words;
    }
    violation("no mask for a row that wants one");
    return {};
  }

  ion::StepResult failed(const ion::Step& step) {
    for (const ion::Row& row : step.rows) slots_[static_cast<size_t>(row.slot)].is_joined = false;
    ion::StepResult result;
    result.epoch = step.epoch;
    result.error = "injected: step failed";
    return result;
  }

  ion::StepResult compute(const ion::Step& step) {
    apply(step.delta);
    ion::StepResult result;
    result.epoch = step.epoch;
    const Work work = work_of(step);
    for (const ion::Row& row : step.rows) compute_row(row, result);
    masks_.erase(step.epoch);
    result.seconds = duration_ ? duration_(work) : 0.001 * num_tokens(step);
    if (duration_) work_.emplace_back(work, result.seconds);
    if (num_tokens(step) > caps_.max_tokens_per_step) violation("a step has too many tokens");
    return result;
  }

  Work work_of(const ion::Step& step) const {
    Work work;
    for (const ion::Row& row : step.rows) {
      const bool is_decode = row.start >= slots_[static_cast<size_t>(row.slot)].num_prompt;
      (is_decode ? work.decode_rows : work.prefill_tokens) += row.count;
      for (int32_t i = 1; i <= row.count; ++i)
        (is_decode ? work.decode_context : work.prefill_context) += row.start + i;
    }
    return work;
  }

  void apply(const ion::Delta& delta) {
    for (SeqSlot slot : delta.leaves) slots_[static_cast<size_t>(slot)] = Slot{};
    for (const ion::Join& join : delta.joins) {
      Slot& slot = slots_[static_cast<size_t>(join.slot)];
      // With injected failures a leave may have been lost with its step.
      if (slot.is_joined && !has_faults()) violation("a join into a slot that nobody left");
      slot = Slot{true, join.sampling, join.ids, join.num_prompt, -1, {}};
    }
    for (const ion::AppendedBlock& appended : delta.blocks) {
      slots_[static_cast<size_t>(appended.slot)].table[appended.index] = appended.block;
    }
  }

  bool has_faults() const { return faults_.any(); }

  void compute_row(const ion::Row& row, ion::StepResult& result) {
    Slot& slot = slots_[static_cast<size_t>(row.slot)];
    if (!slot.is_joined) {
      // Legal only after a failed step, whose sequences end; their rows in flight mean nothing.
      if (!has_faults()) violation("a row for a slot without a sequence");
      if (row.flags & ion::kRowSample) result.sampled.push_back({row.slot, 0, true, 0.0f, {}});
      if (row.flags & ion::kRowPromptLogprobs) result.prompt_logprobs.push_back({row.slot, false, {}});
      return;
    }
    if (slot.num_computed >= 0 && slot.num_computed != row.start)
      violation("a row does not start where the last ended");
    const int32_t end = row.start + row.count;
    if (end > static_cast<int32_t>(slot.ids.size())) violation("a row goes beyond the known ids");
    if (end > caps_.context_length) violation("a row goes beyond the context");
    const bool is_scored = row.flags & ion::kRowPromptLogprobs;
    if (is_scored && slot.sampling.num_prompt_logprobs < 0) violation("a report on a prompt, unasked");
    if (is_scored && ion::num_reported(row, slot.num_prompt) == 0) violation("a report on nothing");
    ion::PromptLogprobs scores{row.slot, true, {}};
    uint64_t before = 0, history = 0;
    for (int32_t position = 0; position < end; ++position) {
      uint64_t& cell = kv(slot, position);
      if (position >= row.start) {
        check_alone(row.slot, position);
        cell = position_digest(before, slot.ids[static_cast<size_t>(position)]);
      }
      before = cell;
      history += mix(cell + static_cast<uint64_t>(position));
      if (position < row.start || position + 1 >= slot.num_prompt) continue;
      scores.finite = scores.finite && !is_nan(model_, history);
      const int32_t id = slot.ids[static_cast<size_t>(position) + 1];
      scores.tokens.push_back(foreseen(model_, history, id, slot.sampling.num_prompt_logprobs));
    }
    slot.num_computed = end;
    if (is_scored) result.prompt_logprobs.push_back(std::move(scores));
    if (row.flags & ion::kRowSample) sample(row, slot, history, result);
  }

  void sample(const ion::Row& row, Slot& slot, uint64_t history, ion::StepResult& result) {
    if (row.start + row.count != static_cast<int32_t>(slot.ids.size()))
      violation("sampling before the last known id");
    const auto num_generated = static_cast<int32_t>(slot.ids.size()) - slot.num_prompt;
    const int32_t id = next_token(model_, history, slot.sampling, num_generated, mask_of(result.epoch, row));
    slot.ids.push_back(std::max(id, 0));
    ion::Sampled sampled{row.slot, id, !is_nan(model_, history), -0.5f, {}};
    for (int32_t i = 0; i < slot.sampling.num_logprobs; ++i)
      sampled.top.push_back({i, -1.0f - static_cast<float>(i)});
    result.sampled.push_back(std::move(sampled));
  }

  uint64_t& kv(Slot& slot, int32_t position) {
    const auto it = slot.table.find(position / caps_.block_size);
    if (it == slot.table.end()) {
      violation("a position without a block");
      static thread_local uint64_t scratch;
      return scratch = 0;
    }
    return kv_[static_cast<size_t>(it->second * caps_.block_size + position % caps_.block_size)];
  }

  // A block that is written belongs to one slot.
  void check_alone(SeqSlot writer, int32_t position) {
    if (has_faults()) return;  // leaves may have been lost
    const auto mine = slots_[static_cast<size_t>(writer)].table.find(position / caps_.block_size);
    if (mine == slots_[static_cast<size_t>(writer)].table.end()) return;
    for (SeqSlot other = 0; other < caps_.max_slots; ++other) {
      if (other == writer) continue;
      for (const auto& [index, block] : slots_[static_cast<size_t>(other)].table) {
        if (block == mine->second) violation("a shared block was written");
      }
    }
  }

  const ion::Caps caps_;
  const Model model_;
  const Faults faults_;
  const int max_delay_us_;

  mutable std::mutex mutex_;  // guards all that follows
  std::condition_variable changed_;
  std::mt19937_64 random_;
  std::vector<Slot> slots_;
  std::vector<uint64_t> slot_epochs_;  // newest step with a row for the slot
  std::map<SeqSlot, std::set<BlockId>> slot_blocks_;
  std::map<BlockId, uint64_t> block_epochs_;  // newest step with a row whose table holds the block
  std::vector<uint64_t> kv_, host_;
  std::map<ion::Ticket, Copy> copies_;
  ion::Ticket newest_ticket_ = 0;
  int64_t num_copies_out_ = 0, num_copies_in_ = 0;
  std::deque<ion::Step> todo_;
  std::map<uint64_t, std::vector<ion::Mask>> masks_;
  std::deque<ion::StepResult> done_;
  Duration duration_;
  std::vector<std::pair<Work, double>> work_;
  std::vector<std::string> violations_;
  uint64_t newest_epoch_ = 0, polled_epoch_ = 0;
  int num_in_flight_ = 0, max_in_flight_ = 0, num_submitted_ = 0, max_step_tokens_ = 0;
  bool is_stopping_ = false, is_paused_ = false;
  std::thread worker_;
};

}  // namespace fake
