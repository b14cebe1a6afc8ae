// A consumer warpgroup's part of a block's work in a streamed product: multiply, add up, finish, store.
#pragma once

#include <type_traits>

#include "stream_fetch.cuh"
#include "vec.cuh"
#include "wgmma.cuh"

namespace ion::cuda {

constexpr int kConsumers = kGroups * 128;  // threads

// Eight tokens, group j, of sixteen weight rows of a warp, the first of which is `row`. A thread's d[0], d[1]
// are row lane / 4 of tokens 2 (lane % 4) and the next, d[2], d[3] row lane / 4 + 8.
template <StreamOutput kOutput>
__device__ __forceinline__ void store_tokens(const StreamArgs& args, int row, int j, const float4& d) {
  const int lane = threadIdx.x % kWarp;
  if constexpr (kOutput == StreamOutput::float32) {
    const int token = 8 * j + 2 * (lane % 4);
    float* y = static_cast<float*>(args.y) + static_cast<int64_t>(token) * args.ldy + row + lane / 4;
    if (token < args.m) y[0] = d.x, y[8] = d.z;
    if (token + 1 < args.m) y[args.ldy] = d.y, y[args.ldy + 8] = d.w;
    return;
  }
  const int token = 8 * j + lane / 4;
  auto* y = static_cast<__nv_bfloat16*>(args.y) + static_cast<int64_t>(token) * args.ldy + 2 * (lane % 4);
  if constexpr (kOutput == StreamOutput::silu_mul) {
    const uint32_t pair = transposed(pack(silu(d.x) * d.z, silu(d.y) * d.w));
    if (token < args.m) *reinterpret_cast<uint32_t*>(y + row / 2) = pair;
  } else {
    const uint32_t low = transposed(pack(d.x, d.y)), high = transposed(pack(d.z, d.w));
    if (token >= args.m) return;
    *reinterpret_cast<uint32_t*>(y + row) = low;
    *reinterpret_cast<uint32_t*>(y + row + 8) = high;
  }
}

// Calls store(output): one loop for each, so that what runs lies together.
template <typename F>
__device__ __forceinline__ void for_output(StreamOutput output, F store) {
  if (output == StreamOutput::float32) {
    store(std::integral_constant<StreamOutput, StreamOutput::float32>());
  } else if (output == StreamOutput::silu_mul) {
    store(std::integral_constant<StreamOutput, StreamOutput::silu_mul>());
  } else {
    store(std::integral_constant<StreamOutput, StreamOutput::bf16>());
  }
}

[[maybe_unused]] __device__ __forceinline__ void group_sync(int group) {
  asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");
}

// Tokens' scales are in shared memory: by the warp that put them there, and by all consumers.
[[maybe_unused]] __device__ __forceinline__ void announce_scales() {
  asm volatile("bar.arrive 3, %0;" ::"n"(kConsumers + kWarp) : "memory");
}
[[maybe_unused]] __device__ __forceinline__ void await_scales() {
  asm volatile("bar.sync 3, %0;" ::"n"(kConsumers + kWarp) : "memory");
}

// The scales of tokens' e4m3 codes, to [TN] in shared memory, by one warp.
template <int TN>
__device__ void provide_scales(const StreamArgs& args, float* to) {
  wait_for_predecessor();
#pragma unroll
  for (int token = threadIdx.x % kWarp; token < TN; token += kWarp) {
    to[token] = token < args.m ? __ldcg(args.x_scales + token) : 0.0f;
  }
  __threadfence_block();
  announce_scales();
}

template <int TN, bool kIsE4m3>
struct Consumer {
  using Multiply = std::conditional_t<kIsE4m3, ProductE4m3<TN>, Product<TN>>;
  static constexpr int kColumns = TN / 8;         // groups of eight tokens
  static constexpr int kStride = kColumns * 128;  // float4 of one group's partial sums
  static constexpr bool kOverlaps = TN >= 128;    // products of two pieces at a time

  const StreamArgs& args;
  const Ring<TN>& ring;
  const float* scales;  // [TN], of tokens
  int group, thread;
  Stage stage{0};
  float d[TN / 2];
  float w_scales[2];  // of this thread's two rows

  __device__ Consumer(const StreamArgs& from, const Ring<TN>& of, const float* of_tokens)
      : args(from), ring(of), scales(of_tokens), group(threadIdx.x / 128), thread(threadIdx.x % 128) {}

  __device__ void run() {
    Range range(args.cut);
    for (bool is_first = true; range.left > 0; is_first = false) {
      const int count = min(range.left, args.cut.pieces - range.k);
      if constexpr (kIsE4m3) load_w_scales(range.tile);
      multiply(count);
      if (kIsE4m3 && is_first) await_scales();
      bool is_mine = true;
      if (count < args.cut.pieces) {
        if (args.cut.splits > 0) {
          share_sum(range.tile);
          is_mine = false;
        } else if (range.k != 0) {
          leave_part(range.tile);
          is_mine = false;
        } else {
          add_parts(range.tile);
        }
      }
      if (is_mine) store(range.tile);
      range.left -= count;
      range.k = 0;
      ++range.tile;
    }
  }

 private:
  __device__ float4 column(int j) const {
    return make_float4(d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]);
  }
  __device__ int first_row(int tile) const { return (tile * kGroups + group) * 64 + thread / kWarp * 16; }
  __device__ float4* own_part() const {
    return args.partial + (static_cast<int64_t>(blockIdx.x) * kGroups + group) * kStride + thread;
  }

