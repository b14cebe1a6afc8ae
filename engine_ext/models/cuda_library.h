// libion_cuda: found, opened and checked when first asked for. Knows the functions of cuda/ion_cuda.h and
// nothing of what they compute.
#pragma once

#include <string>

#include "cuda/ion_cuda.h"

namespace ion {

// The functions, by their names without "ion_cuda_".
struct CudaLibrary {
  std::string path;
  decltype(&ion_cuda_abi) abi;
  decltype(&ion_cuda_error) error;
  decltype(&ion_cuda_device) device;
  decltype(&ion_cuda_read_bandwidth) read_bandwidth;
  decltype(&ion_cuda_model_create) model_create;
  decltype(&ion_cuda_model_destroy) model_destroy;
  decltype(&ion_cuda_model_bytes) model_bytes;
  decltype(&ion_cuda_block_bytes) block_bytes;
  decltype(&ion_cuda_model_write) model_write;
  decltype(&ion_cuda_model_fill) model_fill;
  decltype(&ion_cuda_model_pointer) model_pointer;
  decltype(&ion_cuda_model_tile) model_tile;
  decltype(&ion_cuda_runner_bytes) runner_bytes;
  decltype(&ion_cuda_runner_create) runner_create;
  decltype(&ion_cuda_runner_destroy) runner_destroy;
  decltype(&ion_cuda_submit) submit;
  decltype(&ion_cuda_upload_masks) upload_masks;
  decltype(&ion_cuda_poll) poll;
  decltype(&ion_cuda_copy_out) copy_out;
  decltype(&ion_cuda_copy_in) copy_in;
  decltype(&ion_cuda_copy_state) copy_state;
  decltype(&ion_cuda_logits) logits;

  // What this thread's last failed call says; never empty.
  std::string why() const;
};

// The one that IONROUTER_CUDA_LIBRARY names, else libion_cuda.so beside the module that this code is linked
// into. Opened once and never closed. Throws std::runtime_error saying what is missing.
const CudaLibrary& cuda_library();

// The library's description of a GPU. Throws std::runtime_error where there is none, or no driver.
IonCudaDevice cuda_device(const CudaLibrary& library, int32_t index = 0);

}  // namespace ion
