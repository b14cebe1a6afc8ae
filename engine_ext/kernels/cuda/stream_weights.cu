// What streamed products read: weights copied into tiles, and activations as the copy engine sees them.
#include <stdexcept>

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
  using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                              const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                              CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status{};
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &status),
        "tensor maps");
  if (found == nullptr) throw std::runtime_error("the driver has no tensor maps");
  StreamInput out;
  const cuuint64_t extents[2] = {static_cast<cuuint64_t>(k), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(k) * 2};
  const cuuint32_t steps[2] = {1, 1};
  for (int i = 0; i < 5; ++i) {
    const cuuint32_t box[2] = {kStreamCols, 8u << i};
    const CUresult made = reinterpret_cast<Encode>(found)(
        &out.maps[i], CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<__nv_bfloat16*>(x), extents, strides,
        box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (made != CUDA_SUCCESS) throw std::runtime_error("tensor map: error " + std::to_string(made));
  }
  return out;
}

}  // namespace ion::cuda