  __device__ void load_w_scales(int tile) {
    const float* from = args.w_scales + first_row(tile) + thread % kWarp / 4;
    w_scales[0] = __ldg(from), w_scales[1] = __ldg(from + 8);
  }

  // Sums of eight tokens, group j, scaled.
  __device__ float4 scaled(int j, float4 sums) const {
    if constexpr (!kIsE4m3) return sums;
    const float2 x = *reinterpret_cast<const float2*>(scales + 8 * j + 2 * (thread % 4));
    return make_float4(sums.x * x.x * w_scales[0], sums.y * x.y * w_scales[0], sums.z * x.x * w_scales[1],
                       sums.w * x.y * w_scales[1]);
  }

  __device__ void multiply(int count) {
#pragma unroll
    for (int i = 0; i < TN / 2; ++i) d[i] = 0.0f;
    uint32_t before = 0;
    for (int i = 0; i < count; ++i) {
      barrier_wait(ring.weights_full + 8 * stage.index, stage.parity);
      barrier_wait(ring.tokens_full + 8 * stage.index, stage.parity);
      const uint64_t a = operand(ring.weights + stage.index * kPieceBytes + group * 64 * 128);
      const uint64_t b = operand(ring.tokens + stage.index * Ring<TN>::kXBytes);
      product_fence();
#pragma unroll
      for (int j = 0; j < 4; ++j) Multiply::add(d, a + 2 * j, b + 2 * j);
      product_commit();
      if constexpr (kOverlaps) {
        if (i > 0) {
          product_wait<1>();
          give_back(before);
        }
        before = stage.index;
      } else {
        product_wait<0>();
        give_back(stage.index);
      }
      stage.next(ring.stages);
    }
    if constexpr (kOverlaps) {
      product_wait<0>();
      give_back(before);
    }
  }

  // A place in the ring.
  __device__ void give_back(uint32_t index) const {
    if (thread % kWarp == 0) barrier_arrive(ring.empty + 8 * index);
  }

  // All of a tile's sums are this block's.
  __device__ void store(int tile) const {
    for_output(args.output, [&](auto output) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        store_tokens<decltype(output)::value>(args, first_row(tile), j, scaled(j, column(j)));
      }
    });
  }

  __device__ void write_part() const {
    float4* part = own_part();
#pragma unroll
    for (int j = 0; j < kColumns; ++j) __stcg(part + j * 128, column(j));
  }

  // To the block that holds the tile's first piece.
  __device__ void leave_part(int tile) const {
    write_part();
    group_sync(group);
    if (thread == 0) add_release(args.counts + tile * kGroups + group, 1);
  }

  __device__ void add_parts(int tile) {
    const uint32_t total = args.cut.tiles * args.cut.pieces;
    const int others = static_cast<int>(((tile + 1) * args.cut.pieces * gridDim.x - 1) / total) -
                       static_cast<int>(blockIdx.x);
    uint32_t* ready = args.counts + tile * kGroups + group;
    if (thread == 0) {
      while (load_acquire(ready) != static_cast<uint32_t>(others)) {
      }
      *ready = 0;
    }
    group_sync(group);
    const float4* part = own_part();
#pragma unroll(TN <= 32 ? 4 : 1)
    for (int q = 1; q <= others; ++q) {
      const float4* from = part + static_cast<int64_t>(q) * kGroups * kStride;
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const float4 more = __ldcg(from + j * 128);
        d[4 * j] += more.x, d[4 * j + 1] += more.y, d[4 * j + 2] += more.z, d[4 * j + 3] += more.w;
      }
    }
  }

  // Each block of the tile's cluster adds up its share of the tokens, groups of eight. Where the sums come
  // into the ring, it must hold nothing that is needed any more: all have multiplied.
  __device__ void share_sum(int tile) const {
    const int parts = args.cut.splits, rank = static_cast<int>(blockIdx.x) - tile * parts;
    const int most = (kColumns + parts - 1) / parts;
    const auto first_of = [&](int share) { return (kColumns * share + parts - 1) / parts; };
    const bool is_apart = 16 * 128 * kGroups * parts * most <= Ring<TN>::kSumBytes;
    const uint32_t space = is_apart ? ring.sums : ring.weights;
    const auto place = [&](int part, int column) {
      return space + 16 * (((part * kGroups + group) * most + column) * 128 + thread);
    };
    const int begin = first_of(rank), end = first_of(rank + 1);
    cluster_wait();  // all are there
    if (!is_apart) cluster_sync();
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const int owner = j * parts / kColumns;
      store_shared(shared_of(place(rank, j - first_of(owner)), owner), column(j));
    }
    cluster_sync();
    const auto sums_of = [&](int j) {
      float4 sums = load_shared(place(0, j - begin));
#pragma unroll 1
      for (int q = 1; q < parts; ++q) {
        const float4 more = load_shared(place(q, j - begin));
        sums.x += more.x, sums.y += more.y, sums.z += more.z, sums.w += more.w;
      }
      return sums;
    };
    for_output(args.output, [&](auto output) {
#pragma unroll 1
      for (int j = begin; j < end; ++j) {
        store_tokens<decltype(output)::value>(args, first_row(tile), j, scaled(j, sums_of(j)));
      }
    });
  }
};

}  // namespace ion::cuda
