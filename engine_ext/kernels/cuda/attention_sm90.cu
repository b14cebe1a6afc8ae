// Attention over prompts on Hopper: a producer warp brings tiles of 128 tokens of the paged cache by the copy
// engine, two warpgroups of 64 packed rows each multiply by wgmma. Scores of the next tile are computed while
// this one's values are added up (the pipelining within a warpgroup of Shah et al. 2024, "FlashAttention-3",
// arXiv:2407.08608).
//
// Tiles are anchored at position 0 and masked ones change nothing, bit for bit: a row's result depends on
// that row alone.
#include <cuda.h>

#include <cmath>
#include <stdexcept>

#include "attention_units.cuh"
#include "box_view.h"
#include "check.h"
#include "kernels.h"
#include "pdl.cuh"
#include "wgmma.cuh"

namespace ion::cuda {
namespace {

constexpr int kGroups = 2;                     // consumer warpgroups
constexpr int kGroupRows = 64;                 // packed rows of one
constexpr int kThreads = (1 + kGroups) * 128;  // the producer's warpgroup first
constexpr int kTokens = 128;                   // of a tile
[[maybe_unused]] constexpr int kTileBlocks = kTokens / kKvBlock;
constexpr int kStages = 3;
constexpr int kHalfBytes = kTokens * 128;  // 64 dims of a tile; of the queries too
static_assert(kWidePrefillRows == kGroups * kGroupRows && kWidePrefillRows == kTokens);

// Shared memory: queries, kStages tiles of keys, as many of values; the barriers behind them.
template <int D>
struct Tiles {
  static constexpr int kHalves = D / 64;
  static constexpr int kBytes = kHalves * kHalfBytes;
  static constexpr int kSharedBytes = 1024 + (1 + 2 * kStages) * kBytes + 4 * kStages * 8;

  uint32_t queries, barriers;

  __device__ explicit Tiles(const void* raw)
      : queries((shared_address(raw) + 1023) & ~1023u), barriers(queries + (1 + 2 * kStages) * kBytes) {}

  // plane 0: keys, 1: values
  __device__ uint32_t tile(int plane, int stage) const {
    return queries + (1 + plane * kStages + stage) * kBytes;
  }
  __device__ uint32_t full(int plane, int stage) const { return barriers + 8 * (plane * kStages + stage); }
  __device__ uint32_t empty(int plane, int stage) const { return full(plane, stage) + 16 * kStages; }
};

#if __CUDA_ARCH_FEAT_SM90_ALL

// A place among the stages and the parity of its round.
struct Turn {
  int stage = 0;
  uint32_t parity = 0;

  __device__ void next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

// The packed rows of a block: which part of which span, which heads, which tokens they see.
struct Task {
  Span span;
  Unit unit;
  int first_packed, lowest, highest;  // positions of its first and last row
  int first_tile, last_tile;

  __device__ Task(const AttentionArgs& args, const KvCache& cache, const AttentionPlan& plan, int units)
      : span(plan.spans[plan.prefill_pieces[blockIdx.x / units].span]),
        unit(args, cache, kPackedHeads, static_cast<int>(blockIdx.x) % units),
        first_packed(plan.prefill_pieces[blockIdx.x / units].part * kWidePrefillRows) {
    lowest = span.start + first_packed / unit.num_heads;
    highest = span.start + min(span.count - 1, (first_packed + kWidePrefillRows - 1) / unit.num_heads);
    first_tile = first_seen(lowest, args.window) / kTokens;
    last_tile = highest / kTokens;
  }

