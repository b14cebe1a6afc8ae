// A cache of codes as one of bf16, for attention of prompts, whose matrix units want those: each block is
// read once a pass and then used by many rows.
#include "attention_units.cuh"
#include "check.h"
#include "e4m3.cuh"
#include "kernels.h"
#include "pdl.cuh"
#include "vec.cuh"

namespace ion::cuda {
namespace {

constexpr int kCodes = 16;  // of a thread

// Two codes with their scale, as bf16.
__device__ __forceinline__ uint32_t scaled(uint32_t halves, float scale) {
  const float2 two = __half22float2(*reinterpret_cast<const __half2*>(&halves));
  return pack(two.x * scale, two.y * scale);
}

// A block of threads for K and V of one head of a block of the cache.
template <int D>
__global__ void __launch_bounds__(2 * kKvBlock * D / kCodes)
    unpack_kv_kernel(bf16* dst, int32_t* tables, const KvCache cache, const UnpackSpan* spans, int window) {
  join_chain();
  const int n = blockIdx.x / cache.num_kv_heads, head = blockIdx.x % cache.num_kv_heads;
  UnpackSpan span = *spans;
  while (n >= span.first + (span.end + kKvBlock - 1) / kKvBlock) span = *++spans;
  const int block = n - span.first;
  if (threadIdx.x == 0 && head == 0) {
    tables[static_cast<int64_t>(span.slot) * cache.table_stride + block] = n;
  }
  if ((block + 1) * kKvBlock <= first_seen(span.start, window)) return;
  const int row = threadIdx.x / (D / kCodes), plane = row / kKvBlock, token = row % kKvBlock;
  const int dim = threadIdx.x % (D / kCodes) * kCodes;
  const Blocks<D, uint8_t> blocks(cache, span.slot, head);
  const uint8_t* keys = blocks.keys(block);
  uint4 codes = *reinterpret_cast<const uint4*>(keys + plane * blocks.v_offset + token * D + dim);
  float scale = blocks.scales_of(keys)[plane * blocks.v_of_scales + token];
  // Not yet written: weighted with 0 it must be finite.
  if (block * kKvBlock + token >= span.end) codes = make_uint4(0, 0, 0, 0), scale = 0.0f;
  bf16* to = dst + ((int64_t{n} * 2 + plane) * cache.num_kv_heads + head) * kKvBlock * D + token * D + dim;
  const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    *reinterpret_cast<uint4*>(to + 4 * i) =
        make_uint4(scaled(decode_low(words[i]), scale), scaled(decode_high(words[i]), scale),
                   scaled(decode_low(words[i + 1]), scale), scaled(decode_high(words[i + 1]), scale));
  }
}

}  // namespace

void unpack_kv(bf16* dst, int32_t* tables, const KvCache& cache, const UnpackSpan* spans, int32_t num_blocks,
               int32_t window, int32_t head_dim, cudaStream_t stream) {
  if (num_blocks == 0) return;
  const dim3 grid(static_cast<unsigned>(num_blocks * cache.num_kv_heads));
  for_dim_of<uint8_t>(head_dim, [&](auto dim) {
    constexpr int kThreads = 2 * kKvBlock * dim / kCodes;
    launch_in_chain("a cache of codes as bf16", unpack_kv_kernel<dim>, grid, dim3(kThreads), 0, stream, dst,
                    tables, cache, spans, window);
  });
}

}  // namespace ion::cuda
