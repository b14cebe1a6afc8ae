// What streamed products read: weights copied into tiles, and activations as the copy engine sees them.
#include <stdexcept>

#include "box_view.h"
#include "check.h"
#include "stream_gemm.h"
#include "stream_ring.cuh"

namespace ion::cuda {
namespace {

// A thread moves sixteen bytes.
__global__ void tile_kernel(uint4* dst, const uint4* src, int64_t n, int64_t k, bool pairs) {
  const int64_t chunks = k / 8;  // of a row
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n * chunks;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const int64_t row = i / chunks, column = i % chunks, slice = row / 16, in_slice = row % 16;
    const int64_t from = !pairs         ? row
                         : in_slice < 8 ? slice * 8 + in_slice
                                        : n / 2 + slice * 8 + in_slice - 8;
    const int64_t piece = row / kStreamRows * (k / kStreamCols) + column / 8;
    dst[piece * (kPieceBytes / 16) + row % kStreamRows * 8 + ((column % 8) ^ (row & 7))] =
        src[from * chunks + column];
  }
}

}  // namespace

bool is_stream_shape(int64_t n, int64_t k) {
  int device = 0, major = 0;
  check(cudaGetDevice(&device), "device");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "device");
  return major == 9 && n % kStreamRows == 0 && k % kStreamCols == 0 && n > 0 && k > 0;
}

void tile_weights(__nv_bfloat16* dst, const __nv_bfloat16* src, int64_t n, int64_t k, bool pairs,
                  cudaStream_t stream) {
  tile_kernel<<<2048, 256, 0, stream>>>(reinterpret_cast<uint4*>(dst), reinterpret_cast<const uint4*>(src), n,
                                        k, pairs);
  check_launch("tiling of weights");
}

StreamInput stream_input(const __nv_bfloat16* x, int64_t rows, int64_t k) {
  StreamInput out;
  for (int i = 0; i < 5; ++i) out.maps[i] = box_view(x, rows, k, 8 << i);
  return out;
}

}  // namespace ion::cuda
