// One step: apply the delta, gather rows of all sequences, one forward pass, report on prompt tokens, sample
// the rows that ask for it.
#include "models/cpu_runner.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

#include "models/weight_error.h"

namespace ion {
namespace {

// Without a wish: every slot can hold a full context, but not more than a quarter of what memory is left, and
// never less than one context (the allocation says so if even that is too much).
Caps caps_of(const Model& model, const RunnerOptions& options) {
  Caps caps = base_caps(model.config(), options);
  caps.block_bytes = CpuDecoder::kv_block_bytes(model.weights());
  const int64_t one = blocks_for(caps.context_length);
  const auto unasked = [&] {
    return std::clamp(available_memory_bytes() / 4 / caps.block_bytes, one, one * options.max_slots);
  };
  set_num_blocks(caps, options, unasked);
  return caps;
}

kernels::SamplerParams sampler_params(const SamplingParams& from, bool is_stop_masked) {
  kernels::SamplerParams to;
  to.temperature = from.temperature;
  to.top_k = from.top_k;
  to.top_p = from.top_p;
  to.min_p = from.min_p;
  to.top_a = from.top_a;
  to.repetition_penalty = from.repetition_penalty;
  to.presence_penalty = from.presence_penalty;
  to.frequency_penalty = from.frequency_penalty;
  to.seed = from.seed;
  to.num_logprobs = from.num_logprobs;
  if (is_stop_masked) to.masked_ids = from.stop_ids;
  return to;
}

}  // namespace

CpuRunner::CpuRunner(std::shared_ptr<const Model> model, const RunnerOptions& options)
    : model_(std::move(model)),
      caps_(caps_of(*model_, options)),
      decoder_(model_->weights(), model_->pool(),
               {caps_.max_tokens_per_step, caps_.max_slots, caps_.num_blocks}),
      slots_(caps_.max_slots),
      logits_(int64_t{caps_.max_slots} * caps_.vocab_size * static_cast<int64_t>(sizeof(float)), "logits"),
      sampler_stride_((kernels::sampler_scratch_bytes(caps_.vocab_size) + 63) / 64 * 64) {
  sampler_scratch_ = Memory(sampler_stride_ * caps_.max_slots, "the sampler");
  if (caps_.num_host_blocks > 0) {
    const auto read = [this](BlockId block, std::byte* bytes) { decoder_.read_block(block, bytes); };
    const auto write = [this](BlockId block, const std::byte* bytes) { decoder_.write_block(block, bytes); };
    const KvStoreOptions store{caps_.num_host_blocks, caps_.block_bytes, options.tier_folder};
    tier_ = std::make_unique<KvStore>(store, KvBlocks{read, write});
  }
  thread_ = std::thread([this] { work(); });
}

CpuRunner::~CpuRunner() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  has_work_.notify_one();
  has_masks_.notify_one();
  thread_.join();
}

void CpuRunner::submit(Step step) {
  {
    const std::lock_guard lock(mutex_);
    if (num_in_flight_ == kMaxInFlight)
      throw std::logic_error("a fifth step submitted before any was polled");
    ++num_in_flight_;
    waiting_.push_back(std::move(step));
  }
  has_work_.notify_one();
}

void CpuRunner::upload_masks(uint64_t epoch, std::vector<Mask> masks) {
  {
    const std::lock_guard lock(mutex_);
    if (!uploaded_.emplace(epoch, std::move(masks)).second)
      throw std::logic_error("a second upload of masks for one step");
  }
  has_masks_.notify_one();
}

bool CpuRunner::poll(StepResult& result, bool wait) {
  std::unique_lock lock(mutex_);
  if (wait && num_in_flight_ > 0) has_result_.wait(lock, [this] { return !finished_.empty(); });
  if (finished_.empty()) return false;
  result = std::move(finished_.front());
  finished_.pop_front();
  --num_in_flight_;
  return true;
}

void CpuRunner::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    has_work_.wait(lock, [this] { return is_stopping_ || !waiting_.empty(); });
    if (is_stopping_) return;
    const Step step = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    StepResult result = run(step);
    lock.lock();
    finished_.push_back(std::move(result));
    has_result_.notify_one();
  }
}

