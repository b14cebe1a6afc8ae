// What a block of prompts' attention on Hopper is given to do, and the warps that bring it: one plans the
// pieces, one fetches tiles of the cache by the copy engine, two load queries. All run ahead of the
// warpgroups that multiply, into the next piece.
#pragma once

#include <cuda.h>

#include "async.cuh"
#include "attention_units.cuh"
#include "kernels.h"
#include "pdl.cuh"

namespace ion::cuda {

constexpr int kGroups = 2;      // consumer warpgroups
constexpr int kGroupRows = 64;  // packed rows of one
constexpr int kGroupWarps = 4;
constexpr int kThreads = (1 + kGroups) * 128;  // the producers' warpgroup first
constexpr int kTokens = kWideTileTokens;       // of a tile
constexpr int kTileBlocks = kTokens / kKvBlock;
constexpr int kHalfBytes = kTokens * 128;  // 64 dims of a tile; of a piece's queries too
constexpr int kPieces = 2;                 // in shared memory: what is computed and what comes next
constexpr int kLoaders = 2 * kWarp;        // threads that load queries
static_assert(kWidePrefillRows == kGroups * kGroupRows && kWidePrefillRows == kTokens);

// What a launch is about: so many pieces' units, each cut into so many runs of tiles.
struct PrefillWork {
  int units, cuts, total;
};

// The packed rows of a piece: which part of which span, which heads, which tokens they see; and of these the
// tiles of one of its cuts.
struct PrefillTask {
  Span span;
  Unit unit;
  int first_packed, last_block;  // of the cache that is seen
  int first_tile, last_tile;
  int whole, part, num_parts;  // the work's number before it was cut; cuts without a tile are none

  __device__ PrefillTask(const AttentionArgs& args, const KvCache& cache, const AttentionPlan& plan,
                         const PrefillWork& all, int work)
      : span(plan.spans[plan.prefill_pieces[work / all.cuts / all.units].span]),
        unit(args, cache, kPackedHeads, work / all.cuts % all.units),
        first_packed(plan.prefill_pieces[work / all.cuts / all.units].part * kWidePrefillRows),
        whole(work / all.cuts) {
    const int lowest = span.start + first_packed / unit.num_heads;
    const int highest =
        span.start + min(span.count - 1, (first_packed + kWidePrefillRows - 1) / unit.num_heads);
    last_block = highest / kKvBlock;
    first_tile = first_seen(lowest, args.window) / kTokens;
    last_tile = highest / kTokens;
    const int tiles = last_tile - first_tile + 1, cut = work % all.cuts, before = tiles * cut / all.cuts;
    last_tile = first_tile + tiles * (cut + 1) / all.cuts - 1;
    first_tile += before;
    part = min(cut, before);
    num_parts = min(tiles, all.cuts);
  }

  __device__ bool is_empty() const {
    return first_packed / unit.num_heads >= span.count || first_tile > last_tile;
  }
};

// Shared memory: the queries of kPieces pieces, a ring of tiles, keys and values in the order in which they
// are multiplied; the tasks and barriers behind them.
template <int D>
struct Tiles {
  static constexpr int kHalves = D / 64;
  static constexpr int kBytes = kHalves * kHalfBytes;
  static constexpr int kStages = 5 * 128 / D;
  static constexpr int kTaskBytes = 64;
  static constexpr int kSharedBytes =
      1024 + (kPieces + kStages) * kBytes + kPieces * kTaskBytes + (3 * kPieces + 2 * kStages) * 8;
  static_assert(sizeof(PrefillTask) <= kTaskBytes);

  uint32_t first;
  uint8_t* tasks;

  __device__ explicit Tiles(uint8_t* raw) : first((shared_address(raw) + 1023) & ~1023u) {
    tasks = raw + (first - shared_address(raw)) + (kPieces + kStages) * kBytes;
  }

  __device__ uint32_t queries(int piece) const { return first + piece * kBytes; }
  __device__ uint32_t tile(int stage) const { return first + (kPieces + stage) * kBytes; }
  // Nothing to do any more: its span is empty.
  __device__ PrefillTask* task(int piece) const {
    return reinterpret_cast<PrefillTask*>(tasks + piece * kTaskBytes);
  }

  // The task is there, its queries' place free; the queries are there; they are read no more.
  __device__ uint32_t planned(int piece) const { return barriers() + 8 * piece; }
  __device__ uint32_t loaded(int piece) const { return barriers() + 8 * (kPieces + piece); }
  __device__ uint32_t done(int piece) const { return barriers() + 8 * (2 * kPieces + piece); }
  __device__ uint32_t full(int stage) const { return barriers() + 8 * (3 * kPieces + stage); }
  __device__ uint32_t empty(int stage) const { return full(stage) + 8 * kStages; }

