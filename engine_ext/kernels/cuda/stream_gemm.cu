// A fixed grid, one block a multiprocessor: two consumer warpgroups of 64 weight rows each, one warp that
// fetches weights, one that fetches activations, and a ring of pieces in shared memory. Weights are the
// product's M side, tokens padded to 8..128 its N side, so that an absent token costs no tensor-core row.
//
// Three pieces are in flight at a time: enough to keep the memory busy, and more would only make everybody
// else's loads queue longer. While the ring is full and landed, a few pieces more are pulled into L2. Large
// matrices are cut evenly over the blocks (stream-K: Osama et al. 2023, arXiv:2301.03598); of small ones a
// block takes one range of one tile's columns. Partial sums are added in the order of the columns.
#include <algorithm>
#include <stdexcept>
#include <type_traits>

#include "check.h"
#include "stream_fetch.cuh"
#include "vec.cuh"
#include "wgmma_e4m3.cuh"

namespace ion::cuda {
namespace {

constexpr int kThreads = kGroups * 128 + 64;
constexpr int kRingBytes = 200 * 1024;  // leaves room for the small kernels beside a block
constexpr int kMostStages = 32;
constexpr int kLeastPieces = 4;  // of a part of a tile: adding up many short parts takes longer
// Parts of a tile from which its blocks share the adding up.
[[maybe_unused]] constexpr int kLeastSharing = 3;

__device__ __forceinline__ float silu(float x) {
  return x / (1.0f + __expf(-x));
}

// Eight tokens, group j, of sixteen weight rows of a warp, the first of which is `row`. A thread's d[0], d[1]
// are row lane / 4 of tokens 2 (lane % 4) and the next, d[2], d[3] row lane / 4 + 8.
[[maybe_unused]] __device__ __forceinline__ void store_tokens(const StreamArgs& args, int row, int j,
                                                              const float4& d) {
  const int lane = threadIdx.x % kWarp;
  if (args.output == StreamOutput::float32) {
    const int token = 8 * j + 2 * (lane % 4);
    float* y = static_cast<float*>(args.y) + static_cast<int64_t>(token) * args.ldy + row + lane / 4;
    if (token < args.m) y[0] = d.x, y[8] = d.z;
    if (token + 1 < args.m) y[args.ldy] = d.y, y[args.ldy + 8] = d.w;
    return;
  }
  const int token = 8 * j + lane / 4;
  auto* y = static_cast<__nv_bfloat16*>(args.y) + static_cast<int64_t>(token) * args.ldy + 2 * (lane % 4);
  if (args.output == StreamOutput::silu_mul) {
    const uint32_t pair = transposed(pack(silu(d.x) * d.z, silu(d.y) * d.w));
    if (token < args.m) *reinterpret_cast<uint32_t*>(y + row / 2) = pair;
    return;
  }
  const uint32_t low = transposed(pack(d.x, d.y)), high = transposed(pack(d.z, d.w));
  if (token >= args.m) return;
  *reinterpret_cast<uint32_t*>(y + row) = low;
  *reinterpret_cast<uint32_t*>(y + row + 8) = high;
}

[[maybe_unused]] __device__ __forceinline__ void group_sync(int group) {
  asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");
}

// One consumer warpgroup's part of a block's work.
template <int TN, bool kIsE4m3>
struct Consumer {
  using Multiply = std::conditional_t<kIsE4m3, ProductE4m3<TN>, Product<TN>>;
  static constexpr int kColumns = TN / 8;         // groups of eight tokens
  static constexpr int kStride = kColumns * 128;  // float4 of one group's partial sums
  static constexpr bool kOverlaps = TN >= 128;    // products of two pieces at a time

  const StreamArgs& args;
  const Ring<TN>& ring;
  float* shared_scales;  // [TN], of x, for this group
  int group, thread;
  Stage stage{0};
  float d[TN / 2];
  float w_scales[2];     // of this thread's two rows
  float x_scale = 0.0f;  // of token `thread`

  __device__ Consumer(const StreamArgs& from, const Ring<TN>& of, float (&scales)[kGroups][TN])
      : args(from),
        ring(of),
        shared_scales(scales[threadIdx.x / 128]),
        group(threadIdx.x / 128),
        thread(threadIdx.x % 128) {}

  __device__ void run() {
    Range range(args.cut);
    for (bool is_first = true; range.left > 0; is_first = false) {
      const int count = min(range.left, args.cut.pieces - range.k);
      if constexpr (kIsE4m3) load_w_scales(range.tile);
      multiply(count);
      if constexpr (kIsE4m3) {
        if (is_first) share_x_scales();
      }
      if (count == args.cut.pieces) {
        store(range.tile);
      } else if (TN >= 64 && args.cut.splits >= kLeastSharing) {
        share_sum(range.tile);
      } else if (range.k != 0) {
        leave_part(range.tile);
      } else {
        add_parts(range.tile);
        store(range.tile);
      }
      range.left -= count;
      range.k = 0;
      ++range.tile;
    }
  }

