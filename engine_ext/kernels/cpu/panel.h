// The packed layout of weights: panels of 8 rows, cut along k into groups. Knows no arithmetic on them.
//
// Quantised panels lie in pairs, block by block (32 k-values, of a K type 256): block 0 of panel 2p, block 0
// of panel 2p + 1, block 1 of panel 2p, ... A kernel of 16 lanes reads a pair as one stream, which the
// hardware foresees; two streams at the pace of one it does not. A last panel without a neighbour has room
// for one.
//
// A quantised panel is a sequence of groups of 32 k-values. "Quad q" is k in [4q, 4q + 4) of the group; an
// octet of quads is 32 bytes: byte 4r + j belongs to row r and k = 4q + j, so that one 32-byte load meets one
// broadcast of 4 activations and every 32-bit lane is one row's partial sum.
//
//   Q4_1  [f16 d x8][f16 m x8][nibbles x128]            160 B  w = d * code + m
//   Q4_0  [f16 d x8][nibbles x128]                      144 B  w = d * (code - 8)
//   Q5_1  [f16 d x8][f16 m x8][nibbles x128][fifth bits x32]   192 B  w = d * code + m
//   Q5_0  [f16 d x8][nibbles x128][fifth bits x32]      176 B  w = d * (code - 16)
//   Q8_0  [f16 d x8][codes x256]                        272 B  w = d * code
//   Q6_K  [i8 scale x8 of k < 16][i8 scale x8 of k >= 16][nibbles x128][high bits x64]   208 B
//         and after 8 groups [f16 d x8]: 1680 B per 256 k  w = (d * scale) * (code - 32)
//   Q4_K  [u8 scale x8][u8 minimum x8][nibbles x128]    144 B
//         and after 8 groups [f16 d x8][f16 d_min x8]: 1184 B per 256 k
//         w = (d * scale) * code - d_min * minimum
//   Q5_K  [u8 scale x8][u8 minimum x8][nibbles x128][fifth bits x32]   176 B
//         and after 8 groups as Q4_K: 1440 B per 256 k
//   nibbles: byte i of octet v (0..3) holds quad v in its low and quad v + 4 in its high half
//   high bits: byte i of octet h (0..1) holds, 2 bits each from the lowest, quads 4h .. 4h + 3
//   fifth bits: bit q of byte i is that of quad q
//
// A float panel (F32, F16, BF16) is [k][8] values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "../kernels.h"
#include "half.h"
#include "quantized_rows.h"

