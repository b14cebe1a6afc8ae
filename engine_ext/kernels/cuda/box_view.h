// A matrix as the copy engine reads it.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace ion::cuda {

// x [rows, columns], values of 2 bytes (bf16) or 1, in boxes of box_rows x 128 bytes, 128-byte swizzle; what
// lies outside reads as 0.
CUtensorMap box_view(const void* x, int64_t rows, int64_t columns, int32_t box_rows, int32_t value_bytes);

// x [rows, columns] of bf16 in boxes of 16 rows, all columns (64 or 128): [2][columns / 64][8 rows][128
// bytes], 128-byte swizzle. The last coordinate counts eights of rows.
CUtensorMap block_view(const void* x, int64_t rows, int64_t columns);

// bf16 rows of 64 or 128 values and the same rows plane_bytes further on, as one view of four dimensions: 64
// columns, rows, the rest of the columns, planes. A box is box_rows of both planes: [2][row_bytes /
// 128][rows] [128 bytes], 128-byte swizzle.
CUtensorMap planes_view(const void* x, int64_t rows, int64_t row_bytes, int32_t box_rows,
                        int64_t plane_bytes);

}  // namespace ion::cuda
