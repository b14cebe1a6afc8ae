// The device's side of a step: what is enqueued, in which order, from a graph or not.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "cuda/runner.h"

namespace ion::cuda {

// Everything that need not wait for masks, oldest first: a step behind one that waits needs its ids.
void Runner::launch_ready() {
  for (InFlight& step : in_flight_) {
    if (!step.error.empty() || step.is_sampled) continue;
    try {
      if (!step.is_launched) launch(step);
    } catch (const std::exception& error) {
      step.error = error.what();
      continue;
    }
    if (!step.is_sampled) return;
  }
}

void Runner::launch(InFlight& step) {
  check(cudaEventRecord(begun_[step.ring], stream_), "event of a step");
  for (const IonCudaCopy& copy : step.copies) decoder_.copy_block(copy.from, copy.to, stream_);
  for (const Joining& joining : step.joins) upload_join(joining);
  const StepLayout layout(step.padded);
  // Not by a copy engine, where it would queue behind blocks on their way between the tiers. Decode pieces
  // lie at the end of a decode step: what is not used is not copied.
  copy_words(step_.as<int32_t>(), packed_.on_device<int32_t>(step.ring * step_ints_ * 4), layout.total,
             stream_);
  if (step.is_decode) {
    run_graph(step);
    step.is_launched = true;
    finish(step);
    return;
  }
  run_eager(step);
  step.is_launched = true;
  if (step.awaits_masks) return;
  sample_rows(step.padded, false);
  finish(step);
}

void Runner::finish(InFlight& step) {
  const int64_t used = static_cast<int64_t>(step.slots.size()) * static_cast<int64_t>(sizeof(IonCudaSample));
  copy_words(samples_.on_device<int32_t>(step.ring * device_samples_.num_bytes()),
             device_samples_.as<int32_t>(), used / 4, stream_);
  check(cudaEventRecord(ended_[step.ring], stream_), "event of a step");
  step.is_sampled = true;
}

void Runner::upload_join(const Joining& joining) {
  Slot& slot = slots_[joining.slot];
  SlotSampling sampling = joining.sampling;
  const auto num_bytes = static_cast<int64_t>(joining.lists.size() * sizeof(int32_t));
  // Nothing in flight names the slot any more: its old lists may go.
  if (num_bytes > slot.lists.num_bytes()) slot.lists = DeviceMemory(2 * num_bytes, "a sequence's lists");
  if (num_bytes > 0) {
    check(cudaMemcpyAsync(slot.lists.as<void>(), joining.lists.data(), num_bytes, cudaMemcpyHostToDevice,
                          stream_),
          "a sequence's lists");
  }
  const auto* lists = slot.lists.as<int32_t>();
  sampling.stop_ids = lists;
  sampling.bias_ids = lists + sampling.num_stop_ids;
  sampling.biases = reinterpret_cast<const float*>(sampling.bias_ids + sampling.num_biases);
  const int64_t at = joining.slot * static_cast<int64_t>(sizeof(SlotSampling));
  check(cudaMemcpyAsync(slot_sampling_.as<void>(at), &sampling, sizeof sampling, cudaMemcpyHostToDevice,
                        stream_),
        "sampling parameters");
  if (!sampling.has_counts) return;
  const int32_t* ids = lists + sampling.num_stop_ids + 2 * sampling.num_biases;
  reset_counts(sample_args(StepLayout(StepSizes{})), joining.slot, ids, joining.num_ids, joining.num_prompt,
               stream_);
}

void Runner::forward(const StepSizes& sizes, int64_t decode_pieces, const StepContents& contents) {
  const StepLayout at(sizes);
  const auto* step = step_.as<int32_t>();
  append_blocks(decoder_.block_tables(), decoder_.table_stride(), step + at.appends, step + at.counts + 2,
                static_cast<int32_t>(sizes.appends), stream_);
  if (sizes.rows == 0) return;
  DecoderBatch batch = batch_of(step, sizes, contents);
  batch.num_decode_pieces = decode_pieces;
  decoder_.forward(batch, logits_.as<float>(), stream_);
}

void Runner::run_eager(const InFlight& step) {
  forward(step.padded, step.padded.decode_pieces, step.contents);
}

// Captured when a number of rows, with a width, comes for the second time.
void Runner::run_graph(const InFlight& step) {
  StepSizes sizes = step.padded;
  sizes.decode_pieces = 0;  // their number is the buffer's to say, and they are its last part
  Graph& graph = graphs_[{sizes.rows, step.contents.width}];
  if (!graph.was_run) {
    graph.was_run = true;
    forward(sizes, step.padded.decode_pieces, step.contents);
    sample_rows(sizes, false);
    return;
  }
  if (graph.exec == nullptr) {
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture");
    cudaGraph_t captured = nullptr;
    try {
      forward(sizes, decoder_.pieces_a_launch(), step.contents);
      sample_rows(sizes, false);
    } catch (...) {
      cudaStreamEndCapture(stream_, &captured);
      if (captured != nullptr) cudaGraphDestroy(captured);
      throw;
    }
    check(cudaStreamEndCapture(stream_, &captured), "capture");
    const cudaError_t made = cudaGraphInstantiate(&graph.exec, captured, 0);
    cudaGraphDestroy(captured);
    check(made, "graph");
  }
  check(cudaGraphLaunch(graph.exec, stream_), "graph");
}

SampleArgs Runner::sample_args(const StepLayout& at) const {
  const auto* step = step_.as<int32_t>();
  SampleArgs args{};
  args.logits = logits_.as<float>();
  args.adjusted = adjusted_.as<float>();
  args.vocab = model_.config().vocab_size;
  args.row_slots = step + at.sample_slots;
  args.row_positions = step + at.sample_positions;
  args.slots = slot_sampling_.as<SlotSampling>();
  args.generated = generated_.as<uint16_t>();
  args.prompt_seen = prompt_seen_.as<uint32_t>();
  args.last_ids = decoder_.last_ids();
  args.samples = device_samples_.as<IonCudaSample>();
  return args;
}

void Runner::sample_rows(const StepSizes& sizes, bool is_masked) {
  if (sizes.samples == 0) return;
  SampleArgs args = sample_args(StepLayout(sizes));
  if (is_masked) {
    const int64_t words = (args.vocab + 31) / 32;
    args.masks = device_masks_.as<uint32_t>();
    args.has_mask = device_masks_.as<int32_t>(options_.max_slots * words * 4);
  }
  sample(args, static_cast<int32_t>(sizes.samples), stream_);
}

void Runner::upload_masks(uint64_t epoch, const IonCudaMask* masks, int32_t num_masks) {
  check(cudaSetDevice(model_.device()), "device");
  const auto found = std::find_if(in_flight_.begin(), in_flight_.end(),
                                  [&](const InFlight& step) { return step.epoch == epoch; });
  if (found == in_flight_.end() || !found->awaits_masks || found->is_sampled) {
    throw std::logic_error("masks for a step that waits for none");
  }
  InFlight& step = *found;
  if (!step.error.empty()) return;
  const int64_t words = (model_.config().vocab_size + 31) / 32, slots = options_.max_slots;
  if (masks_.num_bytes() == 0) {
    masks_ = PinnedMemory(slots * (words + 1) * 4, "masks");
    device_masks_ = DeviceMemory(masks_.num_bytes(), "masks");
  }
  auto* rows = masks_.as<uint32_t>();
  auto* has_mask = masks_.as<int32_t>(slots * words * 4);
  std::fill(has_mask, has_mask + slots, 0);
  for (int32_t i = 0; i < num_masks; ++i) {
    const auto at = std::find(step.slots.begin(), step.slots.end(), masks[i].slot);
    if (at == step.slots.end() || masks[i].num_words == 0) continue;  // no words: any id
    const int64_t row = at - step.slots.begin();
    const int64_t given = std::min<int64_t>(masks[i].num_words, words);
    std::memcpy(rows + row * words, masks[i].words, given * 4);
    std::fill(rows + row * words + given, rows + (row + 1) * words, 0u);
    has_mask[row] = 1;
  }
  try {
    // The last upload was read before its step ended, and this one waited for that: one buffer is enough.
    check(cudaMemcpyAsync(device_masks_.as<void>(), masks_.as<void>(), masks_.num_bytes(),
                          cudaMemcpyHostToDevice, stream_),
          "copy of masks");
    sample_rows(step.padded, true);
    finish(step);
  } catch (const std::exception& error) {
    step.error = error.what();
  }
  launch_ready();
}

}  // namespace ion::cuda
