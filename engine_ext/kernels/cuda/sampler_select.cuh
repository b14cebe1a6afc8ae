// The largest few of a row without sorting it: radix selection by count or by weight, digits of 11 bits from
// the top.
#pragma once

#include <climits>
#include <cstdint>

#include "kernels/cuda/sampler_row.cuh"

namespace ion::cuda::selection {

struct Item {
  uint32_t key;
  uint64_t amount;  // 0: left out
};

struct Selected {
  bool is_reached;  // false: all amounts together are less than wanted
  uint32_t key;
  uint64_t wanted;     // of the amount at `key`, once everything above is taken: at least 1
  uint64_t available;  // the amount at `key`
};

__device__ __forceinline__ void add_to_bin(Shared& s, uint32_t bin, uint64_t amount) {
  const uint32_t low = static_cast<uint32_t>(amount);
  const uint32_t old = atomicAdd(&s.low[bin], low);
  const uint32_t high = static_cast<uint32_t>(amount >> 32) + (old + low < old ? 1u : 0u);
  if (high != 0) atomicAdd(&s.high[bin], high);
}

__device__ __forceinline__ uint64_t amount_of_bin(const Shared& s, int32_t bin) {
  return static_cast<uint64_t>(s.high[bin]) << 32 | s.low[bin];
}

// The bin, from the largest down, at which the running sum reaches `wanted`; in s.bin, s.bin_before and
// s.bin_amount. False if none does.
__device__ __forceinline__ bool find_bin(Shared& s, uint64_t wanted) {
  const int32_t upper = kBins - 1 - 2 * static_cast<int32_t>(threadIdx.x);
  const uint64_t first = amount_of_bin(s, upper), second = amount_of_bin(s, upper - 1);
  const Scan scan = block_scan(s, first + second);
  if (scan.passes(wanted - 1)) {
    const bool is_first = wanted - scan.before <= first;
    s.bin = is_first ? upper : upper - 1;
    s.bin_before = is_first ? scan.before : scan.before + first;
    s.bin_amount = is_first ? first : second;
  }
  __syncthreads();
  return wanted <= scan.total;
}

// The largest key at which the amounts of keys >= it reach `wanted` (at least 1). Keys have `bits` bits;
// `item_of` gives the Item of (value, id).
template <typename ItemOf>
__device__ Selected select(Shared& s, const Source& source, int32_t bits, uint64_t wanted,
                           const ItemOf& item_of) {
  Selected found{true, 0, wanted, 0};
  for (int32_t rest = bits; rest > 0;) {
    const int32_t digit_bits = min(rest, kDigitBits), shift = rest - digit_bits;
    for (int32_t i = threadIdx.x; i < kBins; i += kThreads) s.low[i] = s.high[i] = 0;
    __syncthreads();
    visit_all(s, source, [&](float x, int32_t id) {
      const Item item = item_of(x, id);
      if (item.amount == 0 || static_cast<uint64_t>(item.key) >> rest != found.key) return;
      add_to_bin(s, (item.key >> shift) & ((1u << digit_bits) - 1), item.amount);
    });
    __syncthreads();
    if (!find_bin(s, found.wanted)) return {false, 0, 0, 0};
    found = {true, found.key << digit_bits | s.bin, found.wanted - s.bin_before, s.bin_amount};
    rest = shift;
  }
  return found;
}

// The k-th largest (k <= kThreads) of one value a thread. Uses the list.
__device__ __forceinline__ float kth_largest(Shared& s, float value, int32_t k) {
  s.list[threadIdx.x] = make_uint2(__float_as_uint(value), threadIdx.x);
  __syncthreads();
  const Source source{Row{nullptr, 0}, kThreads};
  const auto item_of = [](float x, int32_t) { return Item{image_of(x), 1}; };
  return value_of(select(s, source, 32, static_cast<uint64_t>(k), item_of).key);
}

// ---------------------------------------------------------------------------------------------------------
// Cuts: the largest values of a row, of equal ones the lowest ids

struct Cut {
  uint32_t image;   // of the smallest value kept
  int32_t last_id;  // that is kept with that value

  __device__ __forceinline__ bool keeps(float x, int32_t id) const {
    const uint32_t at = image_of(x);
    return at > image || (at == image && id <= last_id);
  }
};

// Where the cut can lie: at values of images [least, largest].
struct Scope {
  Source source;
  uint32_t least, largest;

  __device__ int32_t bits() const { return bits_of(largest - least); }
};

// Keeps the `count` lowest of the `available` ids whose value has this image.
__device__ __forceinline__ Cut cut_ties(Shared& s, const Source& source, uint32_t image, uint64_t count,
                                        uint64_t available) {
  if (count >= available) return {image, INT_MAX};
  const uint32_t last = static_cast<uint32_t>(source.row.size - 1);
  const auto item_of = [&](float x, int32_t id) {
    return Item{last - static_cast<uint32_t>(id), image_of(x) == image ? 1u : 0u};
  };
  return {image, static_cast<int32_t>(last - select(s, source, bits_of(last), count, item_of).key)};
}

// Keeps the k largest of what `is_kept` keeps, or all in the scope if there are no more.
template <typename IsKept>
__device__ Cut cut_after(Shared& s, const Scope& scope, int32_t k, const IsKept& is_kept) {
  const auto item_of = [&](float x, int32_t) {
    const uint32_t at = image_of(x);
    return Item{at - scope.least, at >= scope.least && is_kept(x) ? 1u : 0u};
  };
  const Selected found = select(s, scope.source, scope.bits(), static_cast<uint64_t>(k), item_of);
  if (!found.is_reached) return {scope.least, INT_MAX};
  return cut_ties(s, scope.source, scope.least + found.key, found.wanted, found.available);
}

// Keeps the largest whose weights reach `wanted`, the one that crosses it included.
template <typename WeightOf>
__device__ Cut cut_at_weight(Shared& s, const Scope& scope, uint64_t wanted, const WeightOf& weight_of) {
  const auto item_of = [&](float x, int32_t) {
    const uint32_t at = image_of(x);
    return Item{at - scope.least, at >= scope.least ? weight_of(x) : 0};
  };
  const Selected found = select(s, scope.source, scope.bits(), wanted, item_of);
  if (!found.is_reached) return {scope.least, INT_MAX};
  const uint32_t image = scope.least + found.key;
  const uint64_t weight = weight_of(value_of(image));
  return cut_ties(s, scope.source, image, (found.wanted + weight - 1) / weight, found.available / weight);
}

}  // namespace ion::cuda::selection
