#include "cuda/algorithm_trial.h"

#include <algorithm>
#include <utility>

namespace ion::cuda {

AlgorithmTrial::AlgorithmTrial(std::vector<cublasLtMatmulAlgo_t> candidates)
    : candidates_(std::move(candidates)) {}

AlgorithmTrial::~AlgorithmTrial() {
  for (const cudaEvent_t event : events_) cudaEventDestroy(event);
}

bool AlgorithmTrial::is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status), "capture");
  return status != cudaStreamCaptureStatusNone;
}

void AlgorithmTrial::record(cudaStream_t stream) {
  cudaEvent_t event = nullptr;
  check(cudaEventCreate(&event), "event of a product");
  events_.push_back(event);
  check(cudaEventRecord(event, stream), "event of a product");
}

void AlgorithmTrial::settle() {
  if (candidates_.size() == 1 || events_.size() < num_wanted()) return;
  const cudaError_t status = cudaEventQuery(events_.back());
  if (status == cudaErrorNotReady) return;
  check(status, "event of a product");
  size_t fastest = 0;
  float least = 0.0f;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    std::vector<float> times(kRounds);
    for (size_t round = 0; round < kRounds; ++round) {
      const size_t at = 2 * (round * candidates_.size() + i);
      check(cudaEventElapsedTime(&times[round], events_[at], events_[at + 1]), "event of a product");
    }
    std::sort(times.begin(), times.end());
    const float median = (times[(kRounds - 1) / 2] + times[kRounds / 2]) / 2;
    if (i == 0 || median < least) fastest = i, least = median;
  }
  candidates_ = {candidates_[fastest]};
  for (const cudaEvent_t event : events_) cudaEventDestroy(event);
  events_.clear();
}

}  // namespace ion::cuda
