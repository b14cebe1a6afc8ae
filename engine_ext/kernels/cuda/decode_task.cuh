// What the kernels of decode attention share: a piece of a row's context with a unit of its heads, and a
// warp's way over the piece's blocks.
#pragma once

#include <type_traits>

#include "attention_units.cuh"
#include "code_tile.cuh"
#include "decode_tile.cuh"
#include "kernels.h"
#include "rope.cuh"

namespace ion::cuda {

// What reads a cache of Kv: bf16 or codes.
template <int D, typename Kv>
using TileOf = std::conditional_t<std::is_same_v<Kv, bf16>, DecodeTile<D>, CodeTile<(D % 64 == 0 ? D : 64)>>;

// One piece of a decode row and a unit of its heads, shared out over kWarps warps. Nothing here depends on
// the products of this pass.
template <int D, int kWarps, typename Kv = bf16>
struct Task {
  Piece piece;
  Span span;
  Unit unit;
  Blocks<D, Kv> blocks;
  Sight sight;
  int part_tokens, first_part, num_parts;
  int warp;               // of kWarps
  int block, last_block;  // this warp's first, and the piece's last
  int newest;             // the new token's block in the pool
  int near;               // lane i: where the warp's i-th block is

  __device__ Task(const AttentionArgs& args, const KvCache& cache, const AttentionPlan& plan, int units,
                  int work, int own_warp)
      : piece(plan.decode_pieces[work / units]),
        span(plan.spans[piece.span]),
        unit(args, cache, kTileHeads, work % units),
        blocks(cache, span.slot, unit.kv_head),
        sight{first_seen(span.start, args.window), span.start},
        part_tokens(plan.counts[3]),
        warp(own_warp) {
    first_part = sight.low / part_tokens;
    num_parts = sight.high / part_tokens - first_part + 1;
    block = max(piece.part * part_tokens, sight.low) / kKvBlock + warp;
    last_block = min((piece.part + 1) * part_tokens - 1, sight.high) / kKvBlock;
    newest = blocks.table[sight.high / kKvBlock];
    look_up(block);
  }

  __device__ bool is_seen() const { return piece.part >= first_part; }
  __device__ bool holds_new_token() const { return piece.part == first_part + num_parts - 1; }
  // Whether a block holds the new token.
  __device__ bool is_newest(int index) const { return index == sight.high / kKvBlock; }
  __device__ bf16* output(const AttentionArgs& args) const {
    return args.dst + (static_cast<int64_t>(span.first_row) * args.num_heads + unit.first_head) * D;
  }
  __device__ const bf16* queries(const AttentionArgs& args) const {
    return args.qkv + static_cast<int64_t>(span.first_row) * args.qkv_stride + unit.first_head * D;
  }
  // The next 32 of the warp's blocks, from `first` on.
  __device__ void look_up(int first) {
    const int index = first + static_cast<int>(threadIdx.x) % kWarp * kWarps;
    near = index <= last_block ? blocks.table[index] : 0;
  }
};

// The heads of a row that its warps rotate: the unit's queries, and behind kTileHeads of them K and V where
// the piece holds the new token.
template <int D, int kWarps, typename Kv = bf16>
struct RowSlots {
  static constexpr int kSlots = kTileHeads + 2;
  const RopeKvArgs& rope;
  const KvCache& cache;
  const Task<D, kWarps, Kv>& task;

  __device__ bool is_wanted(int slot) const {
    return slot < kTileHeads ? slot < task.unit.num_heads : task.holds_new_token();
  }
  __device__ int head_of(int slot) const {
    if (slot < kTileHeads) return task.unit.first_head + slot;
    return rope.num_heads + (slot - kTileHeads) * cache.num_kv_heads + task.unit.kv_head;
  }
  __device__ const bf16* row() const {
    return rope.qkv + int64_t{task.span.first_row} * (rope.num_heads + 2 * cache.num_kv_heads) * D;
  }
  // A rotated head; K and V go into the cache too. Where that holds codes, so does `to`, and behind them
  // their scale.
  __device__ void store(int slot, const RopedHead<D>& head, bf16* to) const {
    if (slot < kTileHeads) return head.store(to);
    const Kv* keys = task.blocks.keys_at(task.newest);
    const int plane = slot - kTileHeads, token = task.span.start % kKvBlock;
    Kv* row = const_cast<Kv*>(keys) + plane * task.blocks.v_offset + token * D;
    if constexpr (std::is_same_v<Kv, bf16>) {
      head.store(to);
      head.store(row);
    } else {
      auto* codes = reinterpret_cast<uint8_t*>(to);
      __syncwarp();  // they take the place of values that other lanes read
      const float scale = head.store_codes(row, codes);
      if (threadIdx.x % kWarp != 0) return;
      const_cast<float*>(task.blocks.scales_of(keys))[plane * task.blocks.v_of_scales + token] = scale;
      *reinterpret_cast<float*>(codes + D) = scale;
    }
  }
};

// Shared memory of the warps that rotate a row's heads.
template <int D>
struct RowSpace {
  bf16 heads[kTileHeads + 2][D];
  float bias[kTileHeads + 2][D];
};

// All are on their way at once, biases before the product that they are added to is done. Little code, since
// the kernel is over before much of it could be fetched.
template <int D, int kWarps, typename Kv>
class RowHeads {
 public:
  __device__ RowHeads(RowSpace<D>& in, const RopeKvArgs& rope, const KvCache& cache,
                      const Task<D, kWarps, Kv>& task)
      : space(in), slots{rope, cache, task}, rotation(rope.rotations, task.span.start) {
    if (rope.bias == nullptr) return;
    each_piece<float>([&](int slot, int head, int at) {
      copy_async(&space.bias[slot][at], slots.rope.bias + head * D + at);
    });
  }

