// A step as cuda/ion_cuda.h takes it. The arrays live as long as the object and the step it was made from.
#pragma once

#include <vector>

#include "core/runner.h"
#include "cuda/ion_cuda.h"

namespace ion {

class CudaStep {
 public:
  explicit CudaStep(const Step& step);
  CudaStep(const CudaStep&) = delete;
  CudaStep& operator=(const CudaStep&) = delete;

  const IonCudaStep& values() const { return values_; }

 private:
  void add_join(const Join& join);

  std::vector<IonCudaRow> rows_;
  std::vector<IonCudaJoin> joins_;
  std::vector<IonCudaAppended> blocks_;
  std::vector<IonCudaCopy> copies_;
  std::vector<int32_t> bias_ids_;  // of all joins, one after the other
  std::vector<float> biases_;
  IonCudaStep values_{};
};

}  // namespace ion
