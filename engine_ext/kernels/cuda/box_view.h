// A matrix of bf16 as the copy engine reads it.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

namespace ion::cuda {

// x [rows, columns] in boxes of box_rows x 64 columns, 128-byte swizzle; what lies outside reads as 0.
CUtensorMap box_view(const __nv_bfloat16* x, int64_t rows, int64_t columns, int32_t box_rows);

}  // namespace ion::cuda
