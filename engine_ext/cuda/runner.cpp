// The host's side of a step: checked, flattened, queued; and what comes back. runner_launch.cpp has the
// device's.
#include "cuda/runner.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace ion::cuda {
namespace {

enum RowFlag : int32_t { kRowSample = 1, kRowPromptLogprobs = 2, kRowGrammar = 4 };  // core/runner.h

constexpr int64_t kAppendsPerRow = 2;  // room for new blocks in a graph's buffer

// Graphs are made for these numbers of rows.
int64_t bucket(int64_t rows) {
  if (rows <= 2) return rows;
  if (rows <= 4) return 4;
  return (rows + 7) / 8 * 8;
}

DecoderLimits limits_of(const IonCudaOptions& options) {
  DecoderLimits limits;
  const auto most_padded = static_cast<int32_t>(bucket(options.max_slots));
  limits.max_rows = std::max(options.max_tokens_per_step, most_padded);
  limits.max_slots = options.max_slots;
  limits.max_logit_rows = most_padded;
  limits.num_blocks = options.num_blocks;
  limits.context_length = options.context_length;
  if (limits.max_rows < 1 || limits.max_slots < 1 || limits.num_blocks < 1 || limits.context_length < 1 ||
      options.num_host_blocks < 0) {
    throw std::invalid_argument("CUDA: the runner's sizes must be positive");
  }
  limits.streams = options.use_streams != 0;
  limits.decode_warps = options.decode_warps;
  limits.is_deterministic = options.is_deterministic != 0;
  return limits;
}

bool has_penalties(const IonCudaSampling& sampling) {
  return sampling.repetition_penalty != 1.0f || sampling.presence_penalty != 0.0f ||
         sampling.frequency_penalty != 0.0f;
}

}  // namespace

int64_t Runner::num_bytes(const Model& model, const IonCudaOptions& options) {
  const int64_t slots = options.max_slots, vocab = model.config().vocab_size, samples = bucket(slots);
  const int64_t of_samples = samples * (8 * vocab + static_cast<int64_t>(sizeof(IonCudaSample)));
  const int64_t of_slots =
      slots * (2 * vocab + (vocab + 31) / 32 * 4 + static_cast<int64_t>(sizeof(SlotSampling)));
  int32_t num_sms = 0;
  check(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, model.device()), "device");
  constexpr int64_t kStepsAndGraphs = 256 << 20;  // the step's buffer, the library's own, graphs
  return Decoder::scratch_bytes(model.config(), limits_of(options), num_sms) + of_samples + of_slots +
         kStepsAndGraphs;
}

Runner::Runner(const Model& model, const IonCudaOptions& options)
    : model_(model),
      options_(options),
      decoder_(model, limits_of(options)),
      tier_(decoder_, options.num_host_blocks),
      slots_(options.max_slots),
      plan_sizes_(decoder_.plan_sizes()) {
  const int64_t slots = options.max_slots, vocab = model.config().vocab_size;
  const int64_t rows = std::max(options.max_tokens_per_step, options.max_slots);
  StepSizes most{rows,
                 slots,
                 slots,
                 decoder_.table_stride() * slots,
                 decoder_.max_decode_pieces(),
                 rows * plan_sizes_.packed_heads / plan_sizes_.prefill_rows + slots,
                 decoder_.max_decode_launches(),
                 slots};
  most.appends = std::max(most.appends, kAppendsPerRow * bucket(slots));
  most.rows = most.spans = std::max(most.rows, bucket(slots));
  most.samples = bucket(slots);
  step_ints_ = StepLayout(most).total;
  packed_ = PinnedMemory(kMaxInFlight * step_ints_ * 4, "steps");
  samples_ =
      PinnedMemory(kMaxInFlight * most.samples * static_cast<int64_t>(sizeof(IonCudaSample)), "samples");
  step_ = DeviceMemory(step_ints_ * 4, "a step");
  device_samples_ = DeviceMemory(most.samples * static_cast<int64_t>(sizeof(IonCudaSample)), "samples");
  slot_sampling_ = DeviceMemory(slots * static_cast<int64_t>(sizeof(SlotSampling)), "sampling parameters");
  logits_ = DeviceMemory(most.samples * vocab * 4, "logits");
  adjusted_ = DeviceMemory(most.samples * vocab * 4, "adjusted logits");
  generated_ = DeviceMemory(slots * vocab * 2, "counts of ids");
  prompt_seen_ = DeviceMemory(slots * ((vocab + 31) / 32) * 4, "ids of prompts");
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream of steps");
  for (cudaEvent_t& event : begun_) check(cudaEventCreate(&event), "event of a step");
  for (cudaEvent_t& event : ended_) {
    check(cudaEventCreateWithFlags(&event, cudaEventBlockingSync), "event of a step");
  }
}

