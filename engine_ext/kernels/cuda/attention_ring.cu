// Decode attention at the pace of the cache, on Hopper: a warp for each piece and unit of heads, as in
// attention_narrow.cu, but its blocks come by the copy engine into a ring of its own in shared memory. So a
// warp has several blocks on their way, those of its next piece among them, whatever its registers hold.
//
// A block of it fills a multiprocessor: no product starts beside it. Where there is little to read, kernels
// that leave room are better.
#include <algorithm>
#include <stdexcept>

#include "async.cuh"
#include "attention_decode.h"
#include "box_view.h"
#include "check.h"
#include "decode_merge.cuh"
#include "decode_task.cuh"
#include "pdl.cuh"
#include "ring_tile.cuh"

namespace ion::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;
constexpr int kRingBytes = 192 * 1024;  // of all warps
constexpr int kMostStages = 8;

// Each warp's stages, tiles as RingTile has them; and the barriers behind them.
template <int D>
struct KvRing {
  static constexpr int kTileBytes = 2 * RingTile<D>::kPlaneBytes;
  static constexpr int kStages = std::min(kMostStages, kRingBytes / (kWarps * kTileBytes));
  static constexpr int kSharedBytes = 1024 + kWarps * kStages * (kTileBytes + 8);

  uint32_t tiles, barriers;  // of this warp

  __device__ uint32_t tile(const Stage& stage) const { return tiles + stage.index * kTileBytes; }
  __device__ uint32_t barrier(const Stage& stage) const { return barriers + stage.index * 8; }

  __device__ explicit KvRing(const void* raw) {
    const int warp = threadIdx.x / kWarp;
    const uint32_t begin = (shared_address(raw) + 1023) & ~1023u;
    tiles = begin + warp * kStages * kTileBytes;
    barriers = begin + kWarps * kStages * kTileBytes + warp * kStages * 8;
  }

  __device__ void init() const {
    const int lane = threadIdx.x % kWarp;
    if (lane < kStages) barrier_init(barriers + 8 * lane, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    fence_async_proxy();
    __syncwarp();
  }
};

#if __CUDA_ARCH__ >= 900

// A warp's line of blocks, piece after piece: asks for them ahead of whoever computes. What it needs to know
// of a piece it asks for a piece ahead, so that it never waits.
template <int D>
class Feeder {
 public:
  __device__ Feeder(const KvRing<D>& of_warp, const CUtensorMap& of_cache, const AttentionArgs& with,
                    const KvCache& in, const AttentionPlan& by, int num_units)
      : ring(of_warp),
        view(of_cache),
        args(with),
        cache(in),
        plan(by),
        units(num_units),
        total(plan.counts[0] * units),
        rows_of_block(static_cast<int>(cache.block_stride / D)),
        work(blockIdx.x + threadIdx.x / kWarp * gridDim.x),
        policy(evict_first()) {
    const Piece first = piece_of(work);
    ahead = {first, plan.spans[first.span]};
    after = piece_of(work + stride());
    find();
    for (int i = 0; i < KvRing<D>::kStages; ++i) bring(next_row());
  }

  // Where the next block lies in the view. Long before it is asked for, since it comes from another lane.
  __device__ int next_row() const { return __shfl_sync(0xffffffffu, near, at) * rows_of_block + first_row; }

  // The next block, if there is one, into a stage that nobody reads any more.
  __device__ void bring(int row) {
    if (work >= total) return;
    if (is_elected()) {
      barrier_expect(ring.barrier(stage), KvRing<D>::kTileBytes);
      copy_box(ring.tile(stage), &view, {0, row, 0, 0}, ring.barrier(stage), policy);
    }
    stage.next(KvRing<D>::kStages);
    if (++block > last_block) {
      work += stride();
      find();
    } else if (++at == kWarp) {
      look_up();
    }
  }

 private:
  struct Known {
    Piece piece;
    Span span;
  };

