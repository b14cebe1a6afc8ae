// The GPU's Runner: steps of core/runner.h as the flat arrays of cuda/ion_cuda.h, and results back. Knows no
// CUDA beyond that interface, and decides nothing about what runs when.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "core/runner.h"
#include "models/cuda_model.h"
#include "models/runner_options.h"

namespace ion {

class CudaRunner final : public Runner {
 public:
  // Keeps the model alive. Throws std::invalid_argument for bad options, MemoryShort where the GPU has too
  // little memory, std::runtime_error where the library fails.
  CudaRunner(std::shared_ptr<const CudaModel> model, const RunnerOptions& options);
  ~CudaRunner() override;
  CudaRunner(const CudaRunner&) = delete;
  CudaRunner& operator=(const CudaRunner&) = delete;

  const Caps& caps() const override { return caps_; }
  // Throws std::runtime_error where the library refuses the step: nothing of it is computed.
  void submit(Step step) override;
  void upload_masks(uint64_t epoch, std::vector<Mask> masks) override;
  bool poll(StepResult& result, bool wait) override;
  Ticket copy_out(BlockId block, HostBlock host) override;
  Ticket copy_in(HostBlock host, BlockId block) override;
  CopyState done(Ticket ticket, bool wait) override;

 private:
  static constexpr size_t kMaxInFlight = 4;

  struct InFlight {
    uint64_t epoch;
    std::vector<SeqSlot> sampled;  // slots of the rows with kRowSample, in row order
  };

  void check(const Step& step) const;
  void check_slot(SeqSlot slot) const;
  void check_block(BlockId block) const;
  void take_samples(StepResult& result, const IonCudaResult& from, const InFlight& step) const;

  std::shared_ptr<const CudaModel> model_;
  const CudaLibrary& library_;
  Caps caps_;
  IonCudaRunner* handle_ = nullptr;
  std::deque<InFlight> in_flight_;  // oldest first
};

}  // namespace ion