  __device__ bool is_empty() const { return first_packed / unit.num_heads >= span.count; }
};

// Tile after tile, a block of the cache and 64 dims a lane. Blocks behind the last position are its own
// again: what is hidden must still be finite.
template <int D>
__device__ void fetch(const Tiles<D>& tiles, const CUtensorMap& view, const KvCache& cache,
                      const Task& task) {
  const int lane = threadIdx.x % kWarp, last_block = task.highest / kKvBlock;
  const int32_t* table = cache.block_tables + static_cast<int64_t>(task.span.slot) * cache.table_stride;
  const int rows_of_block = static_cast<int>(cache.block_stride / D);
  const int plane_rows = cache.num_kv_heads * kKvBlock;
  const int first_row = static_cast<int>(cache.layer_offset / D) + task.unit.kv_head * kKvBlock;
  const int half = lane / kTileBlocks, index = lane % kTileBlocks;
  const uint64_t policy = evict_last();
  Turn turn;
  turn.parity = 1;
  for (int tile = task.first_tile; tile <= task.last_tile; ++tile, turn.next()) {
    const int block = table[min(tile * kTileBlocks + index, last_block)];
#pragma unroll
    for (int plane = 0; plane < 2; ++plane) {
      const uint32_t full = tiles.full(plane, turn.stage);
      barrier_wait(tiles.empty(plane, turn.stage), turn.parity);
      if (lane == 0) barrier_expect(full, Tiles<D>::kBytes);
      __syncwarp();
      if (half < Tiles<D>::kHalves) {
        copy_box(tiles.tile(plane, turn.stage) + half * kHalfBytes + index * kKvBlock * 128, &view, half * 64,
                 block * rows_of_block + first_row + plane * plane_rows, full, policy);
      }
    }
  }
}

__device__ __forceinline__ float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

__device__ __forceinline__ float quad_sum(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

// A warpgroup's 64 rows. A thread has rows lane / 4 (index 0) and lane / 4 + 8 (index 1) of its warp's
// sixteen.
template <int D>
class Rows {
 public:
  __device__ Rows(const Tiles<D>& tiles, const AttentionArgs& args, const Task& task)
      : tiles_(tiles),
        args_(args),
        task_(task),
        group_(static_cast<int>(threadIdx.x) / 128 - 1),
        scale_(args.scale * kLog2E) {
    const int warp = threadIdx.x / kWarp % 4, lane = threadIdx.x % kWarp;
    const int base = task.first_packed + group_ * kGroupRows;
    const int last = task.span.count - 1;
    whole_to_ = task.span.start + min(last, base / task.unit.num_heads);
    whole_from_ =
        first_seen(task.span.start + min(last, (base + kGroupRows - 1) / task.unit.num_heads), args.window);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int packed = base + warp * 16 + lane / 4 + 8 * r;
      high_[r] = task.span.start + min(last, packed / task.unit.num_heads);
      low_[r] = first_seen(high_[r], args.window);
      m_[r] = -INFINITY;
      l_[r] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < D / 2; ++i) out_[i] = 0.0f;
  }

  // Pieces of 16 bytes between global memory and this group's rows of the queries' place: `move(global,
  // shared)`; global is null behind the span's last row.
  template <typename Move>
  __device__ void each_piece(int64_t stride, int64_t first, Move move) const {
    constexpr int kPieces = D / 8;
#pragma unroll 4
    for (int i = threadIdx.x % 128; i < kGroupRows * kPieces; i += 128) {
      const int row = i / kPieces, piece = i % kPieces;
      const int packed = task_.first_packed + group_ * kGroupRows + row;
      const int token = packed / task_.unit.num_heads, head = packed % task_.unit.num_heads;
      const uint32_t at = row_address(row) + piece / 8 * kHalfBytes + ((piece % 8 ^ row % 8) << 4);
      const int64_t offset = first + (task_.span.first_row + token) * stride +
                             static_cast<int64_t>(task_.unit.first_head + head) * D + piece * 8;
      move(token < task_.span.count ? offset : -1, at);
    }
  }

  __device__ void load_queries() const {
    each_piece(args_.qkv_stride, 0, [&](int64_t from, uint32_t to) {
      uint4 piece = make_uint4(0, 0, 0, 0);
      if (from >= 0) piece = *reinterpret_cast<const uint4*>(args_.qkv + from);
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(piece.x), "r"(piece.y),
                   "r"(piece.z), "r"(piece.w)
                   : "memory");
    });
    fence_async_proxy();
    group_sync();
  }