  const KvRing<D>& ring;
  const CUtensorMap& view;
  const AttentionArgs& args;
  const KvCache& cache;
  const AttentionPlan& plan;
  const int units, total, rows_of_block;
  int work, block = 0, last_block = 0, first_row = 0;
  int near = 0, at = 0;  // lane i: the place of the i-th block from the one that was looked up; the next
  const uint64_t policy;
  Known ahead;  // of `work`, until it is found
  Piece after;  // the one behind
  const int32_t* table = nullptr;
  Stage stage{0};

  __device__ static int stride() { return gridDim.x * kWarps; }
  __device__ Piece piece_of(int of_work) const { return plan.decode_pieces[min(of_work, total - 1) / units]; }
  __device__ void look_up() {
    const int index = block + static_cast<int>(threadIdx.x) % kWarp;
    near = index <= last_block ? table[index] : 0;
    at = 0;
  }
  // The first block of `work`, or of the next one that this layer sees.
  __device__ void find() {
    for (; work < total; work += stride()) {
      const auto [piece, span] = ahead;
      ahead = {after, plan.spans[after.span]};
      after = piece_of(work + 2 * stride());
      const int part_tokens = plan.counts[3];
      block = max(piece.part * part_tokens, first_seen(span.start, args.window)) / kKvBlock;
      last_block = min((piece.part + 1) * part_tokens - 1, span.start) / kKvBlock;
      if (block > last_block) continue;
      const Unit unit(args, cache, kTileHeads, work % units);
      first_row = static_cast<int>(cache.layer_offset / D) + unit.kv_head * kKvBlock;
      table = cache.block_tables + static_cast<int64_t>(span.slot) * cache.table_stride;
      look_up();
      return;
    }
  }
};

// The new token's row of a tile, and zeros for the values behind it, which may be what a broken sequence
// left.
template <int D>
__device__ void complete_tile(uint32_t tile, const bf16 (*new_token)[D], int row) {
  const auto at = [&](int plane, int of_row, int piece) {  // of 16 bytes
    return tile + plane * RingTile<D>::kPlaneBytes + piece / 8 * RingTile<D>::kHalfBytes + of_row * 128 +
           (piece % 8 ^ of_row % 8) * 16;
  };
  constexpr int kPieces = D / 8;
  const int lane = threadIdx.x % kWarp;
  if (lane < 2 * kPieces) {
    const int plane = lane / kPieces, piece = lane % kPieces;
    store_shared(at(plane, row, piece), *reinterpret_cast<const float4*>(new_token[plane] + piece * 8));
  }
  for (int i = (row + 1) * kPieces + lane; i < kKvBlock * kPieces; i += kWarp) {
    store_shared(at(1, i / kPieces, i % kPieces), make_float4(0.0f, 0.0f, 0.0f, 0.0f));
  }
  __syncwarp();
}

// The row's heads that the task is about, K and V behind kTileHeads queries.
template <int D>
struct RotatedHeads {
  static constexpr int kSlots = RowSlots<D, 1>::kSlots, kAtOnce = kSlots / 2;
  static_assert(kSlots % kAtOnce == 0);
  bf16 heads[kSlots][D];

