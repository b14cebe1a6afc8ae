// What streamed products read: weights copied into tiles, and activations as the copy engine sees them.
#include <stdexcept>

#include "box_view.h"
#include "check.h"
#include "stream_gemm.h"
#include "stream_ring.cuh"

namespace ion::cuda {
namespace {

// Where row `row` of the copy comes from.
__device__ __forceinline__ int64_t source_row(int64_t row, int64_t n, bool pairs) {
  if (!pairs) return row;
  const int64_t slice = row / 16, in_slice = row % 16;
  return in_slice < 8 ? slice * 8 + in_slice : n / 2 + slice * 8 + in_slice - 8;
}

// A thread moves sixteen bytes.
__global__ void tile_kernel(uint4* dst, const uint4* src, int64_t n, int64_t chunks, bool pairs) {
  constexpr int64_t kChunks = kStreamBytes / 16;  // of a piece's row
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n * chunks;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const int64_t row = i / chunks, column = i % chunks;
    const int64_t piece = row / kStreamRows * (chunks / kChunks) + column / kChunks;
    dst[piece * (kPieceBytes / 16) + row % kStreamRows * kChunks + ((column % kChunks) ^ (row & 7))] =
        src[source_row(row, n, pairs) * chunks + column];
  }
}

__global__ void tile_scales_kernel(float* dst, const float* src, int64_t n, bool pairs) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row < n) dst[row] = src[source_row(row, n, pairs)];
}

void make_maps(StreamInput& to, const void* x, int64_t rows, int64_t k, int value_bytes) {
  for (int i = 0; i < kNumStreamSizes; ++i) {
    to.maps[i] = box_view(x, rows, k, kStreamSizes[i], value_bytes);
  }
}

}  // namespace

bool is_stream_shape(int64_t n, int64_t row_bytes) {
  int device = 0, major = 0;
  check(cudaGetDevice(&device), "device");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "device");
  return major == 9 && n % kStreamRows == 0 && row_bytes % kStreamBytes == 0 && n > 0 && row_bytes > 0;
}

void tile_weights(void* dst, const void* src, int64_t n, int64_t row_bytes, bool pairs, cudaStream_t stream) {
  tile_kernel<<<2048, 256, 0, stream>>>(static_cast<uint4*>(dst), static_cast<const uint4*>(src), n,
                                        row_bytes / 16, pairs);
  check_launch("tiling of weights");
}

void tile_scales(float* dst, const float* src, int64_t n, bool pairs, cudaStream_t stream) {
  tile_scales_kernel<<<static_cast<unsigned>((n + 255) / 256), 256, 0, stream>>>(dst, src, n, pairs);
  check_launch("tiling of scales");
}

StreamInput stream_input(const __nv_bfloat16* x, int64_t rows, int64_t k) {
  StreamInput out;
  make_maps(out, x, rows, k, 2);
  return out;
}

StreamInput stream_input(const uint8_t* codes, const float* scales, int64_t rows, int64_t k) {
  StreamInput out;
  make_maps(out, codes, rows, k, 1);
  out.scales = scales;
  return out;
}

}  // namespace ion::cuda
