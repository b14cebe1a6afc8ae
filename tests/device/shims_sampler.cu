// The sampler behind extern "C", for check_sampler.py: pointers are of device memory. 0: launched, -1: not.
#include <cstdint>
#include <cstdio>
#include <exception>

#include "kernels/cuda/sampler.h"

namespace {

template <typename Call>
int32_t attempt(Call call) {
  try {
    call();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return -1;
  }
}

}  // namespace

extern "C" {

int32_t check_slot_bytes() {
  return sizeof(ion::cuda::SlotSampling);
}

int32_t check_sample_bytes() {
  return sizeof(IonCudaSample);
}

int32_t check_sample(const ion::cuda::SampleArgs* args, int32_t num_rows, void* stream) {
  return attempt([=] { ion::cuda::sample(*args, num_rows, static_cast<cudaStream_t>(stream)); });
}

int32_t check_reset_counts(const ion::cuda::SampleArgs* args, int32_t slot, const int32_t* ids,
                           int32_t num_ids, int32_t num_prompt, void* stream) {
  return attempt([=] {
    ion::cuda::reset_counts(*args, slot, ids, num_ids, num_prompt, static_cast<cudaStream_t>(stream));
  });
}

}  // extern "C"