StepResult CpuRunner::run(const Step& step) {
  const auto begin = std::chrono::steady_clock::now();
  StepResult result;
  result.epoch = step.epoch;
  double waited_s = 0.0;
  try {
    apply(step.delta);
    gather_rows(step, result);
    if (!ids_.empty()) {
      const auto turn = model_->pool().take_turn();
      decoder_.forward({ids_, positions_, spans_, logit_rows_});
      score_rows(result);
      decoder_.head(sampled_kept_, reinterpret_cast<float*>(logits_.data()));
    }
    waited_s = await_masks(step);
    sample_rows(result);
  } catch (const std::exception& error) {
    result.error = error.what();
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() - waited_s;
  return result;
}

// Returns the seconds spent waiting: they are not compute time.
double CpuRunner::await_masks(const Step& step) {
  masks_.clear();
  const auto is_masked = [](const Row& row) { return (row.flags & kRowGrammar) != 0; };
  if (std::none_of(step.rows.begin(), step.rows.end(), is_masked)) return 0.0;
  const auto begin = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  has_masks_.wait(lock, [&] { return is_stopping_ || uploaded_.count(step.epoch) > 0; });
  if (is_stopping_) throw std::runtime_error("the runner is stopping");
  masks_ = std::move(uploaded_.extract(step.epoch).mapped());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

const Mask* CpuRunner::mask_of(SeqSlot slot) const {
  const auto found =
      std::find_if(masks_.begin(), masks_.end(), [&](const Mask& m) { return m.slot == slot; });
  return found == masks_.end() ? nullptr : &*found;
}

void CpuRunner::apply(const Delta& delta) {
  for (SeqSlot slot : delta.leaves) taken(slot) = Slot{};
  for (const Join& joining : delta.joins) join(joining);
  for (const AppendedBlock& appended : delta.blocks) append_block(appended);
  for (const BlockCopy& copy : delta.copies) {
    check_block(copy.from);
    check_block(copy.to);
    decoder_.copy_block(copy.from, copy.to);
  }
}

void CpuRunner::check_block(BlockId block) const {
  if (block < 0 || block >= caps_.num_blocks) {
    throw std::logic_error("block " + std::to_string(block) + " is outside the pool");
  }
}

void CpuRunner::join(const Join& join) {
  Slot& slot = slots_.at(join.slot);
  if (slot.is_taken) throw std::logic_error("slot " + std::to_string(join.slot) + " is joined twice");
  for (const int32_t id : join.ids) {
    if (id < 0 || id >= caps_.vocab_size) {
      throw std::logic_error("id " + std::to_string(id) + " is not in the vocabulary");
    }
  }
  slot.is_taken = true;
  slot.sampling = join.sampling;
  for (const LogitBias& entry : join.sampling.logit_bias) slot.bias.push_back({entry.id, entry.bias});
  slot.ids = join.ids;
  slot.num_prompt = join.num_prompt;
  for (size_t i = 0; i < join.ids.size(); ++i) {
    const bool is_prompt = i < static_cast<size_t>(join.num_prompt);
    is_prompt ? slot.counts.add_prompt(join.ids[i]) : slot.counts.add_generated(join.ids[i]);
  }
}

void CpuRunner::append_block(const AppendedBlock& appended) {
  Slot& slot = taken(appended.slot);
  check_block(appended.block);
  const auto index = static_cast<size_t>(appended.index);
  if (appended.index < 0 || index > slot.blocks.size()) throw std::logic_error("a block table with a gap");
  if (index == slot.blocks.size()) slot.blocks.push_back(appended.block);
  slot.blocks[index] = appended.block;
}

CpuRunner::Slot& CpuRunner::taken(SeqSlot slot) {
  Slot& found = slots_.at(slot);
  if (!found.is_taken) throw std::logic_error("slot " + std::to_string(slot) + " is empty");
  return found;
}

void CpuRunner::check_row(const Row& row) {
  const Slot& slot = taken(row.slot);
  const std::string what = "row of slot " + std::to_string(row.slot) + ": ";
  if (row.count < 1 || row.start < 0 || static_cast<size_t>(row.start) + row.count > slot.ids.size()) {
    throw std::logic_error(what + "positions that have no ids");
  }
  if (blocks_for(row.start + row.count) > static_cast<int64_t>(slot.blocks.size())) {
    throw std::logic_error(what + "positions that have no block");
  }
  if ((row.flags & kRowSample) != 0 && static_cast<size_t>(row.start) + row.count != slot.ids.size()) {
    throw std::logic_error(what + "samples before its last id");
  }
  if ((row.flags & ~(kRowSample | kRowPromptLogprobs | kRowGrammar)) != 0)
    throw std::logic_error(what + "flags that the CPU runner does not know");
}

void CpuRunner::gather_rows(const Step& step, StepResult& result) {
  ids_.clear(), positions_.clear(), logit_rows_.clear(), spans_.clear();
  sampled_rows_.clear(), sampled_kept_.clear();
  scored_.clear(), scored_kept_.clear();
  for (const Row& row : step.rows) {
    check_row(row);
    const Slot& slot = slots_[row.slot];
    spans_.push_back({slot.blocks.data(), static_cast<int32_t>(ids_.size()), row.start, row.count});
    for (int32_t i = row.start; i < row.start + row.count; ++i) {
      ids_.push_back(slot.ids[i]);
      positions_.push_back(i);
    }
    if ((row.flags & kRowPromptLogprobs) != 0) {
      const int32_t first = static_cast<int32_t>(ids_.size()) - row.count;
      for (int32_t i = 0; i < num_reported(row, slot.num_prompt); ++i) {
        scored_.push_back({result.prompt_logprobs.size(), row.slot, slot.ids[row.start + i + 1]});
        scored_kept_.push_back(static_cast<int32_t>(logit_rows_.size()));
        logit_rows_.push_back(first + i);
      }
      result.prompt_logprobs.push_back({row.slot, true, {}});
    }
    if ((row.flags & kRowSample) != 0) {
      sampled_kept_.push_back(static_cast<int32_t>(logit_rows_.size()));
      logit_rows_.push_back(static_cast<int32_t>(ids_.size()) - 1);
      sampled_rows_.push_back(row);
    }
  }
  if (static_cast<int64_t>(ids_.size()) > caps_.max_tokens_per_step)
    throw std::logic_error("a step with too many tokens");
  if (static_cast<int64_t>(sampled_rows_.size()) > caps_.max_slots)
    throw std::logic_error("a step with too many rows");
}

// A prompt may have as many rows as a step has tokens, and a row of logits is long: they pass through
// logits_ a piece at a time. The caller holds the turn.
void CpuRunner::score_rows(StepResult& result) {
  const size_t most = static_cast<size_t>(caps_.max_slots);
  for (size_t first = 0; first < scored_.size(); first += most) {
    const size_t count = std::min(most, scored_.size() - first);
    decoder_.head(std::span(scored_kept_).subspan(first, count), reinterpret_cast<float*>(logits_.data()));
    samples_.resize(count);
    tops_.resize(count);
    model_->pool().parallel_for(static_cast<int64_t>(count), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) samples_[i] = score_row(first + i, i);
    });
    for (size_t i = 0; i < count; ++i) {
      PromptLogprobs& report = result.prompt_logprobs[scored_[first + i].report];
      report.finite = report.finite && samples_[i].finite;
      report.tokens.push_back({samples_[i].id, samples_[i].logprob, samples_[i].rank, top_of(i)});
    }
  }
}

