// Which of a library's algorithms for a product is the fastest here: found out on the products that are to be
// computed anyway, as layer follows layer, by events around them. Nothing is computed twice.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <vector>

#include "kernels/cuda/check.h"

namespace ion::cuda {

class AlgorithmTrial {
 public:
  // In the library's order. One: nothing to find out.
  explicit AlgorithmTrial(std::vector<cublasLtMatmulAlgo_t> candidates);
  ~AlgorithmTrial();
  AlgorithmTrial(const AlgorithmTrial&) = delete;
  AlgorithmTrial& operator=(const AlgorithmTrial&) = delete;

  // Calls enqueue(algorithm) for the next product on the stream. While it captures nothing is found out.
  template <typename F>
  void run(cudaStream_t stream, F enqueue) {
    if (candidates_.size() == 1 || is_capturing(stream)) return enqueue(candidates_.front());
    settle();
    if (candidates_.size() == 1 || events_.size() == num_wanted()) return enqueue(candidates_.front());
    const size_t index = events_.size() / 2 % candidates_.size();
    record(stream);
    enqueue(candidates_[index]);
    record(stream);
  }

 private:
  static constexpr size_t kRounds = 4;  // the first may load code

  size_t num_wanted() const { return 2 * kRounds * candidates_.size(); }
  static bool is_capturing(cudaStream_t stream);
  void record(cudaStream_t stream);
  // Once all events have been, the fastest by its median is all that is left.
  void settle();

  std::vector<cublasLtMatmulAlgo_t> candidates_;
  std::vector<cudaEvent_t> events_;  // begin and end of each product, candidates in turn
};

}  // namespace ion::cuda
