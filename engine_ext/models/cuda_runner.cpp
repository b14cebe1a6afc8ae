// Checks, flattening, and the books of what is in flight.
#include "models/cuda_runner.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "models/cuda_step.h"
#include "models/weight_error.h"

namespace ion {
namespace {

IonCudaOptions given_options(const Caps& caps, const RunnerOptions& asked) {
  return {caps.max_slots,
          caps.max_tokens_per_step,
          caps.num_blocks,
          caps.context_length,
          caps.num_host_blocks,
          asked.use_graphs ? 1 : 0,
          1,
          0,
          asked.is_deterministic ? 1 : 0};
}

// Without a wish: nine tenths of what is free, but not more than every slot at full length fills.
int64_t unasked_blocks(const CudaModel& model, const Caps& caps, const RunnerOptions& asked) {
  const IonCudaDevice device = cuda_device(model.library());
  Caps least = caps;
  least.num_blocks = 1;
  const IonCudaOptions options = given_options(least, asked);
  const int64_t needed = model.library().runner_bytes(model.handle(), &options);
  if (needed < 0) throw std::invalid_argument("CUDA refuses the runner's sizes: " + model.library().why());
  const int64_t blocks = (device.free_bytes - needed) / 10 * 9 / caps.block_bytes;
  if (blocks < 1) {
    throw MemoryShort("the KV cache on " + std::string(device.name) + ": " +
                      std::to_string(needed + caps.block_bytes) + " bytes needed for one block and a step, " +
                      std::to_string(device.free_bytes) + " available");
  }
  return std::min(blocks, blocks_for(caps.context_length) * caps.max_slots);
}

Caps caps_of(const CudaModel& model, const RunnerOptions& options) {
  if (options.tier_bytes > 0 && !options.tier_folder.empty()) {
    throw std::invalid_argument("kv_tier: on CUDA the second tier is memory; a file (path) is the CPU's");
  }
  Caps caps = base_caps(model.config(), options);
  caps.block_bytes = model.kv_block_bytes();
  caps.max_logprobs = ION_CUDA_MAX_LOGPROBS;
  caps.scores_prompts = false;
  set_num_blocks(caps, options, [&] { return unasked_blocks(model, caps, options); });
  return caps;
}

}  // namespace

CudaRunner::CudaRunner(std::shared_ptr<const CudaModel> model, const RunnerOptions& options)
    : model_(std::move(model)), library_(model_->library()), caps_(caps_of(*model_, options)) {
  const int64_t wanted = caps_.num_blocks * caps_.block_bytes;
  const IonCudaDevice device = cuda_device(library_);
  if (wanted > device.free_bytes) {
    throw MemoryShort("the KV cache on " + std::string(device.name) + ": " + std::to_string(wanted) +
                      " bytes needed, " + std::to_string(device.free_bytes) + " available");
  }
  const IonCudaOptions given = given_options(caps_, options);
  handle_ = library_.runner_create(model_->handle(), &given);
  if (handle_ == nullptr) throw std::runtime_error("CUDA: the runner does not start: " + library_.why());
}

CudaRunner::~CudaRunner() {
  library_.runner_destroy(handle_);
}

void CudaRunner::submit(Step step) {
  if (in_flight_.size() == kMaxInFlight) {
    throw std::logic_error("a fifth step submitted before any was polled");
  }
  check(step);
  const CudaStep flat(step);
  if (library_.submit(handle_, &flat.values()) != 0) throw std::runtime_error("CUDA: " + library_.why());
  InFlight added{step.epoch, {}};
  for (const Row& row : step.rows) {
    if ((row.flags & kRowSample) != 0) added.sampled.push_back(row.slot);
  }
  in_flight_.push_back(std::move(added));
}

// On the device a wrong index is not an error but somebody else's memory.
void CudaRunner::check(const Step& step) const {
  for (const SeqSlot slot : step.delta.leaves) check_slot(slot);
  for (const Join& join : step.delta.joins) {
    check_slot(join.slot);
    for (const int32_t id : join.ids) {
      if (id < 0 || id >= caps_.vocab_size) {
        throw std::logic_error("id " + std::to_string(id) + " is not in the vocabulary");
      }
    }
  }
  for (const AppendedBlock& appended : step.delta.blocks) {
    check_slot(appended.slot);
    check_block(appended.block);
    if (appended.index < 0 || appended.index >= blocks_for(caps_.context_length)) {
      throw std::logic_error("a block table beyond the context");
    }
  }
  for (const BlockCopy& copy : step.delta.copies) check_block(copy.from), check_block(copy.to);
  int64_t num_tokens = 0;
  for (const Row& row : step.rows) {
    check_slot(row.slot);
    num_tokens += row.count;
    if (row.start < 0 || row.count < 1 || int64_t{row.start} + row.count > caps_.context_length) {
      throw std::logic_error("row of slot " + std::to_string(row.slot) + ": positions beyond the context");
    }
    if ((row.flags & ~(kRowSample | kRowGrammar)) != 0) {
      throw std::logic_error("row of slot " + std::to_string(row.slot) + ": flags that CUDA does not know");
    }
  }
  if (num_tokens > caps_.max_tokens_per_step) throw std::logic_error("a step with too many tokens");
  if (static_cast<int64_t>(step.rows.size()) > caps_.max_slots) {
    throw std::logic_error("a step with too many rows");
  }
}

void CudaRunner::check_slot(SeqSlot slot) const {
  if (slot < 0 || slot >= caps_.max_slots) {
    throw std::logic_error("there is no slot " + std::to_string(slot));
  }
}

void CudaRunner::check_block(BlockId block) const {
  if (block < 0 || block >= caps_.num_blocks) {
    throw std::logic_error("block " + std::to_string(block) + " is outside the pool");
  }
}

void CudaRunner::upload_masks(uint64_t epoch, std::vector<Mask> masks) {
  const auto num_words = static_cast<size_t>(caps_.vocab_size + 31) / 32;
  std::vector<IonCudaMask> flat;
  for (const Mask& mask : masks) {
    check_slot(mask.slot);
    if (!mask.words.empty() && mask.words.size() != num_words) {
      throw std::logic_error("a mask of another vocabulary");
    }
    flat.push_back({mask.slot, static_cast<int32_t>(mask.words.size()), mask.words.data()});
  }
  if (library_.upload_masks(handle_, epoch, flat.data(), static_cast<int32_t>(flat.size())) != 0) {
    throw std::runtime_error("CUDA: " + library_.why());
  }
}

bool CudaRunner::poll(StepResult& result, bool wait) {
  if (in_flight_.empty()) return false;
  IonCudaResult from{};
  const int state = library_.poll(handle_, &from, wait ? 1 : 0);
  if (state == 0) return false;
  const InFlight step = std::move(in_flight_.front());
  in_flight_.pop_front();
  result = StepResult{};
  result.epoch = step.epoch;
  if (state < 0) {
    result.error = "CUDA: " + library_.why();
  } else {
    take_samples(result, from, step);
  }
  return true;
}

void CudaRunner::take_samples(StepResult& result, const IonCudaResult& from, const InFlight& step) const {
  const auto num_samples = static_cast<int32_t>(step.sampled.size());
  if (from.epoch != step.epoch || from.num_samples != num_samples ||
      !std::equal(step.sampled.begin(), step.sampled.end(), from.slots)) {
    result.error = "CUDA: the samples are not those of the step's rows";
    return;
  }
  result.seconds = from.seconds;
  for (int32_t i = 0; i < num_samples; ++i) {
    const IonCudaSample& sample = from.samples[i];
    Sampled out;
    out.slot = from.slots[i];
    out.id = sample.id;
    out.finite = sample.is_finite != 0;
    out.logprob = sample.logprob;
    const int32_t num_top = std::clamp(sample.num_top, 0, ION_CUDA_MAX_LOGPROBS);
    for (int32_t j = 0; j < num_top; ++j) out.top.push_back({sample.top_ids[j], sample.top_logprobs[j]});
    result.sampled.push_back(std::move(out));
  }
}

Ticket CudaRunner::copy_out(BlockId block, HostBlock host) {
  const Ticket ticket = library_.copy_out(handle_, block, host);
  if (ticket == 0) throw std::runtime_error("CUDA: " + library_.why());
  return ticket;
}

Ticket CudaRunner::copy_in(HostBlock host, BlockId block) {
  const Ticket ticket = library_.copy_in(handle_, host, block);
  if (ticket == 0) throw std::runtime_error("CUDA: " + library_.why());
  return ticket;
}

CopyState CudaRunner::done(Ticket ticket, bool wait) {
  const int state = library_.copy_state(handle_, ticket, wait ? 1 : 0);
  return state == 0 ? CopyState::kPending : state > 0 ? CopyState::kDone : CopyState::kFailed;
}

}  // namespace ion