// `place`: of its logits in logits_.
kernels::SampleResult CpuRunner::score_row(size_t index, int64_t place) {
  const Scored& scored = scored_[index];
  tops_[place].resize(std::clamp(slots_[scored.slot].sampling.num_prompt_logprobs, 0, caps_.vocab_size));
  const float* logits = reinterpret_cast<const float*>(logits_.data()) + place * caps_.vocab_size;
  return kernels::logprobs(logits, caps_.vocab_size, scored.id, tops_[place],
                           sampler_scratch_.data() + place * sampler_stride_);
}

std::vector<TokenLogprob> CpuRunner::top_of(size_t place) const {
  std::vector<TokenLogprob> out;
  for (int32_t i = 0; i < samples_[place].num_top; ++i) {
    out.push_back({tops_[place][i].id, tops_[place][i].logprob});
  }
  return out;
}

// Rows are sampled in parallel; then, in row order, the ids become part of their sequences.
void CpuRunner::sample_rows(StepResult& result) {
  const size_t num_rows = sampled_rows_.size();
  samples_.resize(num_rows);
  tops_.resize(num_rows);
  for (size_t i = 0; i < num_rows; ++i) {
    const int32_t wanted = slots_[sampled_rows_[i].slot].sampling.num_logprobs;
    tops_[i].resize(std::clamp(wanted, 0, caps_.vocab_size));
  }
  {
    const auto turn = model_->pool().take_turn();
    model_->pool().parallel_for(static_cast<int64_t>(num_rows), [this](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) samples_[i] = sample_row(i);
    });
  }
  for (size_t i = 0; i < num_rows; ++i) result.sampled.push_back(keep_sample(i));
}

kernels::SampleResult CpuRunner::sample_row(int64_t index) {
  const Row& row = sampled_rows_[index];
  const Slot& slot = slots_[row.slot];
  const int32_t position = row.start + row.count;  // of the token being drawn
  const bool is_stop_masked = position - slot.num_prompt < slot.sampling.min_tokens;
  const float* logits = reinterpret_cast<const float*>(logits_.data()) + index * caps_.vocab_size;
  kernels::SamplerParams params = sampler_params(slot.sampling, is_stop_masked);
  params.bias = slot.bias;
  if ((row.flags & kRowGrammar) != 0) {
    const Mask* mask = mask_of(row.slot);
    if (mask == nullptr) throw std::logic_error("no mask for the row of slot " + std::to_string(row.slot));
    params.allowed_mask = mask->words;
  }
  return kernels::sample(logits, caps_.vocab_size, params, slot.counts.entries(), position, tops_[index],
                         sampler_scratch_.data() + index * sampler_stride_);
}

Sampled CpuRunner::keep_sample(size_t index) {
  const kernels::SampleResult& from = samples_[index];
  Sampled out;
  out.slot = sampled_rows_[index].slot;
  out.finite = from.finite;
  out.id = from.id;
  out.logprob = from.logprob;
  out.top = top_of(index);
  // A row without a usable id may already have a successor in flight: that one computes with id 0, and its
  // result is dropped.
  const int32_t next = std::max(out.id, 0);
  slots_[out.slot].ids.push_back(next);
  slots_[out.slot].counts.add_generated(next);
  return out;
}

}  // namespace ion