Runner::~Runner() {
  cudaSetDevice(model_.device());
  cudaStreamSynchronize(stream_);
  for (auto& [key, graph] : graphs_) {
    if (graph.exec != nullptr) cudaGraphExecDestroy(graph.exec);
  }
  for (const cudaEvent_t event : begun_) cudaEventDestroy(event);
  for (const cudaEvent_t event : ended_) cudaEventDestroy(event);
  cudaStreamDestroy(stream_);
}

void Runner::submit(const IonCudaStep& step) {
  if (in_flight_.size() == kMaxInFlight)
    throw std::logic_error("a fifth step submitted before any was polled");
  check(cudaSetDevice(model_.device()), "device");
  InFlight& next = in_flight_.emplace_back();
  next.epoch = step.epoch;
  next.ring = static_cast<int>(num_submitted_++ % kMaxInFlight);
  try {
    collect(next, step);
  } catch (const std::exception& error) {
    next.error = error.what();
  }
  launch_ready();
}

void Runner::collect(InFlight& to, const IonCudaStep& step) {
  for (int32_t i = 0; i < step.num_leaves; ++i) taken(step.leaves[i]).is_taken = false;
  for (int32_t i = 0; i < step.num_joins; ++i) join(to, step.joins[i]);
  for (int32_t i = 0; i < step.num_blocks; ++i) {
    const IonCudaAppended& block = step.blocks[i];
    taken(block.slot);
    decoder_.block(block.block);
    if (block.index < 0 || block.index >= decoder_.table_stride()) {
      throw std::logic_error("a block behind the end of the context");
    }
    to.contents.appends.insert(to.contents.appends.end(), {block.slot, block.index, block.block});
  }
  for (int32_t i = 0; i < step.num_copies; ++i) {
    decoder_.block(step.copies[i].from);
    decoder_.block(step.copies[i].to);
    to.copies.push_back(step.copies[i]);
  }
  to.is_decode = step.num_rows > 0;
  for (int32_t i = 0; i < step.num_rows; ++i) gather_row(to, step.rows[i]);
  StepContents& contents = to.contents;
  contents.plan(plan_sizes_);
  if (static_cast<int64_t>(contents.ids.size()) > options_.max_tokens_per_step ||
      step.num_rows > options_.max_slots) {
    throw std::logic_error("a step with too many tokens or rows");
  }
  to.slots = contents.sample_slots;
  to.padded = contents.sizes();
  const int64_t rows = bucket(to.padded.rows);
  to.is_decode = to.is_decode && options_.use_graphs && to.padded.appends <= kAppendsPerRow * rows &&
                 to.padded.decode_launches == 1;
  if (to.is_decode) {
    to.padded.rows = to.padded.spans = to.padded.samples = rows;
    to.padded.appends = kAppendsPerRow * rows;
  }
  contents.write(packed_.as<int32_t>(to.ring * step_ints_ * 4), StepLayout(to.padded), to.padded);
}

