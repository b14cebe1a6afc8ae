// Random weights: value i of a tensor follows from the tensor's key and i alone, so that the host and a GPU
// make the same ones, in any order. For benchmarks; the sampler's random numbers are kernels/philox.h's.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define ION_BOTH __host__ __device__
#else
#define ION_BOTH
#endif

namespace ion::kernels {

constexpr int64_t kRandomGroup = 4;  // values that one number gives

// Four int16 of values 4 * group to 4 * group + 3. Steele, Lea, Flood: Fast Splittable Pseudorandom Number
// Generators (OOPSLA 2014), SplitMix64.
ION_BOTH inline uint64_t random_group(uint64_t key, uint64_t group) {
  uint64_t z = key + (group + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Uniform in [-scale, scale).
ION_BOTH inline float random_value(uint64_t group, int lane, float scale) {
  return static_cast<float>(static_cast<int16_t>(group >> (16 * lane))) * (scale * 0x1p-15f);
}

}  // namespace ion::kernels
