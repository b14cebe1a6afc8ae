// Steps on the device: what core/runner.h asks of a runner, over one stream. Holds the slots' state and up to
// four steps in flight; decides nothing about what runs when.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/decoder.h"
#include "cuda/device_memory.h"
#include "cuda/host_tier.h"
#include "cuda/ion_cuda.h"
#include "cuda/model.h"
#include "cuda/step_buffer.h"
#include "kernels/cuda/sampler.h"

namespace ion::cuda {

class Runner {
 public:
  Runner(const Model& model, const IonCudaOptions& options);
  static int64_t num_bytes(const Model& model, const IonCudaOptions& options);  // on the device, but for KV
  ~Runner();                                                                    // waits for the device
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  // A step that cannot be run (a row without a slot, a block outside the pool) is in flight too: its poll
  // throws.
  void submit(const IonCudaStep& step);
  void upload_masks(uint64_t epoch, const IonCudaMask* masks, int32_t num_masks);
  // Whether `out` is the oldest step's result. Throws what that step failed with; it is over then.
  bool poll(IonCudaResult& out, bool wait);
  HostTier& tier() { return tier_; }

 private:
  static constexpr int kMaxInFlight = 4;

  struct Slot {
    bool is_taken = false;
    std::vector<int32_t> ids;  // of its join: what comes after is on the device alone
    DeviceMemory lists;        // stop ids, biases, ids to count
  };

  // A join's way to the device.
  struct Joining {
    int32_t slot, num_ids, num_prompt;
    SlotSampling sampling;
    std::vector<int32_t> lists;  // stop ids, bias ids, biases' bits, ids to count
  };

  struct InFlight {
    uint64_t epoch = 0;
    int ring = 0;
    StepContents contents;
    StepSizes padded;  // what the buffer is laid out for
    std::vector<Joining> joins;
    std::vector<IonCudaCopy> copies;
    std::vector<int32_t> slots;  // of the samples
    bool is_decode = false;      // may come from a graph
    bool awaits_masks = false;
    bool is_launched = false;  // forward
    bool is_sampled = false;
    std::string error;
  };

  struct Graph {
    cudaGraphExec_t exec = nullptr;
    bool was_run = false;  // once without a graph: libraries load their code then
  };

  void collect(InFlight& to, const IonCudaStep& step);
  void join(InFlight& to, const IonCudaJoin& join);
  void gather_row(InFlight& to, const IonCudaRow& row);
  void launch_ready();
  void launch(InFlight& step);
  void upload_join(const Joining& joining);
  void run_eager(const InFlight& step);
  void run_graph(const InFlight& step);
  void forward(const StepSizes& sizes, int64_t decode_pieces, const StepContents& contents);
  void sample_rows(const StepSizes& sizes, bool is_masked);
  void finish(InFlight& step);
  SampleArgs sample_args(const StepLayout& layout) const;
  Slot& taken(int32_t slot);

  const Model& model_;
  IonCudaOptions options_;
  Decoder decoder_;
  HostTier tier_;
  std::vector<Slot> slots_;
  std::deque<InFlight> in_flight_;
  uint64_t num_submitted_ = 0;

  cudaStream_t stream_ = nullptr;
  std::array<cudaEvent_t, kMaxInFlight> begun_{}, ended_{};
  int64_t step_ints_ = 0;  // room of one step
  PinnedMemory packed_;    // [kMaxInFlight] steps
  PinnedMemory samples_;   // [kMaxInFlight, max_slots]
  PinnedMemory masks_;     // [max_slots] rows of words, then has_mask; made when first needed
  DeviceMemory step_;      // the step being run
  DeviceMemory device_samples_, slot_sampling_, logits_, adjusted_, generated_, prompt_seen_;
  DeviceMemory device_masks_;
  std::map<std::pair<int64_t, DecodeWidth>, Graph> graphs_;  // by rows, and what attends to them
  std::vector<int32_t> polled_slots_;
  PlanSizes plan_sizes_;
};

}  // namespace ion::cuda
