// Errors of CUDA calls as exceptions.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

namespace ion::cuda {

// Throws std::runtime_error "what: CUDA's name and text" for anything but success.
inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorName(status) + ": " +
                           cudaGetErrorString(status));
}

// Lets the kernel have so much dynamic shared memory on the current device. Cheap enough to come before every
// launch: no flag that would have to know which devices were set up.
template <typename... Params>
void allow_shared(void (*kernel)(Params...), size_t num_bytes) {
  check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(num_bytes)),
      "shared memory of a kernel");
}

// After a launch: whether it was accepted. What the kernel does wrong shows at the next synchronisation.
inline void check_launch(const char* what) {
  check(cudaGetLastError(), what);
}

}  // namespace ion::cuda
