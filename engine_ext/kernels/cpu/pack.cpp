// From file layout to panels (panel.h), once at load; and back for single rows. Knows no arithmetic but the
// dequantisation of a packed row.
#include <cstring>

#include "../kernels.h"
#include "half.h"
#include "k_blocks.h"
#include "panel.h"
#include "q5_blocks.h"

namespace ion::kernels {
namespace {

// The 4-bit code of value i of a Q4_0 or Q4_1 block, whose nibbles start at `bytes`.
int q4_code(const uint8_t* bytes, int i) {
  return i < 16 ? bytes[i] & 15 : bytes[i - 16] >> 4;
}

// The 6-bit code of value i of a Q6_K block.
int q6_k_code(const uint8_t* block, int i) {
  const int half = i / 128, quarter = i % 128 / 32, at = i % 32;
  const int low = block[64 * half + 32 * (quarter & 1) + at] >> (quarter < 2 ? 0 : 4) & 15;
  return low | (block[128 + 32 * half + at] >> 2 * quarter & 3) << 4;
}

// Where value i of row r of a group lies: nibbles, high bits and fifth bits (see panel.h).
void put_nibble(uint8_t* nibbles, int r, int i, int code) {
  const int quad = i / 4;
  nibbles[32 * (quad % 4) + 4 * r + i % 4] |= static_cast<uint8_t>(code << (quad < 4 ? 0 : 4));
}

void put_high(uint8_t* high, int r, int i, int bits) {
  const int quad = i / 4;
  high[32 * (quad / 4) + 4 * r + i % 4] |= static_cast<uint8_t>(bits << 2 * (quad % 4));
}

void put_fifth(uint8_t* high, int r, int i, int bit) {
  high[4 * r + i % 4] |= static_cast<uint8_t>(bit << i / 4);
}

void pack_q4_row(uint8_t* panel, const uint8_t* row, int r, int64_t k, int num_halves) {
  const int64_t file_block = 2 * num_halves + 16, group = 2 * (kHalfRow * num_halves + kQ4Bytes);
  for (int64_t g = 0; g < k / kGroup; ++g, row += file_block, panel += group) {
    for (int h = 0; h < num_halves; ++h) std::memcpy(panel + kHalfRow * h + 2 * r, row + 2 * h, 2);
    uint8_t* nibbles = panel + kHalfRow * num_halves;
    for (int i = 0; i < kGroup; ++i) put_nibble(nibbles, r, i, q4_code(row + 2 * num_halves, i));
  }
}

void pack_q5_row(uint8_t* panel, const uint8_t* row, int r, int64_t k, int num_halves) {
  const int64_t file_block = 2 * num_halves + 20;
  const int64_t group = 2 * (kHalfRow * num_halves + kQ4Bytes + kQ5HighBytes);
  for (int64_t g = 0; g < k / kGroup; ++g, row += file_block, panel += group) {
    for (int h = 0; h < num_halves; ++h) std::memcpy(panel + kHalfRow * h + 2 * r, row + 2 * h, 2);
    uint8_t* nibbles = panel + kHalfRow * num_halves;
    for (int i = 0; i < kGroup; ++i) {
      const int code = q5_code(row + 2 * num_halves, i);
      put_nibble(nibbles, r, i, code & 15);
      put_fifth(nibbles + kQ4Bytes, r, i, code >> 4);
    }
  }
}

void pack_q8_0_row(uint8_t* panel, const uint8_t* row, int r, int64_t k) {
  for (int64_t g = 0; g < k / kGroup; ++g, row += 34, panel += 2 * (kHalfRow + 8 * kGroup)) {
    std::memcpy(panel + 2 * r, row, 2);
    for (int q = 0; q < 8; ++q) std::memcpy(panel + kHalfRow + 32 * q + 4 * r, row + 2 + 4 * q, 4);
  }
}

void pack_q45_k_row(uint8_t* panel, const uint8_t* row, int r, int64_t k, bool has_fifth) {
  const int64_t group_bytes = has_fifth ? kQ5KGroupBytes : kQ4KGroupBytes;
  const int64_t super_bytes = kSuperGroups * group_bytes + 2 * kHalfRow;
  for (int64_t b = 0; b < k / 256; ++b, panel += super_bytes) {  // past the other panel's block
    for (int s = 0; s < kSuperGroups; ++s, panel += group_bytes) {
      const ScaleAndMinimum of = k_scale_and_minimum(row, s);
      panel[r] = static_cast<uint8_t>(of.scale);
      panel[8 + r] = static_cast<uint8_t>(of.minimum);
      for (int i = 0; i < kGroup; ++i) {
        const int code = has_fifth ? q5_k_code(row, 32 * s + i) : q4_k_code(row, 32 * s + i);
        put_nibble(panel + 16, r, i, code & 15);
        if (has_fifth) put_fifth(panel + 16 + kQ4Bytes, r, i, code >> 4);
      }
    }
    for (int h = 0; h < 2; ++h, panel += kHalfRow) std::memcpy(panel + 2 * r, row + 2 * h, 2);
    row += has_fifth ? 176 : 144;
  }
}

void pack_q6_k_row(uint8_t* panel, const uint8_t* row, int r, int64_t k) {
  for (int64_t s = 0; s < k / 256; ++s, row += 210, panel += 2 * kQ6SuperBytes) {
    for (int i = 0; i < 256; ++i) {
      uint8_t* group = panel + i / kGroup * kQ6GroupBytes;
      group[i % kGroup / 16 * 8 + r] = row[192 + i / 16];
      const int code = q6_k_code(row, i);
      put_nibble(group + 16, r, i % kGroup, code & 15);
      put_high(group + 16 + kQ4Bytes, r, i % kGroup, code >> 4);
    }
    std::memcpy(panel + kSuperGroups * kQ6GroupBytes + 2 * r, row + 208, 2);
  }
}

template <typename T>
void pack_float_row(uint8_t* panel, const uint8_t* row, int r, int64_t k) {
  for (int64_t i = 0; i < k; ++i)
    std::memcpy(panel + (8 * i + r) * sizeof(T), row + i * sizeof(T), sizeof(T));
}

void pack_row(uint8_t* panel, const uint8_t* row, int r, DType dtype, int64_t k) {
  switch (dtype) {
    case DType::F32:
      return pack_float_row<uint32_t>(panel, row, r, k);
    case DType::F16:
    case DType::BF16:
      return pack_float_row<uint16_t>(panel, row, r, k);
    case DType::Q4_0:
      return pack_q4_row(panel, row, r, k, 1);
    case DType::Q4_1:
      return pack_q4_row(panel, row, r, k, 2);
    case DType::Q5_0:
      return pack_q5_row(panel, row, r, k, 1);
    case DType::Q5_1:
      return pack_q5_row(panel, row, r, k, 2);
    case DType::Q8_0:
      return pack_q8_0_row(panel, row, r, k);
    case DType::Q4_K:
      return pack_q45_k_row(panel, row, r, k, false);
    case DType::Q5_K:
      return pack_q45_k_row(panel, row, r, k, true);
    case DType::Q6_K:
      return pack_q6_k_row(panel, row, r, k);
  }
}

void clear_panel(uint8_t* panel, DType dtype, int64_t k) {
  if (!is_quantized(dtype)) {
    std::memset(panel, 0, static_cast<std::size_t>(panel_bytes(dtype, k)));
    return;
  }
  const int64_t blocks = k / dtype_info(dtype).block_size, stride = panel_block_stride(dtype);
  for (int64_t b = 0; b < blocks; ++b) {
    std::memset(panel + b * stride, 0, static_cast<std::size_t>(panel_block_bytes(dtype)));
  }
}

void unpack_row(float* dst, const uint8_t* panel, DType dtype, int r, int64_t k) {
  for (int64_t i = 0; i < k; i += kGroup) {
    unpack_values(dst + i, panel, dtype, r, i, k - i < kGroup ? k - i : kGroup);
  }
}

}  // namespace

bool is_packable(DType dtype, int64_t n, int64_t k) {
  return n > 0 && k > 0 && k % dtype_info(dtype).block_size == 0;
}

int64_t packed_bytes(DType dtype, int64_t n, int64_t k, Numerics) {
  const int64_t panels = is_quantized(dtype) ? (num_panels(n) + 1) / 2 * 2 : num_panels(n);
  return panels * panel_bytes(dtype, k);
}

void pack_rows(void* dst, int64_t first_row, const void* src, DType dtype, int64_t n, int64_t k,
               ThreadPool& pool) {
  const int64_t row_stride = row_bytes(dtype, k);
  uint8_t* data = static_cast<uint8_t*>(dst);
  const uint8_t* rows = static_cast<const uint8_t*>(src);
  pool.parallel_for(num_panels(n), [=](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      uint8_t* panel = data + panel_offset(dtype, k, first_row / kPanelRows + p);
      clear_panel(panel, dtype, k);
      const int64_t num_rows = n - p * kPanelRows < kPanelRows ? n - p * kPanelRows : kPanelRows;
      for (int r = 0; r < num_rows; ++r) {
        pack_row(panel, rows + (p * kPanelRows + r) * row_stride, r, dtype, k);
      }
    }
  });
}

PackedMatrix pack_matrix(void* dst, const void* src, DType dtype, int64_t n, int64_t k, Numerics numerics,
                         ThreadPool& pool) {
  pack_rows(dst, 0, src, dtype, n, k, pool);
  return PackedMatrix{dtype, numerics, n, k, static_cast<const std::byte*>(dst)};
}

void gather_packed_rows(float* dst, const int32_t* ids, int64_t m, const PackedMatrix& w, ThreadPool& pool) {
  const uint8_t* panels = reinterpret_cast<const uint8_t*>(w.data);
  pool.parallel_for(m, [&, dst, ids](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const uint8_t* panel = panels + panel_offset(w.dtype, w.k, ids[i] / kPanelRows);
      unpack_row(dst + i * w.k, panel, w.dtype, ids[i] % kPanelRows, w.k);
    }
  });
}

}  // namespace ion::kernels
