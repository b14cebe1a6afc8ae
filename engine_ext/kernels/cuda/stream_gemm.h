// y = x w^T for few rows of x, as fast as the weights can be read (sm_90a). docs/engine.md says what it
// reaches.
//
// Weights are tiled: pieces of 128 rows x 64 columns (16 KiB, 128-byte swizzle), the pieces of 128 rows one
// after the other, so that a row of tiles is one linear stream without tensor maps.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace ion::cuda {

constexpr int32_t kStreamRows = 128;  // weight rows of a tile
constexpr int32_t kStreamCols = 64;   // columns of a piece
constexpr int32_t kStreamMaxTokens = 128;

// What its output is.
enum class StreamOutput : uint8_t {
  bf16,      // y [m, n] bf16
  float32,   // y [m, n] float32
  silu_mul,  // y [m, n / 2] bf16 = silu(gate) * up; the weights were tiled as pairs
};

// Whether it can run here: sm_90 and whole tiles.
bool is_stream_shape(int64_t n, int64_t k);

// dst: the tiled copy of src [n, k] row-major. `pairs`: src is [gate; up], n / 2 rows each, and each sixteen
// rows of the copy are eight of gate and the same eight of up.
void tile_weights(__nv_bfloat16* dst, const __nv_bfloat16* src, int64_t n, int64_t k, bool pairs,
                  cudaStream_t stream);

// Views of activations [rows, k] as the copy engine reads them, one for each padded number of tokens.
struct StreamInput {
  CUtensorMap maps[5];  // 8, 16, 32, 64, 128 tokens
};
StreamInput stream_input(const __nv_bfloat16* x, int64_t rows, int64_t k);

// Scratch of all calls on one stream. `counts` must be zero before the first call and are zero after each;
// `arrivals` must be zero before each call that uses them, and each call of a step has its own part.
struct StreamScratch {
  float4* partial;     // stream_partial_bytes
  uint32_t* counts;    // [2 * tiles of the largest n]
  uint32_t* arrivals;  // [stream_arrivals of each call]
};
int64_t stream_partial_bytes(int32_t num_sms);
int64_t stream_arrivals(int32_t num_sms);

// m <= 128 tokens. Weight pieces start to arrive before the predecessor has ended; see pdl.cuh. Partial sums
// are added in a fixed order, cuts do not depend on m. All its blocks must be resident at once: nothing that
// holds multiprocessors without bound may run beside it.
void stream_gemm(void* y, StreamOutput output, const StreamInput& x, const __nv_bfloat16* tiled, int64_t m,
                 int64_t n, int64_t k, const StreamScratch& scratch, int32_t num_sms, cudaStream_t stream);

}  // namespace ion::cuda
