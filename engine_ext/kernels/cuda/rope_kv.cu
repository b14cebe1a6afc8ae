// What stands between the q, k, v product and attention, for all heads of all rows; and the tables it reads.
#include <algorithm>
#include <type_traits>

#include "attention_units.cuh"
#include "check.h"
#include "kernels.h"
#include "pdl.cuh"
#include "rope.cuh"
#include "vec.cuh"

namespace ion::cuda {
namespace {

constexpr int kWarps = 8, kBlocksPerSm = 5;
constexpr int kHeads = 5;              // of a warp: all 36 of Qwen2.5-7B in one block
constexpr int kCut = kHeads * kWarps;  // heads of a block

// A warp loads all its heads before it stores one, and before it knows whose they are: nothing that it waits
// for comes after something else but the rotation's angles and the block's place.
template <int D, typename Kv>
__global__ void __launch_bounds__(kWarps* kWarp, kBlocksPerSm)
    rope_kv_kernel(const RopeKvArgs args, const KvCache cache, int64_t rows) {
  join_chain();
  const int heads = args.num_heads + 2 * cache.num_kv_heads, cuts = (heads + kCut - 1) / kCut;
  const int64_t row = blockIdx.x / cuts;
  const int first = static_cast<int>(blockIdx.x % cuts) * kCut + static_cast<int>(threadIdx.x) / kWarp;
  bf16* of_row = args.qkv + row * heads * D;
  RopedHead<D> roped[kHeads];
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    const int head = first + i * kWarps;
    if (head < heads) roped[i] = RopedHead<D>(of_row + head * D);
  }
  const int slot = args.slots[row], position = args.positions[row], in_block = position % kKvBlock;
  const bool is_last = row + 1 == rows || args.slots[row + 1] != slot;
  if (slot < 0) return;
  const Rotation<D> rotation(args.rotations, position);
  const int place = cache.block_tables[static_cast<int64_t>(slot) * cache.table_stride + position / kKvBlock];
  Kv* of_block = static_cast<Kv*>(cache.base) + place * cache.block_stride + cache.layer_offset;
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    const int head = first + i * kWarps, of_cache = head - args.num_heads;
    if (head >= heads) return;
    roped[i].rotate(args, cache.num_kv_heads, head, args.bias != nullptr ? args.bias + head * D : nullptr,
                    rotation);
    if (of_cache < 0) {
      roped[i].store(of_row + head * D);
      continue;
    }
    Kv* to = of_block + (of_cache * kKvBlock + in_block) * D;
    if constexpr (std::is_same_v<Kv, bf16>) {
      roped[i].store(to);
      if (of_cache < cache.num_kv_heads || !is_last) continue;
      // Attention on Hopper weights the rest of the block with 0: it must not be what a broken sequence left.
      for (int j = 1; j < kKvBlock - in_block; ++j) RopedHead<D>{}.store(to + j * D);
    } else {
      const float scale = roped[i].store_codes(to);
      auto* scales = reinterpret_cast<float*>(of_block + 2 * cache.num_kv_heads * kKvBlock * D);
      if (threadIdx.x % kWarp == 0) scales[of_cache * kKvBlock + in_block] = scale;
    }
  }
}

__global__ void rotations_kernel(float2* dst, const double* frequencies, int64_t positions, int32_t half) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= positions * half) return;
  // In double: at position 100,000 a float angle would be off by 4e-3.
  const double angle = static_cast<double>(i / half) * frequencies[i % half];
  dst[i] = make_float2(static_cast<float>(cos(angle)), static_cast<float>(sin(angle)));
}

__global__ void append_blocks_kernel(int32_t* tables, int32_t stride, const int32_t* triples,
                                     const int32_t* count) {
  wait_for_predecessor();  // and whoever comes later starts when the tables are written: see pdl.cuh
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < *count; i += gridDim.x * blockDim.x) {
    const int32_t* triple = triples + 3 * i;
    tables[static_cast<int64_t>(triple[0]) * stride + triple[1]] = triple[2];
  }
}

// No part of a chain: it starts when all before it is over, and nobody starts before its end.
__global__ void copy_words_kernel(int4* to, const int4* from, int64_t count) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    to[i] = from[i];
  }
  __threadfence_system();
}

}  // namespace

int64_t kv_layer_values(int32_t num_kv_heads, int32_t head_dim, bool is_e4m3) {
  const int64_t scale = is_e4m3 ? static_cast<int64_t>(sizeof(float)) : 0;
  return 2 * int64_t{num_kv_heads} * kKvBlock * (head_dim + scale);
}

void rope_kv(const RopeKvArgs& args, const KvCache& cache, int64_t rows, cudaStream_t stream) {
  const int64_t cuts = (args.num_heads + 2 * cache.num_kv_heads + kCut - 1) / kCut;
  const dim3 grid(static_cast<unsigned>(rows * cuts)), block(kWarps * kWarp);
  for_cache(args.head_dim, cache.is_e4m3, [&](auto dim, auto value) {
    launch_in_chain("rotation", rope_kv_kernel<dim, decltype(value)>, grid, block, 0, stream, args, cache,
                    rows);
  });
}

void rotations(float2* dst, const double* frequencies, int64_t positions, int32_t half, cudaStream_t stream) {
  const int64_t size = positions * half;
  rotations_kernel<<<static_cast<unsigned>((size + 255) / 256), 256, 0, stream>>>(dst, frequencies, positions,
                                                                                  half);
  check_launch("angles");
}

void append_blocks(int32_t* block_tables, int32_t table_stride, const int32_t* triples, const int32_t* count,
                   int32_t most, cudaStream_t stream) {
  if (most == 0) return;
  launch_in_chain("block tables", append_blocks_kernel, dim3((most + 127) / 128), dim3(128), 0, stream,
                  block_tables, table_stride, triples, count);
}

void copy_words(int32_t* to, const int32_t* from, int64_t count, cudaStream_t stream) {
  if (count == 0) return;
  const int64_t pieces = count / 4;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>((pieces + 127) / 128, 64));
  copy_words_kernel<<<blocks, 128, 0, stream>>>(reinterpret_cast<int4*>(to),
                                                reinterpret_cast<const int4*>(from), pieces);
  check_launch("a step's way between host and device");
}

}  // namespace ion::cuda
