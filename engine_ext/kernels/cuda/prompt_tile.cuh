// A block's share of a product of many rows: its tiles, its shared memory, and the two warps that fetch.
#pragma once

#include "async.cuh"
#include "pdl.cuh"
#include "prompt_gemm.h"
#include "stream_gemm.h"
#include "stream_ring.cuh"
#include "vec.cuh"

namespace ion::cuda {

constexpr int kPromptRows = kPromptTileRows;        // of x, a block's tile
constexpr int kPromptWeights = kPromptTileWeights;  // rows of w, a tile; 128 of half a one
constexpr int kPromptColumns = 64;                  // of k, a step
constexpr int kPromptCluster = 2;                   // blocks: the same weights, rows one below the other
constexpr int kPromptGroups = 2;                    // consumer warpgroups, which take the tiles in turns
constexpr int kPromptPulled = 4;  // steps of weights pulled into L2 beyond the one asked for
constexpr int kPromptBand = 16;   // row tiles of a band at most: 2048 rows
constexpr int kStoreRows = 16;    // of a box of y, a warp's
constexpr int kStoreColumns = 64;

struct PromptArgs {
  CUtensorMap x;  // in boxes of kPromptRows x kPromptColumns
  const uint8_t* w;
  int32_t first;                    // row of x
  int32_t n, steps;                 // steps: k / kPromptColumns
  int32_t row_tiles, weight_tiles;  // of a cluster, 128 rows x 256 weights
  bool has_wide;                    // up to 64 rows more behind them, in tiles of 512 weights
  int32_t bands, band, last;        // row tiles of a band, and of the last one
  int32_t whole, count;             // tiles as they are; with the halves of those behind
  // 1 / tiles of a band, row tiles of a band and of the last one, and what that has for two tiles of weights.
  float per_band, per_row, per_last, per_pair;
};

// x / d, rounded down, where inverse = 1 / d; exact for x below 2^21. A division takes the fetching warps as
// long as a step of the product.
__device__ __forceinline__ int quotient(int x, float inverse) {
  return static_cast<int>((static_cast<float>(x) + 0.5f) * inverse);
}

// A block's part of a tile of its cluster. Bands of rows come one after the other; in a band the row tiles of
// one tile of weights, then those of the next: what the clusters work on at a time is about as high as wide.
// In the last band a wide tile follows the row tiles of its two tiles of weights.
struct PromptTile {
  int row, weight;        // the first one of each
  bool is_half, is_wide;  // wide: the cluster's blocks have the same rows, otherwise the same weights
  bool is_first;          // of those with its weights

  __device__ PromptTile(const PromptArgs& args, int index, int rank) : is_half(index >= args.whole) {
    const int tile = is_half ? args.whole + (index - args.whole) / 2 : index;
    const int half = is_half ? (index - args.whole) % 2 : 0;
    const int band = min(quotient(tile, args.per_band), args.bands - 1), first = band * args.band;
    const bool is_last = band == args.bands - 1, has_wide = is_last && args.has_wide;
    const int at = tile - first * args.weight_tiles, height = is_last ? args.last : args.band;
    const int pair = has_wide ? quotient(at, args.per_pair) : 0, in_pair = at - pair * (2 * height + 1);
    is_wide = has_wide && in_pair == height * min(2, args.weight_tiles - 2 * pair);
    if (is_wide) {
      row = args.row_tiles * kPromptCluster * kPromptRows;
      weight = (2 * pair + half) * kPromptWeights + rank * (is_half ? kPromptWeights / 2 : kPromptWeights);
      is_first = height == 0;
    } else {
      const int column = quotient(in_pair, is_last ? args.per_last : args.per_row);
      const int in_column = in_pair - column * height;
      row = (first + in_column) * kPromptCluster * kPromptRows + rank * kPromptRows;
      weight = (2 * pair + column) * kPromptWeights + half * (kPromptWeights / 2);
      is_first = in_column == 0;
    }
    row += args.first;
  }
};

// The tiles of this block's cluster: first, first + step, ... below args.count.
struct PromptTiles {
  int first = blockIdx.x / kPromptCluster, step = gridDim.x / kPromptCluster;
  int rank = static_cast<int>(block_in_cluster());
};

// Shared memory: five steps of both operands (40 KiB each), what a warp stores by way of, and something more
// for all.
template <int kStoreBytes, int kExtraBytes>
struct PromptRing {
  static constexpr int kStages = 5;
  static constexpr int kRowBytes = kPromptRows * kStreamBytes, kWeightBytes = kPromptWeights * kStreamBytes;
  static constexpr int kStores = kPromptGroups * 4;  // warps that do
  static constexpr int kBytes =
      1024 + kStages * (kRowBytes + kWeightBytes + 16) + kStores * kStoreBytes + kExtraBytes;
  uint32_t rows, weights, stores, extra, full, empty;