  __device__ void run() {
    Turn turn, behind;
    begin_scores(turn);
    product_wait<0>();
    release(0, turn);
    float shrink[2];
    weigh(task_.first_tile, shrink);
    pack_weights();
    turn.next();
    for (int tile = task_.first_tile + 1; tile <= task_.last_tile; ++tile, turn.next(), behind.next()) {
      begin_scores(turn);
      begin_values(behind);
      product_wait<1>();
      release(0, turn);
      weigh(tile, shrink);
      product_wait<0>();
      release(1, behind);
#pragma unroll
      for (int i = 0; i < D / 2; ++i) out_[i] *= shrink[i / 2 % 2];
      pack_weights();
    }
    begin_values(behind);
    product_wait<0>();
    store();
  }

 private:
  __device__ uint32_t row_address(int row) const {
    return tiles_.queries + (group_ * kGroupRows + row) * 128;
  }
  __device__ void group_sync() const { asm volatile("bar.sync %0, 128;" ::"r"(1 + group_) : "memory"); }
  __device__ void release(int plane, const Turn& turn) const {
    if (threadIdx.x % kWarp == 0) barrier_arrive(tiles_.empty(plane, turn.stage));
  }

  // scores [64 x tokens] of this turn's keys
  __device__ void begin_scores(const Turn& turn) {
    barrier_wait(tiles_.full(0, turn.stage), turn.parity);
    const uint32_t queries = row_address(0), keys = tiles_.tile(0, turn.stage);
    product_fence();
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
      const uint32_t at = step / 4 * kHalfBytes + step % 4 * 32;
      AttentionProduct<kTokens>::scores(scores_, operand(queries + at), operand(keys + at), step != 0);
    }
    product_commit();
  }

  __device__ void begin_values(const Turn& turn) {
    barrier_wait(tiles_.full(1, turn.stage), turn.parity);
    const uint32_t values = tiles_.tile(1, turn.stage);
    product_fence();
#pragma unroll
    for (int step = 0; step < kTokens / 16; ++step) {
      AttentionProduct<D>::add_values(out_, weights_[step],
                                      values_operand(values + step * 16 * 128, kHalfBytes));
    }
    product_commit();
  }

  // Scores to weights relative to the rows' new maxima; shrink: what was summed before is to be scaled by.
  __device__ void weigh(int tile, float (&shrink)[2]) {
    const int token = tile * kTokens;
    if (token < whole_from_ || token + kTokens - 1 > whole_to_) hide(token);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float largest = -INFINITY;
#pragma unroll
      for (int c = 0; c < kTokens / 8; ++c) {
        largest = fmaxf(largest, fmaxf(scores_[4 * c + 2 * r], scores_[4 * c + 2 * r + 1]));
      }
      const float now = fmaxf(m_[r], quad_max(largest) * scale_);
      const float base = now == -INFINITY ? 0.0f : now;
      shrink[r] = power_of_2(m_[r] - base);
      m_[r] = now;
      float sum = 0.0f;
#pragma unroll
      for (int c = 0; c < kTokens / 8; ++c) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& score = scores_[4 * c + 2 * r + e];
          score = power_of_2(fmaf(score, scale_, -base));
          sum += score;
        }
      }
      l_[r] = l_[r] * shrink[r] + sum;
    }
  }

  __device__ void hide(int token) {
    const int first = token + 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) {
      const int at = first + i / 4 * 8 + i % 2, r = i / 2 % 2;
      if (at < low_[r] || at > high_[r]) scores_[i] = -INFINITY;
    }
  }

  // The accumulators' layout is that of the next product's first operand.
  __device__ void pack_weights() {
#pragma unroll
    for (int step = 0; step < kTokens / 16; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        weights_[step][i] = pack(scores_[8 * step + 2 * i], scores_[8 * step + 2 * i + 1]);
      }
    }
  }

  // By way of the queries' place, which nobody reads any more.
  __device__ void store() const {
    const int warp = threadIdx.x / kWarp % 4, lane = threadIdx.x % kWarp;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float factor = 1.0f / quad_sum(l_[r]);
      const int row = warp * 16 + lane / 4 + 8 * r;
#pragma unroll
      for (int c = 0; c < D / 8; ++c) {
        const uint32_t to = row_address(row) + c / 8 * kHalfBytes + ((c % 8 ^ row % 8) << 4) + lane % 4 * 4;
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(to),
                     "r"(pack(out_[4 * c + 2 * r] * factor, out_[4 * c + 2 * r + 1] * factor))
                     : "memory");
      }
    }
    group_sync();
    each_piece(static_cast<int64_t>(args_.num_heads) * D, 0, [&](int64_t to, uint32_t from) {
      uint4 piece;
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(piece.x), "=r"(piece.y), "=r"(piece.z), "=r"(piece.w)
                   : "r"(from));
      if (to >= 0) *reinterpret_cast<uint4*>(args_.dst + to) = piece;
    });
  }

  const Tiles<D>& tiles_;
  const AttentionArgs& args_;
  const Task& task_;
  const int group_;
  const float scale_;
  int whole_from_, whole_to_;  // every row of the group sees these tokens
  int low_[2], high_[2];       // what this thread's rows see
  float m_[2], l_[2];
  float out_[D / 2];
  float scores_[kTokens / 2];
  uint32_t weights_[kTokens / 16][4];
};

