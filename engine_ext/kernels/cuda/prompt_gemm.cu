// A fixed grid of clusters of two blocks. A block's tile is 64 rows of x times 256 weights; the cluster's two
// lie one below the other, and each block fetches half of the weights for both. Two warps fetch (weights,
// rows) into a ring in shared memory. Two warpgroups take the tiles in turns: while one multiplies, which
// keeps the tensor cores busy alone, the other finishes and stores its own, so that neither SiLU nor the
// stores cost time. (Both at one tile of 128 rows take less from L2, and are slower: 663 TFLOP/s instead of
// 686 on an H200, of k = 1024 586 instead of 631.) A last round that would fill less than half of the
// multiprocessors is of half tiles; up to 64 rows behind the last 128 are tiles of 512 weights.
//
// Rows are the product's M side, weights its N side: the tiled copy is an operand as it lies, gate and up of
// a pair come to be in one thread's registers, and a result's columns lie together.
#include <algorithm>
#include <stdexcept>

#include "box_view.h"
#include "check.h"
#include "prompt_gemm.h"
#include "prompt_tile.cuh"

namespace ion::cuda {
namespace {

constexpr int kThreads = (1 + kPromptGroups) * 128;

#if __CUDA_ARCH_FEAT_SM90_ALL

// A consumer warpgroup.
template <bool kIsSilu>
class Multiplier {
 public:
  __device__ Multiplier(const PromptArgs& args, const PromptRing& ring)
      : args_(args),
        ring_(ring),
        group_(static_cast<int>(threadIdx.x) / 128 - 1),
        lane_(threadIdx.x % kWarp),
        empty_(shared_of(ring.empty, lane_ % kPromptCluster)) {}

  __device__ void run() {
    const PromptTiles tiles;
    if (group_ == 1) stage_.skip(args_.steps, PromptRing::kStages);
    for (int at = tiles.first + group_ * tiles.step; at < args_.count; at += kPromptGroups * tiles.step) {
      const PromptTile tile(args_, at, tiles.rank);
      const bool has_next = at + tiles.step < args_.count;
      if (at != tiles.first) await_turn();
      tile.is_half ? finish<kPromptWeights / 2>(tile, has_next) : finish<kPromptWeights>(tile, has_next);
    }
    if (lane_ == 0) store_wait();
  }

 private:
  // Each group waits until the other has come to its tile's last step. It must: a barrier's parity does not
  // tell a round from the one after the next.
  __device__ void await_turn() const {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + group_), "n"(kPromptGroups * 128) : "memory");
  }
  __device__ void give_turn() const {
    asm volatile("bar.arrive %0, %1;" ::"r"(2 - group_), "n"(kPromptGroups * 128) : "memory");
  }

  // A place in the ring, to both blocks.
  __device__ void give_back(uint32_t index) const {
    if (lane_ < kPromptCluster) barrier_arrive_at(empty_ + 8 * index);
  }

  // A tile N weights wide.
  template <int N>
  __device__ __forceinline__ void finish(const PromptTile& tile, bool has_next) {
    float sums[N / 2];
    multiply<N>(sums, has_next);
    stage_.skip(args_.steps, PromptRing::kStages);
    store<N>(sums, tile);
  }

  template <int N>
  __device__ __forceinline__ void multiply(float (&sums)[N / 2], bool gives_turn) {
    uint32_t before = 0;
    for (int i = 0; i < args_.steps; ++i) {
      barrier_wait(ring_.full + 8 * stage_.index, stage_.parity);
      const uint64_t a = operand(ring_.rows + stage_.index * PromptRing::kRowBytes);
      const uint64_t b = operand(ring_.weights + stage_.index * PromptRing::kWeightBytes);
      product_fence();
      Product<N>::add_or_set(sums, a, b, i);
#pragma unroll
      for (int j = 1; j < 4; ++j) Product<N>::add(sums, a + 2 * j, b + 2 * j);
      product_commit();
      if (i > 0) {
        product_wait<1>();
        give_back(before);
      }
      if (gives_turn && i == args_.steps - 1) give_turn();
      before = stage_.index;
      stage_.next(PromptRing::kStages);
    }
    product_wait<0>();
#pragma unroll
    for (int i = 0; i < N / 2; ++i) asm volatile("" : "+f"(sums[i])::"memory");  // not to be read earlier
    give_back(before);
  }

  // Eight output columns, the j-th such of the tile, of row lane / 4 and, below, of the one eight further
  // down. A thread holds rows lane / 4 in sums 4 i and 4 i + 1, the others in the two behind, columns
  // 8 i + 2 (lane % 4) and the next.
  template <int N>
  static __device__ __forceinline__ uint32_t output(const float (&sums)[N], int j, bool is_below) {
    const float* at = sums + (kIsSilu ? 8 : 4) * j + 2 * is_below;
    return kIsSilu ? pack(silu(at[0]) * at[4], silu(at[1]) * at[5]) : pack(at[0], at[1]);
  }

