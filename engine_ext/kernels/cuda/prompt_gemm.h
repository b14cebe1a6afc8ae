// y = x w^T for many rows of x, bounded by the tensor cores (sm_90a).
//
// bf16 values, float32 sums. Weights are the tiled copy that the streamed products read (stream_gemm.h). An
// output depends on its own row of x alone, bit for bit, whatever the pass: its products are added in the
// order of the columns.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace ion::cuda {

constexpr int32_t kPromptTileRows = 64;  // rows are computed in so many at a time

// What its output is.
enum class PromptOutput : uint8_t {
  bf16,      // y [m, n]
  silu_mul,  // y [m, n / 2] = silu(gate) * up; the weights were tiled as pairs
};

// Activations [rows, k] as the copy engine reads them; rows behind a pass's own may be anything.
CUtensorMap prompt_input(const __nv_bfloat16* x, int64_t rows, int64_t k);

// Clusters of the product that can be resident on the current device.
int32_t prompt_clusters();

// The first m rows of x; w: the tiles of [n, k], is_stream_shape. Nothing behind row m of y is written.
// Weights start to arrive before the predecessor has ended; see pdl.cuh. clusters: prompt_clusters.
void prompt_gemm(__nv_bfloat16* y, PromptOutput output, const CUtensorMap& x, const void* w, int64_t m,
                 int64_t n, int64_t k, int32_t clusters, cudaStream_t stream);

}  // namespace ion::cuda