#endif

template <int D>
__global__ void __launch_bounds__(kThreads, 1)
    prefill_sm90_kernel(const AttentionArgs args, const KvCache cache, const AttentionPlan plan,
                        const __grid_constant__ CUtensorMap view, int units) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint8_t raw[];
  let_successor_start();
  const Tiles<D> tiles(raw);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2 * kStages; ++i) {
      barrier_init(tiles.full(0, 0) + 8 * i, 1);
      barrier_init(tiles.empty(0, 0) + 8 * i, kGroups * 4);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    fence_async_proxy();
  }
  __syncthreads();
  const Task task(args, cache, plan, units);
  wait_for_predecessor();
  if (task.is_empty()) return;
  if (threadIdx.x < 128) {
    leave_registers<24>();
    if (threadIdx.x < kWarp) fetch<D>(tiles, view, cache, task);
  } else {
    take_registers<240>();
    Rows<D> rows(tiles, args, task);
    rows.load_queries();
    rows.run();
  }
#endif
}

}  // namespace

bool is_wide_prefill_shape(int32_t head_dim) {
  int device = 0, major = 0;
  check(cudaGetDevice(&device), "device");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "device");
  return major == 9 && (head_dim == 64 || head_dim == 128);
}

CUtensorMap kv_view(const bf16* base, int64_t num_elements, int32_t head_dim) {
  return box_view(base, num_elements / head_dim, head_dim, kKvBlock, sizeof(bf16));
}

void attention_prefill_wide(const AttentionArgs& args, const KvCache& cache, const AttentionPlan& plan,
                            const CUtensorMap& view, int32_t num_pieces, cudaStream_t stream) {
  const int units = units_of(args.num_heads, cache.num_kv_heads, kPackedHeads);
  if (num_pieces == 0) return;
  const auto launch = [&](auto* kernel, int shared_bytes) {
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                               cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
          "shared memory of attention");
    launch_in_chain("attention of prefill rows", kernel, dim3(num_pieces * units), dim3(kThreads),
                    shared_bytes, stream, args, cache, plan, view, units);
  };
  if (args.head_dim == 64) return launch(prefill_sm90_kernel<64>, Tiles<64>::kSharedBytes);
  if (args.head_dim == 128) return launch(prefill_sm90_kernel<128>, Tiles<128>::kSharedBytes);
  throw std::runtime_error("attention: no wide kernel for this head_dim");
}

}  // namespace ion::cuda
