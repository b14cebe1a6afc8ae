// A block's share of a streamed product, and the two warps that fetch its weights and activations.
#pragma once

#include "pdl.cuh"
#include "stream_gemm.h"
#include "stream_ring.cuh"

namespace ion::cuda {

constexpr int kGroups = 2;  // consumer warpgroups
template <int TN>
constexpr int kInFlight = TN > 128 ? 4 : 3;   // pieces
[[maybe_unused]] constexpr int kAhead = 8;    // pieces pulled into L2 beyond the ring
[[maybe_unused]] constexpr int kPulled = 12;  // pieces of a later product, a block (of 8 to 24 all the same)
[[maybe_unused]] constexpr int kPace = 1000;  // clocks between two of those: about the memory's own pace

// How a matrix is shared out over so many blocks. splits > 0: parts of each tile, one a block, a tile's
// blocks in one cluster; 0: stream-K.
struct Cut {
  int32_t tiles, pieces, splits, blocks;  // pieces of a tile
};

struct StreamArgs {
  CUtensorMap x;
  const uint8_t* w;
  void* y;
  int32_t ldy;
  StreamOutput output;
  Cut cut, next_cut;
  const uint8_t* next;                // weights of the product behind this one, or null
  int32_t first, m, stages, columns;  // tokens [first, first + m) of x; columns of a piece
  const float *w_scales, *x_scales;   // of e4m3
  float4* partial;                    // [block][group][TN / 8][128], of stream-K
  uint32_t* counts;                   // [tile][group] parts ready
};

// The pieces of a block: [k, k + left) of the line of all tiles' pieces, from `tile` on.
struct Range {
  int tile, k, left;

  __device__ explicit Range(const Cut& cut, uint32_t block = blockIdx.x) {
    if (cut.splits > 0) {
      tile = block / cut.splits;
      const int part = block - tile * cut.splits;
      k = cut.pieces * part / cut.splits;
      left = cut.pieces * (part + 1) / cut.splits - k;
    } else {
      // 32 bits: a block for each of 2^26 pieces of 16 KiB would be a matrix of a terabyte.
      const uint32_t total = cut.tiles * cut.pieces;
      const auto begin = static_cast<int>(block * total / cut.blocks);
      const auto end = static_cast<int>((block + 1) * total / cut.blocks);
      tile = begin / cut.pieces;
      k = begin - tile * cut.pieces;
      left = end - begin;
    }
  }
};

// The first pieces of the product behind this one, of the block with this one's number and of those past this
// product's own blocks.
struct NextPieces {
  const StreamArgs& args;
  uint32_t block = blockIdx.x;
  const uint8_t* at = nullptr;
  int left = 0;

  __device__ explicit NextPieces(const StreamArgs& from) : args(from) {
    if (args.next != nullptr) begin();
  }

  // Whether there was one.
  __device__ bool pull() {
    if (left == 0) return false;
    prefetch_bytes(at, kPieceBytes);
    at += kPieceBytes;
    if (--left == 0) block += gridDim.x, begin();
    return true;
  }

 private:
  __device__ void begin() {
    if (block >= args.next_cut.blocks) return;
    const Range range(args.next_cut, block);
    at = args.next + (static_cast<int64_t>(range.tile) * args.next_cut.pieces + range.k) * kPieceBytes;
    left = min(kPulled, range.left);
  }
};

// All of the block's weights are asked for: until they are used up memory would be idle.
template <int TN>
__device__ void pull_rest(NextPieces& next, const Ring<TN>& ring, const Stage& last) {
  if (next.left == 0) return;
  barrier_wait(ring.weights_full + 8 * last.index, last.parity ^ 1);
  while (next.pull()) {
    const int64_t asked_at = clock64();
    while (clock64() - asked_at < kPace) {
      if (barrier_test(ring.empty + 8 * last.index, last.parity ^ 1)) return;
    }
  }
}

template <int TN>
__device__ void fetch_weights(const StreamArgs& args, const Ring<TN>& ring) {
  const uint64_t policy = evict_first();
  const Range range(args.cut);
  NextPieces next(args);
  const uint8_t* from = args.w + (static_cast<int64_t>(range.tile) * args.cut.pieces + range.k) * kPieceBytes;
  Stage stage(1), last(1), oldest(0);  // oldest: the first piece that may still be on its way
  int flying = 0, ahead = 0;           // ahead: pieces behind this one that L2 was asked for
  int64_t asked_at = 0;
  const auto see_landed = [&] {
    --flying;
    oldest.next(ring.stages);
  };
  for (int i = 0; i < range.left; ++i) {
    while (!barrier_test(ring.empty + 8 * stage.index, stage.parity)) {
      while (flying > 0 && barrier_test(ring.weights_full + 8 * oldest.index, oldest.parity)) see_landed();
      if (flying > 0 || clock64() - asked_at <= kPace) continue;
      if (i + ahead == range.left) {
        if (!next.pull()) continue;
      } else if (ahead < kAhead) {
        prefetch_bytes(from + static_cast<int64_t>(i + ahead) * kPieceBytes, kPieceBytes);
        ++ahead;
      } else {
        continue;
      }
      asked_at = clock64();
    }
    while (flying >= kInFlight<TN>) {
      barrier_wait(ring.weights_full + 8 * oldest.index, oldest.parity);
      see_landed();
    }
    const uint32_t full = ring.weights_full + 8 * stage.index;
    barrier_expect(full, kPieceBytes);
    copy_bytes(ring.weights + stage.index * kPieceBytes, from + static_cast<int64_t>(i) * kPieceBytes,
               kPieceBytes, full, policy);
    ++flying;
    if (ahead > 0) --ahead;
    last = stage;
    stage.next(ring.stages);
  }
  if (range.left > 0) pull_rest(next, ring, last);
}

template <int TN>
__device__ void fetch_tokens(const StreamArgs& args, const Ring<TN>& ring) {
  const uint64_t policy = evict_last();
  wait_for_predecessor();
  fence_async_proxy();
  const Range range(args.cut);
  Stage stage(1);
  for (int i = 0, k = range.k; i < range.left; ++i) {
    barrier_wait(ring.empty + 8 * stage.index, stage.parity);
    const uint32_t full = ring.tokens_full + 8 * stage.index;
    barrier_expect(full, Ring<TN>::kXBytes);
    copy_box(ring.tokens + stage.index * Ring<TN>::kXBytes, &args.x, k * args.columns, args.first, full,
             policy);
    if (++k == args.cut.pieces) k = 0;
    stage.next(ring.stages);
  }
}

}  // namespace ion::cuda
