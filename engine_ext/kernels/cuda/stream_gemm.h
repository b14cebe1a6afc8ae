// y = x w^T for few rows of x, as fast as the weights can be read (sm_90a). docs/engine.md says what it
// reaches.
//
// Values are bf16, or e4m3 with a float scale for each row of w and of x: y = (codes of x) (codes of w)^T,
// times both rows' scales. Weights are tiled: pieces of 128 rows x 128 bytes (16 KiB, 128-byte swizzle), the
// pieces of 128 rows one after the other, so that a row of tiles is one linear stream without tensor maps.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <iterator>

namespace ion::cuda {

constexpr int32_t kStreamRows = 128;       // weight rows of a tile
constexpr int32_t kStreamBytes = 128;      // of a row in a piece
constexpr int32_t kStreamMaxTokens = 256;  // of a pass over the weights

// What its output is.
enum class StreamOutput : uint8_t {
  bf16,      // y [m, n] bf16
  float32,   // y [m, n] float32
  silu_mul,  // y [m, n / 2] bf16 = silu(gate) * up; the weights were tiled as pairs
};

// Whether it can run here: sm_90 and whole tiles; a row of w has row_bytes.
bool is_stream_shape(int64_t n, int64_t row_bytes);

// dst: the tiled copy of src [n] rows. `pairs`: src is [gate; up], n / 2 rows each, and each sixteen rows of
// the copy are eight of gate and the same eight of up.
void tile_weights(void* dst, const void* src, int64_t n, int64_t row_bytes, bool pairs, cudaStream_t stream);

// dst [n]: the rows' scales in the order of the tiled rows.
void tile_scales(float* dst, const float* src, int64_t n, bool pairs, cudaStream_t stream);

struct StreamWeights {
  const void* tiles;
  const float* scales = nullptr;  // [n], tiled; null: bf16
};

constexpr int32_t kStreamSizes[] = {8, 16, 32, 64, 96, 128, 192, 256};  // padded numbers of tokens
constexpr int32_t kNumStreamSizes = std::size(kStreamSizes);

// Views of activations [rows, k] as the copy engine reads them, one for each padded number of tokens.
struct StreamInput {
  CUtensorMap maps[kNumStreamSizes];
  const float* scales = nullptr;  // [rows]; null: bf16
};
StreamInput stream_input(const __nv_bfloat16* x, int64_t rows, int64_t k);
StreamInput stream_input(const uint8_t* codes, const float* scales, int64_t rows, int64_t k);

// The weights [n, k] of a product further down the chain, of the same type: while memory would be idle, their
// beginning is pulled into L2. null: nothing.
struct StreamNext {
  const void* tiles = nullptr;
  int64_t n = 0, k = 0;
};

constexpr int32_t kStreamMostSplits = 8;  // blocks of a tile: as many as every device puts into a cluster

// The current device: what a matrix is shared out over.
struct StreamDevice {
  int32_t num_sms = 0;
  int32_t clusters[kStreamMostSplits + 1] = {};  // clusters of so many blocks that can be resident
};
StreamDevice stream_device();

// Scratch of all calls on one stream. `counts` must be zero before the first call and are zero after each.
struct StreamScratch {
  float4* partial;   // stream_partial_bytes
  uint32_t* counts;  // [2 * tiles of the largest n]
};
int64_t stream_partial_bytes(int32_t num_sms);

// m tokens, x and w of one type; above kStreamMaxTokens the weights are read once for each so many. Weight
// pieces start to arrive before the predecessor has ended; see pdl.cuh. Partial sums are added in a fixed
// order, cuts do not depend on m. All its blocks must be resident
// at once: nothing that holds multiprocessors without bound may run beside it.
void stream_gemm(void* y, StreamOutput output, const StreamInput& x, const StreamWeights& w, int64_t m,
                 int64_t n, int64_t k, const StreamScratch& scratch, const StreamDevice& device,
                 cudaStream_t stream, const StreamNext& next = {});

}  // namespace ion::cuda