  __device__ explicit PromptRing(const void* raw) {
    rows = (shared_address(raw) + 1023) & ~1023u;
    weights = rows + kStages * kRowBytes;
    stores = weights + kStages * kWeightBytes;
    extra = stores + kStores * kStoreBytes;
    full = extra + kExtraBytes;
    empty = full + 8 * kStages;
  }

  // This warp's, of a consumer warpgroup.
  __device__ uint32_t store_of(int group) const {
    return stores + (group * 4 + threadIdx.x / kWarp % 4) * kStoreBytes;
  }

  __device__ void init() const {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(full + 8 * i, 2);                    // the warps that fetch
      barrier_init(empty + 8 * i, kPromptCluster * 4);  // a group's warps, of each block
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    fence_async_proxy();
  }
};

// What a block fetches of a tile's weights: half for both of the cluster's, of a wide tile its own.
struct PromptWeights {
  const uint8_t* from;
  int64_t second;       // to the second copy's, or less than 0: there is none
  uint32_t bytes, all;  // of a copy; of what comes to be in the block
  uint32_t place;       // in it
  uint16_t blocks;      // the cluster's it goes to, by bits

  __device__ PromptWeights(const PromptArgs& args, const PromptTile& tile, int rank) {
    const int width = tile.is_half ? kPromptWeights / 2 : kPromptWeights;
    const int rows = tile.is_wide ? kStreamRows : width / kPromptCluster;
    const int row = min(tile.weight + (tile.is_wide ? 0 : rank * rows), args.n - rows);  // behind: anything
    const int64_t line = static_cast<int64_t>(args.steps) * kPieceBytes;                 // of pieces
    from = args.w + row / kStreamRows * line + row % kStreamRows * kStreamBytes;
    second = !tile.is_wide || tile.is_half ? -1 : row + kPromptWeights <= args.n ? line : 0;
    bytes = rows * kStreamBytes;
    all = width * kStreamBytes;
    place = tile.is_wide ? 0 : rank * bytes;
    blocks = static_cast<uint16_t>(tile.is_wide ? 1 << rank : 3);
  }
};

template <typename Ring>
__device__ void fetch_weights(const PromptArgs& args, const Ring& ring) {
  const PromptTiles tiles;
  Stage stage(1);
  for (int at = tiles.first; at < args.count; at += tiles.step) {
    const PromptTile tile(args, at, tiles.rank);
    PromptWeights part(args, tile, tiles.rank);
    const int pulled = tile.is_first ? args.steps - kPromptPulled : 0;
    for (int i = 0; i < args.steps; ++i) {
      barrier_wait(ring.empty + 8 * stage.index, stage.parity);
      const uint32_t full = ring.full + 8 * stage.index;
      const uint32_t to = ring.weights + stage.index * Ring::kWeightBytes + part.place;
      barrier_expect(full, part.all);
      copy_bytes_to(part.blocks, to, part.from, part.bytes, full);
      if (part.second >= 0) {
        copy_bytes_to(part.blocks, to + part.bytes, part.from + part.second, part.bytes, full);
      }
      if (i < pulled) prefetch_bytes(part.from + kPromptPulled * kPieceBytes, part.bytes);
      part.from += kPieceBytes;
      stage.next(Ring::kStages);
    }
  }
}

template <typename Ring>
__device__ void fetch_rows(const PromptArgs& args, const Ring& ring) {
  const uint64_t policy = evict_last();
  wait_for_predecessor();
  fence_async_proxy();
  const PromptTiles tiles;
  Stage stage(1);
  for (int at = tiles.first; at < args.count; at += tiles.step) {
    const PromptTile tile(args, at, tiles.rank);
    for (int i = 0; i < args.steps; ++i) {
      barrier_wait(ring.empty + 8 * stage.index, stage.parity);
      const uint32_t full = ring.full + 8 * stage.index;
      barrier_expect(full, Ring::kRowBytes);
      copy_box(ring.rows + stage.index * Ring::kRowBytes, &args.x, i * kPromptColumns, tile.row, full,
               policy);
      stage.next(Ring::kStages);
    }
  }
}

}  // namespace ion::cuda