  __device__ void init() const {
    for (int i = 0; i < kPieces; ++i) {
      barrier_init(planned(i), 1);
      barrier_init(loaded(i), kLoaders);
      barrier_init(done(i), kGroups * kGroupWarps);
    }
    for (int i = 0; i < kStages; ++i) {
      barrier_init(full(i), 1);
      barrier_init(empty(i), kGroups * kGroupWarps);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    fence_async_shared();
  }

 private:
  __device__ uint32_t barriers() const { return first + (kPieces + kStages) * kBytes + kPieces * kTaskBytes; }
};

#if __CUDA_ARCH_FEAT_SM90_ALL

// The next of the launch's pieces that no block has taken. Every block asks until there is none; the last one
// to ask leaves the counter at 0.
__device__ __forceinline__ int take_work(uint32_t* taken, int total) {
  const auto before = static_cast<int>(atomicAdd(taken, 1u));
  if (before == total - 1) *taken = 0;
  return before + static_cast<int>(gridDim.x);
}

// By one thread: the block's pieces, the first that of its index.
template <int D>
__device__ void plan_pieces(const Tiles<D>& tiles, const AttentionArgs& args, const KvCache& cache,
                            const AttentionPlan& plan, const PrefillWork& all) {
  Stage piece(0);
  bool has_waited = false;
  for (int work = blockIdx.x; work < all.total;) {
    const PrefillTask task(args, cache, plan, all, work);
    if (!has_waited) wait_for_predecessor(), has_waited = true;
    work = take_work(args.arrivals, all.total);
    if (task.is_empty()) continue;
    barrier_wait(tiles.done(piece.index), piece.parity ^ 1);
    *tiles.task(piece.index) = task;
    barrier_arrive(tiles.planned(piece.index));
    piece.next(kPieces);
  }
  barrier_wait(tiles.done(piece.index), piece.parity ^ 1);
  tiles.task(piece.index)->span.count = 0;
  barrier_arrive(tiles.planned(piece.index));
}

// By two warps, 16 bytes a thread at a time; zeros behind the span's last row.
template <int D>
__device__ void load_queries(const Tiles<D>& tiles, const AttentionArgs& args) {
  constexpr int kParts = D / 8, kRows = kLoaders / kParts;  // rows at a time
  const int thread = static_cast<int>(threadIdx.x) % kLoaders, part = thread % kParts;
  for (Stage piece(0);; piece.next(kPieces)) {
    barrier_wait(tiles.planned(piece.index), piece.parity);
    const PrefillTask task = *tiles.task(piece.index);
    const int heads = task.unit.num_heads, packed = task.first_packed + thread / kParts;
    int token = packed / heads, head = packed % heads;
    const bf16* from = args.qkv + static_cast<int64_t>(task.span.first_row) * args.qkv_stride +
                       task.unit.first_head * D + part * 8;
    const uint32_t to = tiles.queries(piece.index) + part / 8 * kHalfBytes;
#pragma unroll 4
    for (int row = thread / kParts; row < kWidePrefillRows && task.span.count > 0; row += kRows) {
      const bool is_there = token < task.span.count;
      copy_async_or_zero(to + row * 128 + ((part % 8 ^ row % 8) << 4),
                         is_there ? from + static_cast<int64_t>(token) * args.qkv_stride + head * D : from,
                         is_there);
      token += kRows / heads;
      head += kRows % heads;
      if (head >= heads) head -= heads, ++token;
    }
    await_copies();
    fence_async_shared();
    barrier_arrive(tiles.loaded(piece.index));
    if (task.span.count == 0) return;
  }
}

// By one warp: tile after tile, a block of the cache a lane; the values of a tile behind the next one's keys,
// be they of the next piece. Blocks behind the last position are its own again: what is hidden must still be
// finite.
template <int D>
__device__ void fetch(const Tiles<D>& tiles, const CUtensorMap& view, const KvCache& cache) {
  constexpr int kBlockBytes = kKvBlock * D * 2;
  const int lane = threadIdx.x % kWarp, index = lane % kTileBlocks;
  const int rows_of_block = static_cast<int>(cache.block_stride / D);
  const int plane_rows = cache.num_kv_heads * kKvBlock;
  const uint64_t policy = evict_last();
  Stage turn(1);
  const auto bring = [&](int row) {
    const uint32_t full = tiles.full(turn.index);
    barrier_wait(tiles.empty(turn.index), turn.parity);
    if (lane == 0) barrier_expect(full, Tiles<D>::kBytes);
    __syncwarp();
    if (lane < kTileBlocks) {
      copy_box(tiles.tile(turn.index) + lane * kBlockBytes, &view, {0, 0, 0, row / 8}, full, policy);
    }
    turn.next(Tiles<D>::kStages);
  };
  int values = -1;  // where those of the tile before begin
  for (Stage piece(0);; piece.next(kPieces)) {
    barrier_wait(tiles.planned(piece.index), piece.parity);
    const PrefillTask task = *tiles.task(piece.index);
    if (task.span.count == 0) break;
    const int32_t* table = cache.block_tables + static_cast<int64_t>(task.span.slot) * cache.table_stride;
    const int first_row = static_cast<int>(cache.layer_offset / D) + task.unit.kv_head * kKvBlock;
    int block = table[min(task.first_tile * kTileBlocks + index, task.last_block)];
    for (int tile = task.first_tile; tile <= task.last_tile; ++tile) {
      const int keys = block * rows_of_block + first_row;
      block = table[min((tile + 1) * kTileBlocks + index, task.last_block)];
      bring(keys);
      if (values >= 0) bring(values);
      values = keys + plane_rows;
    }
  }
  if (values >= 0) bring(values);
}

#endif

}  // namespace ion::cuda
