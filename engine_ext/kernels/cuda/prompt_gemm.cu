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
#include "prompt_gated.cuh"
#include "prompt_gemm.h"
#include "prompt_qkv.cuh"
#include "prompt_tile.cuh"
#include "wgmma.cuh"

namespace ion::cuda {
namespace {

constexpr int kThreads = (1 + kPromptGroups) * 128;

#if __CUDA_ARCH_FEAT_SM90_ALL

// A consumer warpgroup.
template <typename Output>
class Multiplier {
  using Ring = typename Output::Ring;

 public:
  __device__ Multiplier(const PromptArgs& args, const typename Output::Args& of_output, const Ring& ring)
      : args_(args),
        ring_(ring),
        group_(static_cast<int>(threadIdx.x) / 128 - 1),
        lane_(threadIdx.x % kWarp),
        empty_(shared_of(ring.empty, lane_ % kPromptCluster)),
        output_(of_output, ring, group_) {}

  __device__ void run() {
    const PromptTiles tiles;
    if (group_ == 1) stage_.skip(args_.steps, Ring::kStages);
    for (int at = tiles.first + group_ * tiles.step; at < args_.count; at += kPromptGroups * tiles.step) {
      const PromptTile tile(args_, at, tiles.rank);
      const bool has_next = at + tiles.step < args_.count;
      output_.prepare(first_row(tile));
      const bool is_first = at == tiles.first;
      tile.is_half ? compute<kPromptWeights / 2>(tile, is_first, has_next)
                   : compute<kPromptWeights>(tile, is_first, has_next);
      output_.finish(tile.is_half ? kPromptWeights / 2 : kPromptWeights, tile.weight, first_row(tile));
    }
    if (lane_ == 0) store_wait();
  }

 private:
  // Of this warp's sixteen.
  __device__ static int first_row(const PromptTile& tile) {
    return tile.row + static_cast<int>(threadIdx.x) / kWarp % 4 * kStoreRows;
  }

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
  __device__ __forceinline__ void compute(const PromptTile& tile, bool is_first, bool has_next) {
    float sums[N / 2] = {};  // not set by the first product: they would be live, as its input, all the time
    if (!is_first) await_turn();
    multiply<N>(sums, has_next);
    stage_.skip(args_.steps, Ring::kStages);
    output_.template take<N>(sums, tile.weight, first_row(tile));
  }

  template <int N>
  __device__ __forceinline__ void multiply(float (&sums)[N / 2], bool gives_turn) {
    uint32_t before = 0;
    for (int i = 0; i < args_.steps; ++i) {
      barrier_wait(ring_.full + 8 * stage_.index, stage_.parity);
      const uint64_t a = operand(ring_.rows + stage_.index * Ring::kRowBytes);
      const uint64_t b = operand(ring_.weights + stage_.index * Ring::kWeightBytes);
      product_fence();
#pragma unroll
      for (int j = 0; j < 4; ++j) Product<N>::add(sums, a + 2 * j, b + 2 * j);
      product_commit();
      if (i > 0) {
        product_wait<1>();
        give_back(before);
      }
      if (gives_turn && i == args_.steps - 1) give_turn();
      before = stage_.index;
      stage_.next(Ring::kStages);
    }
    product_wait<0>();
#pragma unroll
    for (int i = 0; i < N / 2; ++i) asm volatile("" : "+f"(sums[i])::"memory");  // not to be read earlier
    give_back(before);
  }

  const PromptArgs& args_;
  const Ring& ring_;
  const int group_, lane_;
  const uint32_t empty_;  // lanes 0 and 1: of that block of the cluster
  Output output_;
  Stage stage_{0};
};

#endif

template <typename Output>
__global__ void __launch_bounds__(kThreads, 1)
    prompt_kernel(const __grid_constant__ PromptArgs args,
                  const __grid_constant__ typename Output::Args of_output) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint8_t raw[];
  const typename Output::Ring ring(raw);
  if (threadIdx.x == 0) ring.init();
  Output::share(of_output, ring);
  cluster_sync();
  let_successor_start();
  if (threadIdx.x < 128) {
    leave_registers<24>();
    if (threadIdx.x == 0) fetch_weights(args, ring);
    if (threadIdx.x == kWarp) fetch_rows(args, ring);
  } else {
    take_registers<240>();
    Multiplier<Output>(args, of_output, ring).run();
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

template <typename Output>
ChainLaunch launch_of(int32_t clusters, cudaStream_t stream) {
  allow_shared(prompt_kernel<Output>, Output::Ring::kBytes);
  return {dim3(clusters * kPromptCluster), dim3(kThreads), Output::Ring::kBytes, stream, kPromptCluster};
}

// Rows [first, first + m) of x.
template <typename Output>
void launch(const CUtensorMap& x, const void* w, int64_t first, int64_t m, int64_t n, int64_t k,
            int32_t clusters, cudaStream_t stream, const typename Output::Args& of_output) {
  PromptArgs args{};
  args.x = x;
  args.first = static_cast<int32_t>(first);
  args.w = static_cast<const uint8_t*>(w);
  args.n = static_cast<int32_t>(n);
  args.steps = static_cast<int32_t>(k / kPromptColumns);
  share_out(args, m, clusters);
  const ChainLaunch launch = launch_of<Output>(std::min(clusters, args.count), stream);
  check(cudaLaunchKernelEx(&launch.config, prompt_kernel<Output>, args, of_output), "product of many rows");
}

}  // namespace

int32_t prompt_clusters() {
  const ChainLaunch one = launch_of<PromptGated>(1, nullptr);
  int clusters = 0;
  check(cudaOccupancyMaxActiveClusters(&clusters, prompt_kernel<PromptGated>, &one.config), "clusters");
  if (clusters == 0) throw std::runtime_error("a product of many rows: no room for a cluster");
  return clusters;
}

CUtensorMap prompt_input(const __nv_bfloat16* x, int64_t rows, int64_t k) {
  return box_view(x, rows, k, kPromptRows, sizeof(__nv_bfloat16));
}

void prompt_gated(__nv_bfloat16* y, const CUtensorMap& x, const void* w, int64_t m, int64_t n, int64_t k,
                  int32_t clusters, cudaStream_t stream) {
  if (m == 0) return;
  launch<PromptGated>(x, w, 0, m, n, k, clusters, stream,
                      {box_view(y, m, n / 2, kStoreRows, sizeof(__nv_bfloat16))});
}

void prompt_qkv(const RopeKvArgs& rope, const KvCache& cache, int64_t first, int64_t count,
                const CUtensorMap& x, const void* w, const QkvPart& part, int64_t k, int32_t clusters,
                cudaStream_t stream) {
  const int64_t m = part.end_row - part.first_row,
                n = int64_t{part.end_head - part.first_head} * rope.head_dim;
  if (m == 0 || n == 0) return;
  const int64_t first_weight = int64_t{part.first_head} * rope.head_dim;
  if (first_weight % kPromptWeights != 0) throw std::logic_error("q, k and v: a part of a tile");
  const auto* from = static_cast<const uint8_t*>(w) + first_weight * k * 2;
  for_wide_head_dim(rope.head_dim, [&](auto dim) {
    launch<PromptQkv<dim>>(x, from, part.first_row, m, n, k, clusters, stream,
                           {rope, cache, static_cast<int32_t>(first), static_cast<int32_t>(count),
                            static_cast<int32_t>(part.end_row), part.first_head, part.end_head});
  });
}

}  // namespace ion::cuda
