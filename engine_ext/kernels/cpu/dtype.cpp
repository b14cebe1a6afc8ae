// Block layouts of weights as they lie in files (GGUF's) and their dequantisation. Knows nothing of panels.
// Every value is computed as ggml's Python package does, bit for bit: tests compare the two.
#include <cstring>
#include <stdexcept>

#include "../kernels.h"
#include "half.h"
#include "k_blocks.h"
#include "q5_blocks.h"

namespace ion::kernels {
namespace {

constexpr DTypeInfo kInfos[] = {
    {DType::F32, "F32", 1, 4},       {DType::F16, "F16", 1, 2},       {DType::BF16, "BF16", 1, 2},
    {DType::Q4_0, "Q4_0", 32, 18},   {DType::Q4_1, "Q4_1", 32, 20},   {DType::Q5_0, "Q5_0", 32, 22},
    {DType::Q5_1, "Q5_1", 32, 24},   {DType::Q8_0, "Q8_0", 32, 34},   {DType::Q4_K, "Q4_K", 256, 144},
    {DType::Q5_K, "Q5_K", 256, 176}, {DType::Q6_K, "Q6_K", 256, 210},
};

using BlockFn = void (*)(float* dst, const uint8_t* block);

void f32_block(float* dst, const uint8_t* block) {
  std::memcpy(dst, block, sizeof *dst);
}
void f16_block(float* dst, const uint8_t* block) {
  *dst = load_f16(block);
}
void bf16_block(float* dst, const uint8_t* block) {
  *dst = bf16_to_f32(load_u16(block));
}

// [f16 d][16 bytes]: byte i holds value i in its low and value i + 16 in its high half.
void q4_0_block(float* dst, const uint8_t* block) {
  const float d = load_f16(block);
  for (int i = 0; i < 16; ++i) {
    dst[i] = d * static_cast<float>((block[2 + i] & 15) - 8);
    dst[i + 16] = d * static_cast<float>((block[2 + i] >> 4) - 8);
  }
}

// [f16 d][f16 m][16 bytes as Q4_0]
void q4_1_block(float* dst, const uint8_t* block) {
  const float d = load_f16(block), m = load_f16(block + 2);
  for (int i = 0; i < 16; ++i) {
    dst[i] = d * static_cast<float>(block[4 + i] & 15) + m;
    dst[i + 16] = d * static_cast<float>(block[4 + i] >> 4) + m;
  }
}

// q5_blocks.h says where the parts lie.
void q5_0_block(float* dst, const uint8_t* block) {
  const float d = load_f16(block);
  for (int i = 0; i < 32; ++i) dst[i] = d * static_cast<float>(q5_code(block + 2, i) - 16);
}

void q5_1_block(float* dst, const uint8_t* block) {
  const float d = load_f16(block), m = load_f16(block + 2);
  for (int i = 0; i < 32; ++i) dst[i] = d * static_cast<float>(q5_code(block + 4, i)) + m;
}

// [f16 d][i8 x32]
void q8_0_block(float* dst, const uint8_t* block) {
  const float d = load_f16(block);
  for (int i = 0; i < 32; ++i) dst[i] = d * static_cast<float>(static_cast<int8_t>(block[2 + i]));
}

// k_blocks.h says where the parts lie. Every product is exact: only the subtraction rounds.
template <int (*kCode)(const uint8_t* block, int i)>
void k_block(float* dst, const uint8_t* block) {
  const float d = load_f16(block), d_min = load_f16(block + 2);
  for (int s = 0; s < 8; ++s) {
    const ScaleAndMinimum of = k_scale_and_minimum(block, s);
    const float scale = d * static_cast<float>(of.scale), minimum = d_min * static_cast<float>(of.minimum);
    for (int i = 32 * s; i < 32 * s + 32; ++i) dst[i] = scale * static_cast<float>(kCode(block, i)) - minimum;
  }
}

// [ql x128][qh x64][i8 scale x16][f16 d], two halves of 128 values; see q6_k_code in pack.cpp for the bits.
void q6_k_block(float* dst, const uint8_t* block) {
  const float d = load_f16(block + 208);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, quarter = i % 128 / 32, at = i % 32;
    const int low = block[64 * half + 32 * (quarter & 1) + at] >> (quarter < 2 ? 0 : 4) & 15;
    const int high = block[128 + 32 * half + at] >> 2 * quarter & 3;
    const float scale = d * static_cast<float>(static_cast<int8_t>(block[192 + i / 16]));
    dst[i] = scale * static_cast<float>((low | high << 4) - 32);
  }
}

BlockFn block_fn(DType dtype) {
  switch (dtype) {
    case DType::F32:
      return f32_block;
    case DType::F16:
      return f16_block;
    case DType::BF16:
      return bf16_block;
    case DType::Q4_0:
      return q4_0_block;
    case DType::Q4_1:
      return q4_1_block;
    case DType::Q5_0:
      return q5_0_block;
    case DType::Q5_1:
      return q5_1_block;
    case DType::Q8_0:
      return q8_0_block;
    case DType::Q4_K:
      return k_block<q4_k_code>;
    case DType::Q5_K:
      return k_block<q5_k_code>;
    case DType::Q6_K:
      return q6_k_block;
  }
  throw std::invalid_argument("no such weight type");
}

}  // namespace

const DTypeInfo& dtype_info(DType dtype) {
  for (const DTypeInfo& info : kInfos) {
    if (info.dtype == dtype) return info;
  }
  throw std::invalid_argument("no such weight type");
}

int64_t row_bytes(DType dtype, int64_t k) {
  const DTypeInfo& info = dtype_info(dtype);
  return k / info.block_size * info.block_bytes;
}

void dequantize_row(float* dst, const void* row, DType dtype, int64_t k) {
  const DTypeInfo& info = dtype_info(dtype);
  const BlockFn fn = block_fn(dtype);
  const uint8_t* block = static_cast<const uint8_t*>(row);
  for (int64_t i = 0; i < k; i += info.block_size, block += info.block_bytes) fn(dst + i, block);
}

void gather_rows(float* dst, const int32_t* ids, int64_t m, const void* table, DType dtype, int64_t k,
                 ThreadPool& pool) {
  const std::byte* rows = static_cast<const std::byte*>(table);
  const int64_t bytes = row_bytes(dtype, k);
  pool.parallel_for(m, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) dequantize_row(dst + i * k, rows + ids[i] * bytes, dtype, k);
  });
}

}  // namespace ion::kernels
