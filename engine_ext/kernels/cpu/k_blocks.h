// Where the parts of a Q4_K or Q5_K block of 256 values lie in a file (GGUF's layout). Knows no panels and no
// arithmetic. Static, as half.h.
//
//   Q4_K  [f16 d][f16 d_min][scales and minimums x12][nibbles x128]                  144 B
//   Q5_K  [f16 d][f16 d_min][scales and minimums x12][high bits x32][nibbles x128]   176 B
//
// Value i belongs to sub-block s = i / 32 and is (d * scale[s]) * code[i] - d_min * minimum[s].
#pragma once

#include <cstdint>

namespace ion::kernels {

// 6 bits each. In the first four sub-blocks byte s holds the scale and byte s + 4 the minimum; in the others
// byte s + 4 holds the low 4 bits of both, and their upper 2 bits lie on top of bytes s - 4 and s.
struct ScaleAndMinimum {
  int scale, minimum;
};

static inline ScaleAndMinimum k_scale_and_minimum(const uint8_t* block, int s) {
  const uint8_t* packed = block + 4;
  if (s < 4) return {packed[s] & 63, packed[s + 4] & 63};
  return {(packed[s + 4] & 15) | packed[s - 4] >> 6 << 4, packed[s + 4] >> 4 | packed[s] >> 6 << 4};
}

// Two sub-blocks share 32 bytes of nibbles, the even one in the low halves.
static inline int k_nibble(const uint8_t* nibbles, int i) {
  const int s = i / 32;
  return nibbles[32 * (s / 2) + i % 32] >> (s % 2 == 0 ? 0 : 4) & 15;
}

static inline int q4_k_code(const uint8_t* block, int i) {
  return k_nibble(block + 16, i);
}

// Bit s of high byte i % 32 is the fifth bit of value i.
static inline int q5_k_code(const uint8_t* block, int i) {
  return k_nibble(block + 48, i) | (block[16 + i % 32] >> i / 32 & 1) << 4;
}

}  // namespace ion::kernels