void Runner::join(InFlight& to, const IonCudaJoin& from) {
  if (from.slot < 0 || from.slot >= options_.max_slots) throw std::logic_error("a slot outside the runner's");
  Slot& slot = slots_[from.slot];
  slot.is_taken = true;
  slot.ids.assign(from.ids, from.ids + from.num_ids);
  for (const int32_t id : slot.ids) {
    if (id < 0 || id >= model_.config().vocab_size) {
      throw std::logic_error("id " + std::to_string(id) + " is not in the vocabulary");
    }
  }
  Joining joining{};
  joining.slot = from.slot;
  joining.num_prompt = from.num_prompt;
  joining.sampling.params = from.sampling;
  joining.sampling.num_prompt = from.num_prompt;
  joining.sampling.num_stop_ids = from.num_stop_ids;
  joining.sampling.num_biases = from.num_biases;
  joining.sampling.has_counts = has_penalties(from.sampling);
  const auto add = [&](const void* values, int64_t count) {
    const auto* words = static_cast<const int32_t*>(values);
    joining.lists.insert(joining.lists.end(), words, words + count);
  };
  add(from.stop_ids, from.num_stop_ids);
  add(from.bias_ids, from.num_biases);
  add(from.biases, from.num_biases);
  if (joining.sampling.has_counts) {
    joining.num_ids = from.num_ids;
    add(from.ids, from.num_ids);
  }
  to.joins.push_back(std::move(joining));
}

void Runner::gather_row(InFlight& to, const IonCudaRow& row) {
  const Slot& slot = taken(row.slot);
  const int64_t end = int64_t{row.start} + row.count, known = static_cast<int64_t>(slot.ids.size());
  if (row.start < 0 || row.count < 1 || end > options_.context_length) {
    throw std::logic_error("a row outside the context");
  }
  if (row.count > 1 && end > known) throw std::logic_error("a row of several tokens that nobody knows");
  StepContents& contents = to.contents;
  const auto first = static_cast<int32_t>(contents.ids.size());
  for (int32_t position = row.start; position < end; ++position) {
    contents.ids.push_back(position < known ? slot.ids[position] : -1);
    contents.slots.push_back(row.slot);
    contents.positions.push_back(position);
  }
  contents.add_span({row.slot, first, row.start, row.count});
  if ((row.flags & kRowSample) != 0) {
    contents.logit_rows.push_back(first + row.count - 1);
    contents.sample_slots.push_back(row.slot);
    contents.sample_positions.push_back(static_cast<int32_t>(end));
  }
  to.is_decode = to.is_decode && row.count == 1 && row.flags == kRowSample;
  to.awaits_masks = to.awaits_masks || (row.flags & kRowGrammar) != 0;
}

Runner::Slot& Runner::taken(int32_t slot) {
  if (slot < 0 || slot >= options_.max_slots || !slots_[slot].is_taken) {
    throw std::logic_error("slot " + std::to_string(slot) + " holds no sequence");
  }
  return slots_[slot];
}

bool Runner::poll(IonCudaResult& out, bool wait) {
  if (in_flight_.empty()) return false;
  check(cudaSetDevice(model_.device()), "device");
  InFlight& oldest = in_flight_.front();
  if (oldest.error.empty()) {
    if (!oldest.is_sampled) return false;
    const cudaEvent_t ended = ended_[oldest.ring];
    const cudaError_t status = wait ? cudaEventSynchronize(ended) : cudaEventQuery(ended);
    if (status == cudaErrorNotReady) return false;
    if (status != cudaSuccess) {
      oldest.error = std::string("the device failed: ") + cudaGetErrorString(status);
    }
  }
  InFlight step = std::move(oldest);
  in_flight_.pop_front();
  launch_ready();
  if (!step.error.empty()) throw std::runtime_error(step.error);
  polled_slots_ = std::move(step.slots);
  float milliseconds = 0.0f;
  check(cudaEventElapsedTime(&milliseconds, begun_[step.ring], ended_[step.ring]), "time of a step");
  out.epoch = step.epoch;
  out.num_samples = static_cast<int32_t>(polled_slots_.size());
  out.slots = polled_slots_.data();
  out.samples = samples_.as<IonCudaSample>(step.ring * device_samples_.num_bytes());
  out.seconds = milliseconds * 1e-3;
  return true;
}

}  // namespace ion::cuda
