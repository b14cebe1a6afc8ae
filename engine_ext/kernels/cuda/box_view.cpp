#include "box_view.h"

#include <cuda_runtime.h>

#include <algorithm>
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

cuuint64_t unsigned_of(int64_t value) {
  return static_cast<cuuint64_t>(value);
}

// Dimensions from the innermost on; strides in bytes, of all but that.
template <int kRank>
CUtensorMap view_of(const void* x, CUtensorMapDataType type, const cuuint64_t (&extents)[kRank],
                    const cuuint64_t (&strides)[kRank - 1], const cuuint32_t (&box)[kRank],
                    CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B) {
  cuuint32_t steps[kRank];
  std::fill(steps, steps + kRank, 1);
  CUtensorMap view;
  static const Encode encode = find_encode();
  const CUresult made = encode(&view, type, kRank, const_cast<void*>(x), extents, strides, box, steps,
                               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, promotion,
                               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (made != CUDA_SUCCESS) throw std::runtime_error("tensor map: error " + std::to_string(made));
  return view;
}

}  // namespace

CUtensorMap box_view(const void* x, int64_t rows, int64_t columns, int32_t box_rows, int32_t value_bytes) {
  const auto type = value_bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8;
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(kBoxBytes / value_bytes),
                             static_cast<cuuint32_t>(box_rows)};
  return view_of<2>(x, type, {unsigned_of(columns), unsigned_of(rows)}, {unsigned_of(columns * value_bytes)},
                    box);
}

CUtensorMap block_view(const void* x, int64_t rows, int64_t columns) {
  const int64_t pieces = columns * 2 / kBoxBytes, row_bytes = columns * 2, rows_of_box = 8;
  const cuuint32_t box[4] = {kBoxBytes / 2, static_cast<cuuint32_t>(rows_of_box),
                             static_cast<cuuint32_t>(pieces), 2};
  return view_of<4>(
      x, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
      {kBoxBytes / 2, unsigned_of(rows_of_box), unsigned_of(pieces), unsigned_of(rows / rows_of_box)},
      {unsigned_of(row_bytes), kBoxBytes, unsigned_of(rows_of_box * row_bytes)}, box,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
}

CUtensorMap planes_view(const void* x, int64_t rows, int64_t row_bytes, int32_t box_rows,
                        int64_t plane_bytes) {
  const int64_t planes = 2, pieces = row_bytes / kBoxBytes, columns = kBoxBytes / 2;
  const cuuint32_t box[4] = {static_cast<cuuint32_t>(columns), static_cast<cuuint32_t>(box_rows),
                             static_cast<cuuint32_t>(pieces), static_cast<cuuint32_t>(planes)};
  return view_of<4>(x, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                    {unsigned_of(columns), unsigned_of(rows), unsigned_of(pieces), unsigned_of(planes)},
                    {unsigned_of(row_bytes), unsigned_of(kBoxBytes), unsigned_of(plane_bytes)}, box);
}

}  // namespace ion::cuda