  // By way of shared memory, a warp's rows in boxes of 64 columns; nobody waits for them to arrive.
  template <int N>
  __device__ __forceinline__ void store(const float (&sums)[N / 2], const PromptTile& tile) const {
    constexpr int kPair = kIsSilu ? 2 : 1;  // weights of an output
    const int warp = threadIdx.x / kWarp % 4, in_box = lane_ % kStoreRows;
    const uint32_t to = ring_.stores + (group_ * 4 + warp) * kStoreBytes;
#pragma unroll
    for (int box = 0; box < N / kPair / kStoreColumns; ++box) {
      if (lane_ == 0) store_wait_read<0>();
      __syncwarp();
#pragma unroll
      for (int j = 0; j < kStoreColumns / 8; j += 2) {
        const uint32_t chunk = (j + lane_ / kStoreRows) ^ (in_box % 8);
        const int c = box * (kStoreColumns / 8) + j;
        store_matrices(to + in_box * kStreamBytes + (chunk << 4), output(sums, c, false),
                       output(sums, c, true), output(sums, c + 1, false), output(sums, c + 1, true));
      }
      fence_async_shared();
      __syncwarp();
      if (lane_ != 0) continue;
      store_box(&args_.y, tile.weight / kPair + box * kStoreColumns, tile.row + warp * kStoreRows, to);
      store_commit();
    }
  }

  const PromptArgs& args_;
  const PromptRing& ring_;
  const int group_, lane_;
  const uint32_t empty_;  // lanes 0 and 1: of that block of the cluster
  Stage stage_{0};
};

#endif

template <bool kIsSilu>
__global__ void __launch_bounds__(kThreads, 1) prompt_kernel(const __grid_constant__ PromptArgs args) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint8_t raw[];
  const PromptRing ring(raw);
  if (threadIdx.x == 0) ring.init();
  cluster_sync();
  let_successor_start();
  if (threadIdx.x < 128) {
    leave_registers<24>();
    if (threadIdx.x == 0) fetch_weights(args, ring);
    if (threadIdx.x == kWarp) fetch_rows(args, ring);
  } else {
    take_registers<240>();
    Multiplier<kIsSilu>(args, ring).run();
  }
  cluster_sync();  // a block's shared memory must be there as long as the other one's copies may come
#endif
}

// The tiles of m rows among so many clusters.
void share_out(PromptArgs& args, int64_t m, int32_t clusters) {
  constexpr int64_t kHeight = kPromptCluster * kPromptRows;
  const int64_t rest = m % kHeight;
  args.has_wide = rest > 0 && rest <= kPromptRows;
  args.row_tiles = static_cast<int32_t>(m / kHeight) + (rest > kPromptRows ? 1 : 0);
  args.weight_tiles = (args.n + kPromptWeights - 1) / kPromptWeights;
  args.bands = std::max(1, (args.row_tiles + kPromptBand - 1) / kPromptBand);
  args.band = std::max(1, (args.row_tiles + args.bands - 1) / args.bands);
  args.last = args.row_tiles - (args.bands - 1) * args.band;
  args.per_band = 1.0f / static_cast<float>(args.band * args.weight_tiles);
  args.per_row = 1.0f / static_cast<float>(args.band);
  args.per_last = 1.0f / static_cast<float>(std::max(1, args.last));
  args.per_pair = 1.0f / static_cast<float>(2 * args.last + 1);
  const int32_t wide = args.has_wide ? (args.weight_tiles + 1) / 2 : 0;
  const int32_t tiles = args.row_tiles * args.weight_tiles + wide, rest_tiles = tiles % clusters;
  args.whole = 2 * rest_tiles <= clusters ? tiles - rest_tiles : tiles;
  args.count = args.whole + 2 * (tiles - args.whole);
}

ChainLaunch launch_of(int32_t clusters, cudaStream_t stream) {
  return {dim3(clusters * kPromptCluster), dim3(kThreads), PromptRing::kBytes, stream, kPromptCluster};
}

}  // namespace

int32_t prompt_clusters() {
  allow_shared(prompt_kernel<true>, PromptRing::kBytes);
  const ChainLaunch one = launch_of(1, nullptr);
  int clusters = 0;
  check(cudaOccupancyMaxActiveClusters(&clusters, prompt_kernel<true>, &one.config), "clusters");
  if (clusters == 0) throw std::runtime_error("a product of many rows: no room for a cluster");
  return clusters;
}

CUtensorMap prompt_input(const __nv_bfloat16* x, int64_t rows, int64_t k) {
  return box_view(x, rows, k, kPromptRows, sizeof(__nv_bfloat16));
}

void prompt_gemm(__nv_bfloat16* y, PromptOutput output, const CUtensorMap& x, const void* w, int64_t m,
                 int64_t n, int64_t k, int32_t clusters, cudaStream_t stream) {
  if (m == 0) return;
  const bool is_silu = output == PromptOutput::silu_mul;
  PromptArgs args{};
  args.x = x;
  args.y = box_view(y, m, is_silu ? n / 2 : n, kStoreRows, sizeof(__nv_bfloat16));
  args.w = static_cast<const uint8_t*>(w);
  args.n = static_cast<int32_t>(n);
  args.steps = static_cast<int32_t>(k / kPromptColumns);
  share_out(args, m, clusters);
  auto* kernel = is_silu ? prompt_kernel<true> : prompt_kernel<false>;
  allow_shared(kernel, PromptRing::kBytes);
  const ChainLaunch launch = launch_of(std::min(clusters, args.count), stream);
  check(cudaLaunchKernelEx(&launch.config, kernel, args), "product of many rows");
}

}  // namespace ion::cuda