 private:
  __device__ bool is_lead() const { return thread % kWarp == 0; }
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

  // Asked for when the first tokens are there, needed behind the products.
  __device__ void load_x_scales() {
    wait_for_predecessor();  // over already: it says that others' writes may be read
    if (thread < TN) x_scale = __ldcg(args.x_scales + thread);
  }

  __device__ void share_x_scales() {
    if (thread < TN) shared_scales[thread] = x_scale;
    group_sync(group);
  }

  // Sums of eight tokens, group j.
  __device__ void finish(int tile, int j, float4 sums) const {
    if constexpr (kIsE4m3) {
      const float2 x = *reinterpret_cast<const float2*>(shared_scales + 8 * j + 2 * (thread % 4));
      sums.x *= w_scales[0] * x.x, sums.y *= w_scales[0] * x.y;
      sums.z *= w_scales[1] * x.x, sums.w *= w_scales[1] * x.y;
    }
    store_tokens(args, first_row(tile), j, sums);
  }

  __device__ void multiply(int count) {
#pragma unroll
    for (int i = 0; i < TN / 2; ++i) d[i] = 0.0f;
    uint32_t before = 0;
    for (int i = 0; i < count; ++i) {
      barrier_wait(ring.weights_full + 8 * stage.index, stage.parity);
      barrier_wait(ring.tokens_full + 8 * stage.index, stage.parity);
      if constexpr (kIsE4m3) {
        if (i == 0) load_x_scales();
      }
      const uint64_t a = operand(ring.weights + stage.index * kPieceBytes + group * 64 * 128);
      const uint64_t b = operand(ring.tokens + stage.index * Ring<TN>::kXBytes);
      product_fence();
#pragma unroll
      for (int j = 0; j < 4; ++j) Multiply::add(d, a + 2 * j, b + 2 * j);
      product_commit();
      if constexpr (kOverlaps) {
        if (i > 0) {
          product_wait<1>();
          if (is_lead()) barrier_arrive(ring.empty + 8 * before);
        }
        before = stage.index;
      } else {
        product_wait<0>();
        if (is_lead()) barrier_arrive(ring.empty + 8 * stage.index);
      }
      stage.next(ring.stages);
    }
    if constexpr (kOverlaps) {
      product_wait<0>();
      if (is_lead()) barrier_arrive(ring.empty + 8 * before);
    }
  }

  __device__ void store(int tile) const {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) finish(tile, j, column(j));
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
    const int64_t total = static_cast<int64_t>(args.cut.tiles) * args.cut.pieces, blocks = gridDim.x;
    const int others =
        args.cut.splits > 0
            ? args.cut.splits - 1
            : static_cast<int>((static_cast<int64_t>(tile + 1) * args.cut.pieces * blocks - 1) / total) -
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