  // Half of them on their way together, biases too: no piece has been begun that needs the registers.
  __device__ void fill(const RopeKvArgs& rope, const KvCache& cache, const Task<D, 1>& task) {
    const RowSlots<D, 1> slots{rope, cache, task};
    const Rotation<D> rotation(rope.rotations, task.span.start);
#pragma unroll 1
    for (int first = 0; first < kSlots; first += kAtOnce) {
      RopedHead<D> roped[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (slots.is_wanted(first + i)) roped[i] = RopedHead<D>(slots.row() + slots.head_of(first + i) * D);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (!slots.is_wanted(first + i)) continue;
        const int head = slots.head_of(first + i);
        roped[i].rotate(rope, cache.num_kv_heads, head, rope.bias != nullptr ? rope.bias + head * D : nullptr,
                        rotation);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (slots.is_wanted(first + i)) slots.store(first + i, roped[i], heads[first + i]);
      }
    }
    __syncwarp();
  }
};

// A warp's pieces.
template <int D>
__device__ void run(const KvRing<D>& ring, const CUtensorMap& view, RotatedHeads<D>& row,
                    const AttentionArgs& args, const KvCache& cache, const AttentionPlan& plan,
                    const RopeKvArgs& rope) {
  const int group = args.num_heads / cache.num_kv_heads;
  const int units = cache.num_kv_heads * ((group + kTileHeads - 1) / kTileHeads);
  const int total = plan.counts[0] * units;
  const float scale = args.scale * kLog2E;
  int work = blockIdx.x + threadIdx.x / kWarp * gridDim.x;
  if (work >= total) return wait_for_predecessor();
  Feeder<D> feeder(ring, view, args, cache, plan, units);
  Stage stage(0);
  bool has_waited = false;
#pragma unroll 1
  for (; work < total; work += gridDim.x * kWarps) {
    const Task<D, 1> task(args, cache, plan, units, work, 0);
    if (!task.is_seen()) continue;  // other layers see it
    if (!has_waited) wait_for_predecessor(), has_waited = true;
    row.fill(rope, cache, task);
    RingTile<D> tile;
    tile.load(row.heads, task.unit.num_heads);
#pragma unroll 1
    for (int block = task.block; block <= task.last_block; ++block, stage.next(KvRing<D>::kStages)) {
      const int next_row = feeder.next_row();
      barrier_wait(ring.barrier(stage), stage.parity);
      const bool is_newest = task.is_newest(block);
      if (is_newest) complete_tile<D>(ring.tile(stage), row.heads + kTileHeads, task.sight.high % kKvBlock);
      tile.fold(ring.tile(stage), block * kKvBlock, scale, task.sight);
      if (is_newest) fence_async_shared();  // what comes into the stage comes behind what was written there
      __syncwarp();
      feeder.bring(next_row);
    }
    finish_piece<D>(tile, args, task, units, work);
    __syncwarp();
  }
  if (!has_waited) wait_for_predecessor();  // every kernel of the chain does
}

#endif

template <int D>
__global__ void __launch_bounds__(kThreads, 1)
    ring_kernel(const AttentionArgs args, const KvCache cache, const AttentionPlan plan,
                const RopeKvArgs rope, const __grid_constant__ CUtensorMap view) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ uint8_t raw[];
  __shared__ __align__(16) RotatedHeads<D> rows[kWarps];
  let_successor_start();
  const KvRing<D> ring(raw);
  ring.init();
  run<D>(ring, view, rows[threadIdx.x / kWarp], args, cache, plan, rope);
#endif
}

}  // namespace

int32_t ring_warps() {
  return kWarps;
}

bool is_ring_shape(int32_t head_dim) {
  return is_wide_prefill_shape(head_dim);  // what its box needs is the same
}

CUtensorMap kv_planes(const bf16* base, int64_t num_elements, int32_t num_kv_heads, int32_t head_dim) {
  const int64_t plane_rows = int64_t{num_kv_heads} * kKvBlock, row_bytes = head_dim * int64_t{sizeof(bf16)};
  return planes_view(base, num_elements / head_dim - plane_rows, row_bytes, kKvBlock, plane_rows * row_bytes);
}

void attention_decode_ring(const AttentionArgs& args, const KvCache& cache, const AttentionPlan& plan,
                           const RopeKvArgs& rope, const CUtensorMap& planes, int32_t pieces, int32_t num_sms,
                           cudaStream_t stream) {
  const int32_t grid = std::min(pieces, num_sms);
  for_wide_head_dim(args.head_dim, [&](auto dim) {
    constexpr int D = decltype(dim)::value;
    allow_shared(ring_kernel<D>, KvRing<D>::kSharedBytes);
    launch_in_chain("attention at the pace of the cache", ring_kernel<D>, dim3(grid), dim3(kThreads),
                    KvRing<D>::kSharedBytes, stream, args, cache, plan, rope, planes);
  });
}

}  // namespace ion::cuda
