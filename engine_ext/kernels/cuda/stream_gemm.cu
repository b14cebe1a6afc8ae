// A fixed grid, one block a multiprocessor: two consumer warpgroups of 64 weight rows each, warps that fetch
// weights, activations and their scales, and a ring of pieces in shared memory. Weights are the
// product's M side, tokens padded to 8..256 its N side, so that an absent token costs no tensor-core row.
//
// Three pieces (of many tokens four) are in flight at a time: enough to keep the memory busy, and more would
// only make everybody else's loads queue longer. While the ring is full and landed, a few pieces more are
// pulled into L2. Large matrices are cut evenly over the blocks (stream-K: Osama et al. 2023,
// arXiv:2301.03598), and their partial sums go through L2; of small ones a block takes one range of one
// tile's columns, and the tile's blocks, a cluster, add up through each other's shared memory. Partial sums
// are added in the order of the columns.
#include <algorithm>
#include <cstddef>
#include <iterator>
#include <stdexcept>

#include "check.h"
#include "stream_consumer.cuh"

namespace ion::cuda {
namespace {

constexpr int kThreads = kConsumers + 3 * kWarp;
constexpr int kRingBytes = 200 * 1024;  // leaves room for the small kernels beside a block
constexpr int kLeastPieces = 4;         // of a part of a tile: adding up many short parts takes longer

template <int TN, bool kIsE4m3>
__global__ void __launch_bounds__(kThreads, 1) stream_kernel(const __grid_constant__ StreamArgs args) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint8_t raw[];
  __shared__ __align__(8) float scales[TN];
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
  if (args.cut.splits > 1) cluster_say();  // that it is there; see share_sum
  let_successor_start();
  if (warp == kGroups * 4) {
    if (threadIdx.x % kWarp == 0) fetch_weights<TN>(args, ring);
  } else if (warp == kGroups * 4 + 1) {
    if (threadIdx.x % kWarp == 0) fetch_tokens<TN>(args, ring);
  } else if (warp == kGroups * 4 + 2) {
    if constexpr (kIsE4m3) provide_scales<TN>(args, scales);
  } else {
    Consumer<TN, kIsE4m3>(args, ring, scales).run();
  }
#endif
}

Cut cut_of(int64_t n, int64_t pieces, const StreamDevice& device) {
  Cut cut{static_cast<int32_t>(n / kStreamRows), static_cast<int32_t>(pieces), 0, device.num_sms};
  if (cut.tiles > device.num_sms) return cut;
  cut.splits = std::max(
      1, std::min({device.num_sms / cut.tiles, cut.pieces / kLeastPieces, int32_t{kStreamMostSplits}}));
  while (cut.splits > 1 && device.clusters[cut.splits] < cut.tiles) --cut.splits;
  cut.blocks = cut.tiles * cut.splits;
  return cut;
}

ChainLaunch launch_of(int32_t blocks, int32_t cluster, cudaStream_t stream) {
  return {dim3(blocks), dim3(kThreads), kRingBytes, stream, cluster};
}

template <int TN, bool kIsE4m3>
void launch_typed(StreamArgs& args, cudaStream_t stream) {
  constexpr int kStageBytes = kPieceBytes + Ring<TN>::kXBytes + 24;
  constexpr int kStages = (kRingBytes - 1024 - Ring<TN>::kSumBytes - 16) / kStageBytes;
  allow_shared(stream_kernel<TN, kIsE4m3>, kRingBytes);
  args.stages = kStages;
  const ChainLaunch launch = launch_of(args.cut.blocks, args.cut.splits, stream);
  check(cudaLaunchKernelEx(&launch.config, stream_kernel<TN, kIsE4m3>, args), "streamed product");
}

template <int TN>
void launch(StreamArgs& args, cudaStream_t stream) {
  args.w_scales != nullptr ? launch_typed<TN, true>(args, stream) : launch_typed<TN, false>(args, stream);
}

}  // namespace

int64_t stream_partial_bytes(int32_t num_sms) {
  return int64_t{num_sms} * kGroups * (kStreamMaxTokens / 8) * 128 * static_cast<int64_t>(sizeof(float4));
}

StreamDevice stream_device() {
  StreamDevice found;
  int device = 0;
  check(cudaGetDevice(&device), "device");
  check(cudaDeviceGetAttribute(&found.num_sms, cudaDevAttrMultiProcessorCount, device), "device");
  allow_shared(stream_kernel<8, false>, kRingBytes);
  for (int32_t size = 2; size <= kStreamMostSplits; ++size) {
    const ChainLaunch launch = launch_of(size, size, nullptr);
    check(cudaOccupancyMaxActiveClusters(&found.clusters[size], stream_kernel<8, false>, &launch.config),
          "clusters");
  }
  return found;
}

namespace {

// One pass over the weights: m <= kStreamMaxTokens, padded to `size`.
void launch_sized(StreamArgs& args, int32_t size, cudaStream_t stream) {
  switch (size) {
    case 8:
      return launch<8>(args, stream);
    case 16:
      return launch<16>(args, stream);
    case 32:
      return launch<32>(args, stream);
    case 64:
      return launch<64>(args, stream);
    case 96:
      return launch<96>(args, stream);
    case 128:
      return launch<128>(args, stream);
    case 192:
      return launch<192>(args, stream);
    default:
      return launch<256>(args, stream);
  }
}

}  // namespace

void stream_gemm(void* y, StreamOutput output, const StreamInput& x, const StreamWeights& w, int64_t m,
                 int64_t n, int64_t k, const StreamScratch& scratch, const StreamDevice& device,
                 cudaStream_t stream, const StreamNext& next) {
  if ((x.scales == nullptr) != (w.scales == nullptr)) {
    throw std::invalid_argument("a streamed product of two types");
  }
  StreamArgs args{};
  args.w = static_cast<const uint8_t*>(w.tiles);
  args.ldy = static_cast<int32_t>(output == StreamOutput::silu_mul ? n / 2 : n);
  args.output = output;
  const int64_t columns = w.scales != nullptr ? kStreamBytes : kStreamBytes / 2;
  args.columns = static_cast<int32_t>(columns);
  args.cut = cut_of(n, k / columns, device);
  args.w_scales = w.scales;
  if (next.tiles != nullptr) {
    args.next = static_cast<const uint8_t*>(next.tiles);
    args.next_cut = cut_of(next.n, next.k / columns, device);
  }
  args.partial = scratch.partial;
  args.counts = scratch.counts;
  const int64_t row_bytes = args.ldy * (output == StreamOutput::float32 ? 4 : 2);
  for (int64_t first = 0; first < m; first += kStreamMaxTokens) {
    args.first = static_cast<int32_t>(first);
    args.m = static_cast<int32_t>(std::min<int64_t>(m - first, kStreamMaxTokens));
    args.y = static_cast<std::byte*>(y) + first * row_bytes;
    args.x_scales = x.scales != nullptr ? x.scales + first : nullptr;
    const auto* size = std::lower_bound(std::begin(kStreamSizes), std::end(kStreamSizes), args.m);
    args.x = x.maps[size - std::begin(kStreamSizes)];
    launch_sized(args, *size, stream);
  }
}

}  // namespace ion::cuda
