// Programmatic dependent launch (CUDA Programming Guide, "Programmatic Dependent Launch and
// Synchronization"): a kernel of the chain is started while its predecessor still runs, does what depends on
// nothing, and waits.
//
// Every kernel of the chain lets its successor start at once and waits itself before it reads or writes
// anything that others touch. A kernel's end then implies its predecessor's, and so on down the chain. The
// first kernel of a step, which brings the block tables up to date, lets nobody start before its end: the
// step's plan, the tables and the cache of earlier steps may be read before waiting. Without the launch
// attribute both calls are nothing; below sm_90 they do not exist.
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "check.h"

namespace ion::cuda {

__device__ __forceinline__ void let_successor_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

__device__ __forceinline__ void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void join_chain() {
  let_successor_start();
  wait_for_predecessor();
}

// A launch that may begin while the one before it in the stream still runs. Works on every device: where
// there is no such launch it is a plain one.
template <typename... Params, typename... Args>
void launch_in_chain(const char* what, void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
                     cudaStream_t stream, Args&&... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...), what);
}

}  // namespace ion::cuda
