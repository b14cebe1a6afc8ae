// How quantised activations lie in matmul's scratch. Static, as half.h; knows no arithmetic on them.
//
// Rows come in blocks of 8, the last one with the rows that are left, and a block is a sequence of groups of
// 32 k-values, so that a kernel reads all it needs of a block's rows as one stream. A group of a block of R
// rows is
//   [q int8 x32]xR [d f32]xR [d_sum f32]xR [offset i32]xR [offset_sum i16 x2]xR        48 R bytes
// with x ~= q * d. Where a row lies in its block changes no bit of its products.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ion::kernels {

constexpr int64_t kGroup = 32;    // k-values under one activation scale
constexpr int64_t kRowBlock = 8;  // rows that lie together
constexpr int64_t kRowGroupBytes = kGroup + 16;

struct QuantizedRows {
  int64_t m, k;  // k is a multiple of 32
  std::byte* data;

  int64_t groups() const { return k / kGroup; }
  // Rows of the block that row `row` is in; `row` is the first of it.
  int64_t block_rows(int64_t row) const { return m - row < kRowBlock ? m - row : kRowBlock; }
  std::byte* block(int64_t row) const { return data + row * groups() * kRowGroupBytes; }
};

// One row's share of a group. The next row of the block has its own right behind.
struct RowGroup {
  int8_t* q;        // [32] in [-127, 127]
  float* d;         // NaN where the group held one
  float* d_sum;     // d * sum(q): meets the minimum of Q4_1, Q5_1, Q4_K, Q5_K
  int32_t* offset;  // -8 * sum(q): meets the offset of Q4_0, twice that of Q5_0, and 16 of it that of Q8_0 as
                    // unsigned codes
  int16_t* offset_sum;  // [2] -16 * sum of 16 q: half of Q6_K's offset, in range of int16
};

static inline RowGroup row_group(const QuantizedRows& x, int64_t row, int64_t g) {
  const int64_t first = row / kRowBlock * kRowBlock, i = row - first, rows = x.block_rows(first);
  std::byte* at = x.block(first) + g * rows * kRowGroupBytes;
  std::byte* rest = at + rows * kGroup + 4 * i;
  return {reinterpret_cast<int8_t*>(at + kGroup * i), reinterpret_cast<float*>(rest),
          reinterpret_cast<float*>(rest + 4 * rows), reinterpret_cast<int32_t*>(rest + 8 * rows),
          reinterpret_cast<int16_t*>(rest + 12 * rows)};
}

// What follows from the scale and the sums of the group's halves.
static inline void put_scale(const RowGroup& to, float d, int32_t first, int32_t second) {
  *to.d = d;
  *to.d_sum = d * static_cast<float>(first + second);
  *to.offset = -8 * (first + second);
  to.offset_sum[0] = static_cast<int16_t>(-16 * first);
  to.offset_sum[1] = static_cast<int16_t>(-16 * second);
}

}  // namespace ion::kernels
