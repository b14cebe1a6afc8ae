// The ring of pieces in a block's shared memory, between those who fetch and those who multiply.
#pragma once

#include <cstdint>

#include "async.cuh"
#include "stream_gemm.h"

namespace ion::cuda {

constexpr int kPieceBytes = kStreamRows * kStreamBytes;

template <int TN>
struct Ring {
  static constexpr int kXBytes = TN * 128;
  // For a tile's partial sums. Of few tokens they have a place of their own; those of many come into the
  // ring.
  static constexpr int kSumBytes = TN < 64 ? 32 * 1024 : TN == 64 ? 40 * 1024 : 0;
  uint32_t weights, tokens, weights_full, tokens_full, empty, sums, stages;

  __device__ Ring(const void* raw, int num_stages) : stages(num_stages) {
    weights = (shared_address(raw) + 1023) & ~1023u;
    tokens = weights + stages * kPieceBytes;
    weights_full = tokens + stages * kXBytes;
    tokens_full = weights_full + 8 * stages;
    empty = tokens_full + 8 * stages;
    sums = (empty + 8 * stages + 15) & ~15u;
  }
};

}  // namespace ion::cuda
