// Where the parts of a Q5_0 or Q5_1 block of 32 values lie in a file (GGUF's layout). Knows no panels and no
// arithmetic. Static, as half.h.
//
//   Q5_0  [f16 d][fifth bits x4][nibbles x16]           22 B  value i is d * (code[i] - 16)
//   Q5_1  [f16 d][f16 m][fifth bits x4][nibbles x16]    24 B  value i is d * code[i] + m
#pragma once

#include <cstdint>

namespace ion::kernels {

// `bits` is where the fifth bits start, that of value i being bit i of the four bytes from the lowest;
// nibbles lie as in Q4_0.
static inline int q5_code(const uint8_t* bits, int i) {
  const uint8_t* nibbles = bits + 4;
  const int low = i < 16 ? nibbles[i] & 15 : nibbles[i - 16] >> 4;
  return low | (bits[i / 8] >> i % 8 & 1) << 4;
}

}  // namespace ion::kernels
