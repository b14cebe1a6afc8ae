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

// A launch that may begin while the one before it in the stream still runs, of clusters of so many blocks.
// Works on every device: where there is no such launch it is a plain one, and where there are no clusters
// nobody asks for them.
struct ChainLaunch {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attributes[2] = {};

  ChainLaunch(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream, int32_t cluster = 1) {
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = static_cast<unsigned>(cluster);
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    config.attrs = attributes;
    config.numAttrs = cluster > 1 ? 2 : 1;
  }
  ChainLaunch(const ChainLaunch&) = delete;  // config points into it
  ChainLaunch& operator=(const ChainLaunch&) = delete;
};

template <typename... Params, typename... Args>
void launch_in_chain(const char* what, void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
                     cudaStream_t stream, Args&&... args) {
  const ChainLaunch launch(grid, block, shared_bytes, stream);
  check(cudaLaunchKernelEx(&launch.config, kernel, std::forward<Args>(args)...), what);
}

}  // namespace ion::cuda
