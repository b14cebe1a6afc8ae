// A test double of libion_cuda: takes what the engine hands over, keeps it for questions, and answers steps
// by a rule. Computes nothing.
//
// Of the environment, when called: CUDA_DOUBLE_NO_GPU makes ion_cuda_device fail, CUDA_DOUBLE_FREE_BYTES is
// what the device has free, CUDA_DOUBLE_ABI another version of the interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cuda/ion_cuda.h"

namespace cuda_double {

struct Weight {
  int64_t num_rows = 0, row_bytes = 0;
  std::vector<std::byte> bytes;
  std::vector<int32_t> num_writes;  // of each row
};

struct Join {
  int32_t slot, num_prompt;
  std::vector<int32_t> ids, stop_ids, bias_ids;
  std::vector<float> biases;
  IonCudaSampling sampling;
};

struct Step {
  uint64_t epoch;
  std::vector<IonCudaRow> rows;
  std::vector<int32_t> leaves;
  std::vector<Join> joins;
  std::vector<IonCudaAppended> blocks;
  std::vector<IonCudaCopy> copies;
};

struct Mask {
  uint64_t epoch;
  int32_t slot;
  std::vector<uint32_t> words;
};

struct Copy {
  bool is_in;
  int32_t block, host_block;
};

// Of the newest model and the newest runner.
struct Log {
  IonCudaConfig config{};
  std::vector<double> frequencies;
  std::vector<int32_t> windows;
  std::string blaslt;
  std::map<std::pair<int32_t, int32_t>, Weight> weights;  // by weight and layer
  int64_t largest_write = 0;                              // bytes
  IonCudaOptions options{};
  std::vector<Step> steps;
  std::vector<Mask> masks;
  std::vector<Copy> copies;                 // ticket t is copies[t - 1]
  int32_t num_models = 0, num_runners = 0;  // alive
};

// What a row of `slot` samples whose next token stands at `position`.
inline int32_t sampled_id(int32_t slot, int32_t position, int32_t vocab_size) {
  return (slot * 7 + position * 13 + 5) % vocab_size;
}

}  // namespace cuda_double

extern "C" {
ION_CUDA_API void* cuda_double_log(void);  // cuda_double::Log
// The next call of ion_cuda_NAME fails; "finite": the next sample is not finite; "samples": the next result
// lacks one.
ION_CUDA_API void cuda_double_fail(const char* name);
// Bytes of a weight of the newest model, null if it has none; is_whole: each row was written exactly once.
ION_CUDA_API const void* cuda_double_weight(int32_t weight, int32_t layer, int64_t* num_rows,
                                            int64_t* row_bytes, int32_t* is_whole);
ION_CUDA_API const IonCudaConfig* cuda_double_config(void);
ION_CUDA_API int64_t cuda_double_largest_write(void);  // bytes
// Of the newest runner.
ION_CUDA_API int32_t cuda_double_is_deterministic(void);
}
