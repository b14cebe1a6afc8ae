// Codes of e4m3 (OCP 8-bit floating point): from floats, and back as halves, which hold every one of them.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

namespace ion::cuda {

constexpr float kLargestCode = 448.0f;

// To the nearest, saturating; `a` comes to lie lowest.
__device__ __forceinline__ uint32_t encode2(float a, float b) {
  return __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
}
__device__ __forceinline__ uint32_t encode4(float a, float b, float c, float d) {
  return encode2(a, b) | encode2(c, d) << 16;
}

// The lower two of a word's codes, and the upper two, as halves.
__device__ __forceinline__ uint32_t decode_low(uint32_t codes) {
  const __half2_raw two = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes), __NV_E4M3);
  return two.x | static_cast<uint32_t>(two.y) << 16;
}
__device__ __forceinline__ uint32_t decode_high(uint32_t codes) {
  return decode_low(codes >> 16);
}

}  // namespace ion::cuda
