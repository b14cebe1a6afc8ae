// The sampler's tools for one row and one block: values as integers, reading the row or a list of candidates,
// and sums in id order. Knows no slot and no parameter.
//
// All sums are of integers, so that neither the order of atomics nor the alignment of a row shows in a
// result.
#pragma once

#include <cuda_runtime.h>

#include <climits>
#include <cstdint>

#include "cuda/ion_cuda.h"

namespace ion::cuda::selection {

constexpr int32_t kThreads = 1024, kLanes = 32, kWarps = kThreads / kLanes;
constexpr int32_t kChunk = kThreads;  // ids that are summed at once, and drawn from by a thread each
constexpr int32_t kMaxVocab = kThreads * kChunk;
constexpr int32_t kDigitBits = 11, kBins = 1 << kDigitBits;
constexpr int32_t kList = 8192;  // candidates kept in shared memory

struct Shared {
  uint2 list[kList];                 // (bits of the value, id), in no order
  uint32_t low[kBins], high[kBins];  // 64-bit amounts by digit, in halves: shared memory adds 32 bits at once
  unsigned long long chunks[kThreads];
  uint64_t warps[kWarps];
  uint64_t bin_before, bin_amount, chunk_before;
  uint32_t list_size, bin, top_size;
  int32_t chunk, drawn;
  uint2 top[ION_CUDA_MAX_LOGPROBS];
  IonCudaSample sample;
};
static_assert(sizeof(Shared) <= 99 * 1024, "more than a block may have on some cards");

// ---------------------------------------------------------------------------------------------------------
// Values

// Larger floats have larger images; both zeros have the same. No NaN.
__device__ __forceinline__ uint32_t image_of(float value) {
  const uint32_t bits = __float_as_uint(__fadd_rn(value, 0.0f));
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float value_of(uint32_t image) {
  return __uint_as_float(image & 0x80000000u ? image & 0x7fffffffu : ~image);
}

__device__ __forceinline__ int32_t bits_of(uint32_t value) {
  return 32 - __clz(static_cast<int>(value | 1u));
}

__device__ __forceinline__ float exp2_near_0(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// exp((x - largest) / temperature) in units of 2^-40, rounded down; `largest` itself weighs 2^40 exactly,
// masked values (-infinity) weigh 0. The exponent is split as n + f, |f| <= 1/2, and kept to 2^-25 and 2^-24
// of x - largest.
class Weigher {
 public:
  __device__ Weigher(float largest, float temperature) : largest_(largest) {
    const double factor = 1.4426950408889634 / static_cast<double>(temperature);
    high_ = static_cast<float>(factor);
    low_ = static_cast<float>(factor - static_cast<double>(high_));
    least_ = static_cast<float>(-60.0 / factor);
  }

  __device__ __forceinline__ uint64_t operator()(float x) const {
    constexpr float kToInteger = 12582912.0f;  // 1.5 * 2^23: a sum with it is rounded to an integer
    const float d = fmaxf(__fsub_rn(x, largest_), least_);
    const float rounded = __fmaf_rn(d, high_, kToInteger);
    const int32_t n = __float_as_int(rounded) - __float_as_int(kToInteger);
    float f = __fmaf_rn(d, high_, -__fsub_rn(rounded, kToInteger));
    f = __fmaf_rn(d, low_, f);
    // 1 + y / 2 lies in [1, 2): its mantissa is y in units of 2^-22.
    const uint32_t y = __float_as_uint(__fmaf_rn(exp2_near_0(f), 0.5f, 1.0f)) - __float_as_uint(1.0f);
    return (static_cast<uint64_t>(y) << 18) >> -n;
  }

  // A value below all that weigh `weight` (at least 1) or more.
  __device__ float below(uint64_t weight) const {
    const float depth = (40.01f - log2f(static_cast<float>(weight))) / high_;
    return largest_ - depth * 1.00001f - fabsf(largest_) * 1e-6f;
  }

 private:
  float largest_, high_, low_, least_;
};

// ---------------------------------------------------------------------------------------------------------
// Rows and lists

struct Row {
  const float* values;
  int32_t size;

  __device__ bool is_aligned() const { return (reinterpret_cast<uintptr_t>(values) & 15) == 0; }
};

__device__ __forceinline__ float4 load4(const Row& row, int32_t at) {
  if (row.is_aligned() && at + 4 <= row.size) return *reinterpret_cast<const float4*>(row.values + at);
  float4 to = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (at < row.size) to.x = row.values[at];
  if (at + 1 < row.size) to.y = row.values[at + 1];
  if (at + 2 < row.size) to.z = row.values[at + 2];
  if (at + 3 < row.size) to.w = row.values[at + 3];
  return to;
}

// A warp visits (value, id) of the ids [kChunk * chunk, kChunk * (chunk + 1)); a lane's ids ascend.
template <int32_t kLoads = 4, typename Visit>
__device__ __forceinline__ void visit_chunk(const Row& row, int32_t chunk, const Visit& visit) {
  constexpr int32_t kStride = 4 * kLanes;
#pragma unroll 1
  for (int32_t begin = 0; begin < kChunk; begin += kLoads * kStride) {
    const int32_t at = chunk * kChunk + begin + 4 * static_cast<int32_t>(threadIdx.x % kLanes);
    float4 loaded[kLoads];
#pragma unroll
    for (int32_t i = 0; i < kLoads; ++i) loaded[i] = load4(row, at + i * kStride);
#pragma unroll
    for (int32_t i = 0; i < kLoads; ++i) {
      const float values[4] = {loaded[i].x, loaded[i].y, loaded[i].z, loaded[i].w};
#pragma unroll
      for (int32_t j = 0; j < 4; ++j) {
        const int32_t id = at + i * kStride + j;
        if (id < row.size) visit(values[j], id);
      }
    }
  }
}

__device__ __forceinline__ int32_t num_chunks_of(const Row& row) {
  return (row.size + kChunk - 1) / kChunk;
}

template <int32_t kLoads = 4, typename Visit>
__device__ __forceinline__ void visit_row(const Row& row, const Visit& visit) {
  const int32_t num_chunks = num_chunks_of(row);
  for (int32_t c = threadIdx.x / kLanes; c < num_chunks; c += kWarps) visit_chunk<kLoads>(row, c, visit);
}

// All that is still in question: the first `listed` of the list, or with -1 the row.
struct Source {
  Row row;
  int32_t listed;
};

template <typename Visit>
__device__ __forceinline__ void visit_all(const Shared& s, const Source& source, const Visit& visit) {
  if (source.listed < 0) return visit_row<2>(source.row, visit);
  for (int32_t i = threadIdx.x; i < source.listed; i += kThreads) {
    visit(__uint_as_float(s.list[i].x), static_cast<int32_t>(s.list[i].y));
  }
}

// The list of what `is_wanted` keeps, or the row where the list is too short. `is_wanted` sees each id once.
template <typename IsWanted>
__device__ Source collect(Shared& s, const Row& row, const IsWanted& is_wanted) {
  if (threadIdx.x == 0) s.list_size = 0;
  __syncthreads();
  visit_row(row, [&](float x, int32_t id) {
    if (!is_wanted(x, id)) return;
    const uint32_t at = atomicAdd(&s.list_size, 1u);
    if (at < kList) s.list[at] = make_uint2(__float_as_uint(x), static_cast<uint32_t>(id));
  });
  __syncthreads();
  const uint32_t size = s.list_size;
  __syncthreads();
  return {row, size <= kList ? static_cast<int32_t>(size) : -1};
}

// ---------------------------------------------------------------------------------------------------------
// Sums over the block

__device__ __forceinline__ uint64_t warp_sum(uint64_t value) {
#pragma unroll
  for (int32_t offset = kLanes / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, static_cast<unsigned long long>(value), offset);
  }
  return value;
}

__device__ __forceinline__ uint64_t sum_to_lane(uint64_t value) {
#pragma unroll
  for (int32_t offset = 1; offset < kLanes; offset *= 2) {
    const uint64_t below = __shfl_up_sync(0xffffffffu, static_cast<unsigned long long>(value), offset);
    if (static_cast<int32_t>(threadIdx.x % kLanes) >= offset) value += below;
  }
  return value;
}

struct Scan {
  uint64_t value, before, total;  // of this thread, of the threads ahead of it, of all

  // Whether the running sum passes `target` at this thread.
  __device__ bool passes(uint64_t target) const { return before <= target && target - before < value; }
};

__device__ __forceinline__ Scan block_scan(Shared& s, uint64_t value) {
  const int32_t warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const uint64_t in_warp = sum_to_lane(value);
  __syncthreads();
  if (lane == kLanes - 1) s.warps[warp] = in_warp;
  __syncthreads();
  const unsigned long long of_warps = sum_to_lane(s.warps[lane]);
  const uint64_t ahead = __shfl_sync(0xffffffffu, of_warps, max(warp - 1, 0));
  const uint64_t total = __shfl_sync(0xffffffffu, of_warps, kWarps - 1);
  return {value, (warp > 0 ? ahead : 0) + in_warp - value, total};
}

// Weights of a source by chunk: thread i has chunk i's.
template <typename WeightOf>
__device__ Scan sum_chunks(Shared& s, const Source& source, const WeightOf& weight_of) {
  const int32_t num_chunks = num_chunks_of(source.row);
  if (source.listed < 0) {
    for (int32_t c = threadIdx.x / kLanes; c < num_chunks; c += kWarps) {
      uint64_t sum = 0;
      visit_chunk(source.row, c, [&](float x, int32_t id) { sum += weight_of(x, id); });
      sum = warp_sum(sum);
      if (threadIdx.x % kLanes == 0) s.chunks[c] = sum;
    }
  } else {
    s.chunks[threadIdx.x] = 0;
    __syncthreads();
    visit_all(s, source, [&](float x, int32_t id) {
      const unsigned long long weight = weight_of(x, id);
      if (weight != 0) atomicAdd(&s.chunks[id / kChunk], weight);
    });
  }
  __syncthreads();
  return block_scan(s, static_cast<int32_t>(threadIdx.x) < num_chunks ? s.chunks[threadIdx.x] : 0);
}

// The first id, in id order, at which the running sum passes `target`, which is below the total of `chunks`.
template <typename WeightOf>
__device__ int32_t id_at(Shared& s, const Row& row, const Scan& chunks, uint64_t target,
                         const WeightOf& weight_of) {
  if (chunks.passes(target)) {
    s.chunk = threadIdx.x;
    s.chunk_before = chunks.before;
  }
  __syncthreads();
  const int32_t id = s.chunk * kChunk + static_cast<int32_t>(threadIdx.x);
  const Scan ids = block_scan(s, id < row.size ? weight_of(row.values[id], id) : 0);
  if (ids.passes(target - s.chunk_before)) s.drawn = id;
  __syncthreads();
  return s.drawn;
}

}  // namespace ion::cuda::selection
