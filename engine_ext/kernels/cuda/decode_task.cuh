// What the kernels of decode attention share: a piece of a row's context with a unit of its heads, and a
// warp's way over the piece's blocks.
#pragma once

#include "attention_units.cuh"
#include "decode_tile.cuh"
#include "kernels.h"
#include "rope.cuh"

namespace ion::cuda {

// One piece of a decode row and a unit of its heads, shared out over kWarps warps. Nothing here depends on
// the products of this pass.
template <int D, int kWarps>
struct Task {
  Piece piece;
  Span span;
  Unit unit;
  Blocks<D> blocks;
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

// The unit's queries rotated into shared memory, behind kTileHeads of them K and V of the new token where the
// piece holds it; those go into the cache too. The warps that share `queries` wait for each other afterwards.
template <int D, int kWarps>
__device__ void rotate_row(bf16 (&queries)[kTileHeads + 2][D], const RopeKvArgs& rope, const KvCache& cache,
                           const Task<D, kWarps>& task) {
  constexpr int kMost = (kTileHeads + 2 + kWarps - 1) / kWarps;
  const int own = task.unit.num_heads, count = own + (task.holds_new_token() ? 2 : 0);
  RopedHead<D> heads[kMost];
#pragma unroll
  for (int t = 0; t < kMost; ++t) {
    const int i = task.warp + t * kWarps;
    if (i >= count) continue;
    const int head = i < own ? task.unit.first_head + i
                             : rope.num_heads + (i - own) * cache.num_kv_heads + task.unit.kv_head;
    heads[t] = RopedHead<D>(rope, cache.num_kv_heads, task.span.first_row, head, task.span.start);
  }
#pragma unroll
  for (int t = 0; t < kMost; ++t) {
    const int i = task.warp + t * kWarps;
    if (i >= count) continue;
    heads[t].store(queries[i < own ? i : kTileHeads + i - own]);
    if (i < own) continue;
    const bf16* k = task.blocks.keys_at(task.newest) + task.span.start % kKvBlock * D;
    heads[t].store(const_cast<bf16*>(k) + (i - own) * task.blocks.v_offset);
  }
}

// The tile of a task's first block. With kRopes it is loaded at once, but for the new token, which comes from
// where rotate_row left it.
template <int D, int kWarps, bool kRopes>
struct FirstBlock {
  const bf16* keys = nullptr;
  bool is_early = false, lacks_new_token = false;

  __device__ FirstBlock(DecodeTile<D>& tile, const Task<D, kWarps>& task) {
    if (task.block > task.last_block) return;
    keys = task.blocks.keys_at(__shfl_sync(0xffffffffu, task.near, 0));
    lacks_new_token = task.is_newest(task.block);
    is_early = kRopes || !lacks_new_token;
    if (is_early) load(tile, task);
  }

  __device__ void complete(DecodeTile<D>& tile, const Task<D, kWarps>& task,
                           const bf16 (*new_token)[D]) const {
    if (keys == nullptr) return;
    if (!is_early) return load(tile, task);
    if (!kRopes || !lacks_new_token) return;
    tile.replace_key(new_token[0], task.sight.high % kKvBlock);
    tile.replace_value(new_token[1], task.sight.high % kKvBlock);
  }

 private:
  __device__ void load(DecodeTile<D>& tile, const Task<D, kWarps>& task) const {
    tile.load_keys(keys);
    tile.load_values(keys + task.blocks.v_offset);
  }
};

// Every block of this warp's, from task.block on: keys of the next block are on their way while this
// one's are weighed, values while its scores are made. The first block is loaded already.
template <int D, int kWarps>
__device__ void fold_blocks(DecodeTile<D>& tile, Task<D, kWarps>& task, float scale) {
  int next_near = 1;
  for (int block = task.block; block <= task.last_block; ++next_near) {
    const int token = block * kKvBlock, next = block + kWarps;
    if (next_near == kWarp) task.look_up(next), next_near = 0;
    const int place = __shfl_sync(0xffffffffu, task.near, next_near);
    const bf16* next_keys = next <= task.last_block ? task.blocks.keys_at(place) : nullptr;
    const bool is_whole = token >= task.sight.low && token + kKvBlock - 1 <= task.sight.high;
    uint32_t p[2];
    if (is_whole) {
      tile.template score<false>(p, token, scale, task.sight);
    } else {
      tile.template score<true>(p, token, scale, task.sight);
    }
    if (next_keys != nullptr) tile.load_keys(next_keys);
    if (is_whole) {
      tile.template add_values<false>(p, token, task.sight.high);
    } else {
      tile.template add_values<true>(p, token, task.sight.high);
    }
    if (next_keys != nullptr) tile.load_values(next_keys + task.blocks.v_offset);
    block = next;
  }
}

}  // namespace ion::cuda