  // Many tokens: every block of the tile leaves its part, then each adds up its share of the tokens.
  __device__ void share_sum(int tile) const {
    constexpr int kMost = (kColumns + kLeastSharing - 1) / kLeastSharing;
    const int parts = args.cut.splits, share = static_cast<int>(blockIdx.x) - tile * parts;
    const int begin = (kColumns * share + parts - 1) / parts,
              end = (kColumns * (share + 1) + parts - 1) / parts;
    write_part();
    uint32_t* arrived = args.arrivals + tile * kGroups + group;
    group_sync(group);
    if (thread == 0) {
      add_release(arrived, 1);
      while (load_acquire(arrived) != static_cast<uint32_t>(parts)) {
      }
    }
    group_sync(group);
    const float4* first = own_part() - static_cast<int64_t>(share) * kGroups * kStride;
    float4 sums[kMost];
#pragma unroll
    for (int g = 0; g < kMost; ++g) sums[g] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 2
    for (int q = 0; q < parts; ++q) {
#pragma unroll
      for (int g = 0; g < kMost; ++g) {
        const float4 more =
            __ldcg(first + static_cast<int64_t>(q) * kGroups * kStride + min(begin + g, end - 1) * 128);
        sums[g].x += more.x, sums[g].y += more.y, sums[g].z += more.z, sums[g].w += more.w;
      }
    }
#pragma unroll
    for (int g = 0; g < kMost; ++g) {
      if (begin + g < end) finish(tile, begin + g, sums[g]);
    }
  }
};

template <int TN, bool kIsE4m3>
__global__ void __launch_bounds__(kThreads, 1) stream_kernel(const __grid_constant__ StreamArgs args) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint8_t raw[];
  __shared__ float x_scales[kGroups][TN];
  const Ring<TN> ring(raw, args.stages);
  const int warp = threadIdx.x / kWarp;
  if (threadIdx.x == 0) {
    for (int i = 0; i < args.stages; ++i) {
      barrier_init(ring.weights_full + 8 * i, 1);
      barrier_init(ring.tokens_full + 8 * i, 1);
      barrier_init(ring.empty + 8 * i, kGroups * 4);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    fence_async_proxy();
  }
  __syncthreads();
  let_successor_start();
  if (warp == kGroups * 4) {
    if (threadIdx.x % kWarp == 0) fetch_weights<TN>(args, ring);
  } else if (warp == kGroups * 4 + 1) {
    if (threadIdx.x % kWarp == 0) fetch_tokens<TN>(args, ring);
  } else {
    Consumer<TN, kIsE4m3>(args, ring, x_scales).run();
  }
#endif
}

Cut cut_of(int64_t n, int64_t pieces, int32_t num_sms) {
  Cut cut{static_cast<int32_t>(n / kStreamRows), static_cast<int32_t>(pieces), 0};
  if (cut.tiles <= num_sms) {
    cut.splits = std::max(1, std::min(num_sms / cut.tiles, cut.pieces / kLeastPieces));
  }
  return cut;
}

template <int TN, bool kIsE4m3>
void launch_typed(StreamArgs& args, int num_sms, cudaStream_t stream) {
  constexpr int kStageBytes = kPieceBytes + TN * 128 + 24;
  constexpr int kStages =
      (kRingBytes - 1024) / kStageBytes < kMostStages ? (kRingBytes - 1024) / kStageBytes : kMostStages;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(reinterpret_cast<const void*>(stream_kernel<TN, kIsE4m3>),
                           cudaFuncAttributeMaxDynamicSharedMemorySize, kRingBytes);
  check(allowed, "shared memory of a streamed product");
  args.stages = kStages;
  launch_in_chain("streamed product", stream_kernel<TN, kIsE4m3>, dim3(num_sms), dim3(kThreads), kRingBytes,
                  stream, args);
}

template <int TN>
void launch(StreamArgs& args, int num_sms, cudaStream_t stream) {
  args.w_scales != nullptr ? launch_typed<TN, true>(args, num_sms, stream)
                           : launch_typed<TN, false>(args, num_sms, stream);
}

}  // namespace

int64_t stream_partial_bytes(int32_t num_sms) {
  return int64_t{num_sms} * kGroups * (kStreamMaxTokens / 8) * 128 * static_cast<int64_t>(sizeof(float4));
}

int64_t stream_arrivals(int32_t num_sms) {
  return int64_t{num_sms} * kGroups;
}

void stream_gemm(void* y, StreamOutput output, const StreamInput& x, const StreamWeights& w, int64_t m,
                 int64_t n, int64_t k, const StreamScratch& scratch, int32_t num_sms, cudaStream_t stream,
                 const StreamNext& next) {
  if (m < 1 || m > kStreamMaxTokens) throw std::invalid_argument("a streamed product of too many tokens");
  if ((x.scales == nullptr) != (w.scales == nullptr)) {
    throw std::invalid_argument("a streamed product of two types");
  }
  int size = 0;
  while (8 << size < m) ++size;
  StreamArgs args{};
  args.x = x.maps[size];
  args.w = static_cast<const uint8_t*>(w.tiles);
  args.y = y;
  args.ldy = static_cast<int32_t>(output == StreamOutput::silu_mul ? n / 2 : n);
  args.output = output;
  const int64_t columns = w.scales != nullptr ? kStreamBytes : kStreamBytes / 2;
  args.columns = static_cast<int32_t>(columns);
  args.cut = cut_of(n, k / columns, num_sms);
  args.w_scales = w.scales;
  args.x_scales = x.scales;
  if (next.tiles != nullptr) {
    args.next = static_cast<const uint8_t*>(next.tiles);
    args.next_cut = cut_of(next.n, next.k / columns, num_sms);
  }
  args.m = static_cast<int32_t>(m);
  args.partial = scratch.partial;
  args.counts = scratch.counts;
  args.arrivals = scratch.arrivals;
  switch (size) {
    case 0:
      return launch<8>(args, num_sms, stream);
    case 1:
      return launch<16>(args, num_sms, stream);
    case 2:
      return launch<32>(args, num_sms, stream);
    case 3:
      return launch<64>(args, num_sms, stream);
    default:
      return launch<128>(args, num_sms, stream);
  }
}

}  // namespace ion::cuda
