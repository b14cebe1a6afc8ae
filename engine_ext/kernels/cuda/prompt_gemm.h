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

#include "kernels.h"

namespace ion::cuda {

constexpr int32_t kPromptTileRows = 64;      // rows are computed in so many at a time
constexpr int32_t kPromptTileWeights = 256;  // and so many of their outputs

// Activations [rows, k] as the copy engine reads them; rows behind a pass's own may be anything.
CUtensorMap prompt_input(const __nv_bfloat16* x, int64_t rows, int64_t k);

// Clusters of the product that can be resident on the current device.
int32_t prompt_clusters();

// The first m rows of x with the tiles w of [n, k], is_stream_shape. Nothing behind row m of an output is
// written. Weights start to arrive before the predecessor has ended; see pdl.cuh. clusters: prompt_clusters.
//
// y [m, n / 2] = silu(gate) * up; the weights were tiled as pairs.
void prompt_gated(__nv_bfloat16* y, const CUtensorMap& x, const void* w, int64_t m, int64_t n, int64_t k,
                  int32_t clusters, cudaStream_t stream);

// Of a pass the rows [first_row, end_row) and of q, k and v, in this order, the heads [first_head, end_head);
// the first one begins a tile of weights.
struct QkvPart {
  int64_t first_row, end_row;
  int32_t first_head, end_head;
};

// A part of rope.qkv [rows, heads][head_dim] = q, k and v, and of rows [first, first + count) what rope_kv
// makes of them: q is rotated, k and v are in the cache alone, of bf16; head_dim 64 or 128. w: of all heads.
void prompt_qkv(const RopeKvArgs& rope, const KvCache& cache, int64_t first, int64_t count,
                const CUtensorMap& x, const void* w, const QkvPart& part, int64_t k, int32_t clusters,
                cudaStream_t stream);

}  // namespace ion::cuda
