#include "box_view.h"

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "check.h"

namespace ion::cuda {
namespace {

constexpr int32_t kBoxBytes = 128;  // of a row

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode find_encode() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status{};
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &status),
        "tensor maps");
  if (found == nullptr) throw std::runtime_error("the driver has no tensor maps");
  return reinterpret_cast<Encode>(found);
}

}  // namespace

CUtensorMap box_view(const void* x, int64_t rows, int64_t columns, int32_t box_rows, int32_t value_bytes) {
  const cuuint64_t extents[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(columns * value_bytes)};
  const cuuint32_t steps[2] = {1, 1}, box[2] = {static_cast<cuuint32_t>(kBoxBytes / value_bytes),
                                                static_cast<cuuint32_t>(box_rows)};
  const auto type = value_bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8;
  CUtensorMap view;
  const CUresult made = find_encode()(&view, type, 2, const_cast<void*>(x), extents, strides, box, steps,
                                      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (made != CUDA_SUCCESS) throw std::runtime_error("tensor map: error " + std::to_string(made));
  return view;
}

}  // namespace ion::cuda