namespace ion::kernels {

constexpr int64_t kSuperGroups = 8;  // groups in a super-block of a K type
constexpr int64_t kQ4Bytes = 128;    // nibbles of a group
constexpr int64_t kQ6HighBytes = 64;
constexpr int64_t kHalfRow = 16;  // bytes of 8 f16 values
constexpr int64_t kQ6GroupBytes = 16 + kQ4Bytes + kQ6HighBytes;
constexpr int64_t kQ6SuperBytes = kSuperGroups * kQ6GroupBytes + kHalfRow;
constexpr int64_t kQ5HighBytes = 32;
constexpr int64_t kQ4KGroupBytes = 16 + kQ4Bytes;
constexpr int64_t kQ5KGroupBytes = kQ4KGroupBytes + kQ5HighBytes;
constexpr int64_t kQ4KSuperBytes = kSuperGroups * kQ4KGroupBytes + 2 * kHalfRow;
constexpr int64_t kQ5KSuperBytes = kSuperGroups * kQ5KGroupBytes + 2 * kHalfRow;

// Bytes of one panel of k values a row. The 8 rows of a file take the same, but for Q4_K and Q5_K, which take
// 1152 and 1408 per 256 k there.
static inline int64_t panel_bytes(DType dtype, int64_t k) {
  switch (dtype) {
    case DType::F32:
      return 8 * 4 * k;
    case DType::F16:
    case DType::BF16:
      return 8 * 2 * k;
    case DType::Q4_0:
      return k / kGroup * (kHalfRow + kQ4Bytes);
    case DType::Q4_1:
      return k / kGroup * (2 * kHalfRow + kQ4Bytes);
    case DType::Q5_0:
      return k / kGroup * (kHalfRow + kQ4Bytes + kQ5HighBytes);
    case DType::Q5_1:
      return k / kGroup * (2 * kHalfRow + kQ4Bytes + kQ5HighBytes);
    case DType::Q8_0:
      return k / kGroup * (kHalfRow + 8 * kGroup);
    case DType::Q4_K:
      return k / (kGroup * kSuperGroups) * kQ4KSuperBytes;
    case DType::Q5_K:
      return k / (kGroup * kSuperGroups) * kQ5KSuperBytes;
    case DType::Q6_K:
      return k / (kGroup * kSuperGroups) * kQ6SuperBytes;
  }
  std::abort();
}

// Bytes of one panel's block, and from there to the panel's next one.
static inline int64_t panel_block_bytes(DType dtype) {
  return panel_bytes(dtype, dtype_info(dtype).block_size);
}
static inline int64_t panel_block_stride(DType dtype) {
  return 2 * panel_block_bytes(dtype);
}

// Where panel p begins.
static inline int64_t panel_offset(DType dtype, int64_t k, int64_t p) {
  if (!is_quantized(dtype)) return p * panel_bytes(dtype, k);
  return p / 2 * 2 * panel_bytes(dtype, k) + p % 2 * panel_block_bytes(dtype);
}

// Where value i (0..31) of row r of a group lies.
static inline int nibble_at(const uint8_t* nibbles, int r, int i) {
  return nibbles[32 * (i / 4 % 4) + 4 * r + i % 4] >> (i < 16 ? 0 : 4) & 15;
}
static inline int high_bits_at(const uint8_t* high, int r, int i) {
  return high[32 * (i / 16) + 4 * r + i % 4] >> 2 * (i / 4 % 4) & 3;
}

static inline int fifth_bit_at(const uint8_t* high, int r, int i) {
  return high[4 * r + i % 4] >> i / 4 & 1;
}

// Whether w has a summand that does not depend on the code.
static inline bool has_minimum(DType dtype) {
  return dtype == DType::Q4_1 || dtype == DType::Q5_1 || dtype == DType::Q4_K || dtype == DType::Q5_K;
}

// One row of one group, offsets taken off the codes: w = d * scale[i / 16] * code[i] + m.
struct PanelGroup {
  int code[kGroup];
  int scale[2] = {1, 1};
  float d = 0.0f, m = 0.0f;
};

static inline PanelGroup read_q6_k_group(const uint8_t* panel, int r, int64_t g) {
  PanelGroup out;
  const uint8_t* super = panel + g / kSuperGroups * 2 * kQ6SuperBytes;
  const uint8_t* at = super + g % kSuperGroups * kQ6GroupBytes;
  out.d = load_f16(super + kSuperGroups * kQ6GroupBytes + 2 * r);
  for (int s = 0; s < 2; ++s) out.scale[s] = static_cast<int8_t>(at[8 * s + r]);
  for (int i = 0; i < kGroup; ++i) {
    out.code[i] = (nibble_at(at + 16, r, i) | high_bits_at(at + 16 + kQ4Bytes, r, i) << 4) - 32;
  }
  return out;
}

// A 6-bit factor times an f16 is exact in float32, so the group's own d and m are what the file means.
static inline PanelGroup read_q45_k_group(const uint8_t* panel, bool has_fifth, int r, int64_t g) {
  PanelGroup out;
  const int64_t group_bytes = has_fifth ? kQ5KGroupBytes : kQ4KGroupBytes;
  const uint8_t* super = panel + g / kSuperGroups * 2 * (kSuperGroups * group_bytes + 2 * kHalfRow);
  const uint8_t* at = super + g % kSuperGroups * group_bytes;
  const uint8_t* halves = super + kSuperGroups * group_bytes;
  out.d = load_f16(halves + 2 * r) * static_cast<float>(at[r]);
  out.m = -(load_f16(halves + kHalfRow + 2 * r) * static_cast<float>(at[8 + r]));
  for (int i = 0; i < kGroup; ++i) {
    out.code[i] = nibble_at(at + 16, r, i);
    if (has_fifth) out.code[i] |= fifth_bit_at(at + 16 + kQ4Bytes, r, i) << 4;
  }
  return out;
}

static inline PanelGroup read_q5_group(const uint8_t* panel, DType dtype, int r, int64_t g) {
  PanelGroup out;
  const bool has_m = dtype == DType::Q5_1;
  const uint8_t* at = panel + g * panel_block_stride(dtype);
  const uint8_t* nibbles = at + (has_m ? 2 : 1) * kHalfRow;
  out.d = load_f16(at + 2 * r);
  if (has_m) out.m = load_f16(at + kHalfRow + 2 * r);
  for (int i = 0; i < kGroup; ++i) {
    out.code[i] = (nibble_at(nibbles, r, i) | fifth_bit_at(nibbles + kQ4Bytes, r, i) << 4) - (has_m ? 0 : 16);
  }
  return out;
}

static inline PanelGroup read_group(const uint8_t* panel, DType dtype, int r, int64_t g) {
  if (dtype == DType::Q6_K) return read_q6_k_group(panel, r, g);
  if (dtype == DType::Q5_0 || dtype == DType::Q5_1) return read_q5_group(panel, dtype, r, g);
  if (dtype == DType::Q4_K || dtype == DType::Q5_K) {
    return read_q45_k_group(panel, dtype == DType::Q5_K, r, g);
  }
  PanelGroup out;
  const uint8_t* at = panel + g * panel_block_stride(dtype);
  out.d = load_f16(at + 2 * r);
  if (dtype == DType::Q4_1) out.m = load_f16(at + kHalfRow + 2 * r);
  for (int i = 0; i < kGroup; ++i) {
    if (dtype == DType::Q4_1) out.code[i] = nibble_at(at + 2 * kHalfRow, r, i);
    if (dtype == DType::Q4_0) out.code[i] = nibble_at(at + kHalfRow, r, i) - 8;
    if (dtype == DType::Q8_0) out.code[i] = static_cast<int8_t>(at[kHalfRow + 32 * (i / 4) + 4 * r + i % 4]);
  }
  return out;
}

// Values [first, first + count) of one row; first is a multiple of 32 and count at most 32.
static inline void unpack_values(float* dst, const uint8_t* panel, DType dtype, int r, int64_t first,
                                 int64_t count) {
  if (!is_quantized(dtype)) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = 8 * (first + i) + r;
      if (dtype == DType::F32) std::memcpy(dst + i, panel + 4 * at, 4);
      if (dtype == DType::F16) dst[i] = load_f16(panel + 2 * at);
      if (dtype == DType::BF16) dst[i] = bf16_to_f32(load_u16(panel + 2 * at));
    }
    return;
  }
  const PanelGroup group = read_group(panel, dtype, r, first / kGroup);
  for (int64_t i = 0; i < count; ++i) {
    const float scale = dtype == DType::Q6_K ? group.d * static_cast<float>(group.scale[i / 16]) : group.d;
    dst[i] = scale * static_cast<float>(group.code[i]);
    if (has_minimum(dtype)) dst[i] += group.m;
  }
}

static inline int64_t num_panels(int64_t n) {
  return (n + kPanelRows - 1) / kPanelRows;
}

}  // namespace ion::kernels
