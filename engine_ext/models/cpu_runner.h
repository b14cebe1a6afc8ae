// The CPU's Runner: a worker thread behind the asynchronous protocol of core/runner.h, with the state of
// every slot. Knows the decoder and the sampler; decides nothing about what runs when.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/runner.h"
#include "kernels/sampler.h"
#include "models/cpu_decoder.h"
#include "models/kv_store.h"
#include "models/model.h"
#include "models/runner_options.h"

namespace ion {

class CpuRunner final : public Runner {
 public:
  // Keeps the model alive. Throws WeightError for too little memory, std::invalid_argument for bad options.
  CpuRunner(std::shared_ptr<const Model> model, const RunnerOptions& options);
  ~CpuRunner() override;  // waits for the step that is being computed; the ones behind it are dropped

  const Caps& caps() const override { return caps_; }
  void submit(Step step) override;
  void upload_masks(uint64_t epoch, std::vector<Mask> masks) override;
  bool poll(StepResult& result, bool wait) override;
  Ticket copy_out(BlockId block, HostBlock host) override { return tier_->copy_out(block, host); }
  Ticket copy_in(HostBlock host, BlockId block) override { return tier_->copy_in(host, block); }
  CopyState done(Ticket ticket, bool wait) override { return tier_->done(ticket, wait); }

 private:
  static constexpr size_t kMaxInFlight = 4;

  struct Slot {
    bool is_taken = false;
    SamplingParams sampling;
    std::vector<int32_t> ids;  // prompt, generated and not yet read by a row: position i is ids[i]
    int32_t num_prompt = 0;
    std::vector<kernels::LogitBias> bias;
    kernels::TokenCounts counts;
    std::vector<int32_t> blocks;  // position p lives in blocks[p / block_size]
  };

  struct Scored {   // a position that tells of a prompt token
    size_t report;  // which of the step's PromptLogprobs
    SeqSlot slot;
    int32_t id;  // the token
  };

  void work();
  StepResult run(const Step& step);
  void apply(const Delta& delta);
  void join(const Join& join);
  void append_block(const AppendedBlock& appended);
  void check_block(BlockId block) const;
  void gather_rows(const Step& step, StepResult& result);
  void check_row(const Row& row);
  double await_masks(const Step& step);
  const Mask* mask_of(SeqSlot slot) const;
  void score_rows(StepResult& result);
  kernels::SampleResult score_row(size_t index, int64_t place);
  void sample_rows(StepResult& result);
  kernels::SampleResult sample_row(int64_t index);
  Sampled keep_sample(size_t index);
  std::vector<TokenLogprob> top_of(size_t place) const;
  Slot& taken(SeqSlot slot);

  std::shared_ptr<const Model> model_;
  Caps caps_;

  // The worker's own: touched by no other thread after the constructor.
  CpuDecoder decoder_;
  std::vector<Slot> slots_;
  std::vector<int32_t> ids_, positions_, logit_rows_;
  std::vector<kernels::AttentionSpan> spans_;
  std::vector<Scored> scored_;                  // of this step, in order
  std::vector<int32_t> scored_kept_;            // their places in logit_rows_
  std::vector<Row> sampled_rows_;               // of this step, in order
  std::vector<int32_t> sampled_kept_;           // their places in logit_rows_
  std::vector<kernels::SampleResult> samples_;  // of the rows whose logits are in logits_, as are tops_
  std::vector<std::vector<kernels::SampledLogprob>> tops_;
  std::vector<Mask> masks_;  // of this step
  Memory logits_;            // [max_slots, vocab]
  Memory sampler_scratch_;   // [max_slots] pieces of sampler_scratch_bytes
  int64_t sampler_stride_ = 0;

  std::mutex mutex_;  // guards all below
  std::condition_variable has_work_, has_result_, has_masks_;
  std::deque<Step> waiting_;
  std::map<uint64_t, std::vector<Mask>> uploaded_;  // by epoch
  std::deque<StepResult> finished_;
  size_t num_in_flight_ = 0;  // submitted and not polled
  bool is_stopping_ = false;
  std::thread thread_;
  std::unique_ptr<KvStore> tier_;  // null: caps_.num_host_blocks is 0, and nobody asks
};

}  // namespace ion