  // The product is done.
  __device__ void fetch() const {
    const bf16* row = slots.row();
    each_piece<bf16>(
        [&](int slot, int head, int at) { copy_async(&space.heads[slot][at], row + head * D + at); });
  }

  // This thread's are there; before `rotate` the warps meet, and after it again.
  __device__ void await() const { await_copies(); }

  // In place.
  __device__ void rotate() const {
#pragma unroll 1
    for (int slot = kTileHeads + 1 - slots.task.warp; slot >= 0; slot -= kWarps) {
      if (!slots.is_wanted(slot)) continue;
      RopedHead<D> head(space.heads[slot]);
      head.rotate(slots.rope, slots.cache.num_kv_heads, slots.head_of(slot),
                  slots.rope.bias != nullptr ? space.bias[slot] : nullptr, rotation);
      slots.store(slot, head, space.heads[slot]);
    }
  }

 private:
  RowSpace<D>& space;
  const RowSlots<D, kWarps, Kv> slots;
  Rotation<D> rotation;

  // Calls f(slot, head, first dim) for this thread's pieces of 16 bytes.
  template <typename T, typename F>
  __device__ void each_piece(F f) const {
    constexpr int kValues = 16 / sizeof(T), kOfHead = D / kValues, kThreads = kWarps * kWarp;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x) % kThreads; i < (kTileHeads + 2) * kOfHead; i += kThreads) {
      const int slot = i / kOfHead;
      if (slots.is_wanted(slot)) f(slot, slots.head_of(slot), i % kOfHead * kValues);
    }
  }
};

// The tile of a task's first block. With kRopes it is loaded at once, but for the new token, which comes from
// where RowHeads left it.
template <int D, int kWarps, typename Kv, bool kRopes>
struct FirstBlock {
  using Tile = TileOf<D, Kv>;
  const Kv* keys = nullptr;
  bool is_early = false, lacks_new_token = false;

  __device__ FirstBlock(Tile& tile, const Task<D, kWarps, Kv>& task) {
    if (task.block > task.last_block) return;
    keys = task.blocks.keys_at(__shfl_sync(0xffffffffu, task.near, 0));
    lacks_new_token = task.is_newest(task.block);
    is_early = kRopes || !lacks_new_token;
    if (is_early) load(tile, task);
  }

  __device__ void complete(Tile& tile, const Task<D, kWarps, Kv>& task, const bf16 (*new_token)[D]) const {
    if (keys == nullptr) return;
    if (!is_early) return load(tile, task);
    if (!kRopes || !lacks_new_token) return;
    tile.replace_key(new_token[0], task.sight.high % kKvBlock);
    tile.replace_value(new_token[1], task.sight.high % kKvBlock);
  }

 private:
  __device__ void load(Tile& tile, const Task<D, kWarps, Kv>& task) const {
    tile.load_keys(keys, task.blocks);
    tile.load_values(keys, task.blocks);
  }
};

// Every block of this warp's, from task.block on: keys of the next block are on their way while this
// one's are weighed, values while its scores are made. The first block is loaded already.
template <int D, int kWarps, typename Kv>
__device__ void fold_blocks(TileOf<D, Kv>& tile, Task<D, kWarps, Kv>& task, float scale) {
  int next_near = 1;
#pragma unroll 1
  for (int block = task.block; block <= task.last_block; ++next_near) {
    const int token = block * kKvBlock, next = block + kWarps;
    if (next_near == kWarp) task.look_up(next), next_near = 0;
    const int place = __shfl_sync(0xffffffffu, task.near, next_near);
    const Kv* next_keys = next <= task.last_block ? task.blocks.keys_at(place) : nullptr;
    uint32_t p[2];
    tile.score(p, token, scale, task.sight);
    if (next_keys != nullptr) tile.load_keys(next_keys, task.blocks);
    if (token + kKvBlock - 1 > task.sight.high) tile.hide_values(token, task.sight.high);
    tile.add_values(p);
    if (next_keys != nullptr) tile.load_values(next_keys, task.blocks);
    block = next;
  }
}

}  // namespace ion::cuda
