// A matrix as the copy engine reads it.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace ion::cuda {

// x [rows, columns], values of 2 bytes (bf16) or 1, in boxes of box_rows x 128 bytes, 128-byte swizzle; what
// lies outside reads as 0.
CUtensorMap box_view(const void* x, int64_t rows, int64_t columns, int32_t box_rows, int32_t value_bytes);

}  // namespace ion::cuda
