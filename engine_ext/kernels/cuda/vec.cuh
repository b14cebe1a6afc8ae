// 16-byte pieces of bf16, and sums over a warp.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace ion::cuda {

using bf16 = __nv_bfloat16;

constexpr int kWarp = 32;
constexpr int kPiece = 8;  // bf16 values in 16 bytes

// Two bf16 in a register to two floats; the lower address is x.
__device__ __forceinline__ float2 unpack(uint32_t pair) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

__device__ __forceinline__ uint32_t pack(float lower, float upper) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(lower, upper);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ __forceinline__ void unpack8(float (&to)[kPiece], const uint4& from) {
  const uint32_t words[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = unpack(words[i]);
    to[2 * i] = pair.x;
    to[2 * i + 1] = pair.y;
  }
}

__device__ __forceinline__ uint4 pack8(const float (&from)[kPiece]) {
  return make_uint4(pack(from[0], from[1]), pack(from[2], from[3]), pack(from[4], from[5]),
                    pack(from[6], from[7]));
}

// 16 bytes from global to shared memory, on their way until await_copies.
__device__ __forceinline__ void copy_async(void* to, const void* from) {
  const auto place = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place), "l"(from) : "memory");
}

// The same, or zeros where there is nothing to read; `from` is valid all the same.
__device__ __forceinline__ void copy_async_or_zero(uint32_t to, const void* from, bool is_there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(is_there ? 16 : 0)
               : "memory");
}

__device__ __forceinline__ void await_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

__device__ __forceinline__ float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// x / (1 + exp(-x)). As __fdividef(x, 1 + __expf(-x)), without what that does for denormal exponentials:
// beside 1 they are 0.
__device__ __forceinline__ float silu(float x) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + power_of_2(x * -1.4426950216f)));
  return x * inverse;
}

// The sum over all lanes, in every lane; one fixed tree.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
  return value;
}

// Over four neighbouring lanes, in each of them.
__device__ __forceinline__ float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

__device__ __forceinline__ float quad_sum(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

// Over the lanes with the same lane % 4.
__device__ __forceinline__ float column_max(float value) {
#pragma unroll
  for (int offset = 4; offset < kWarp; offset *= 2)
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
  return value;
}

__device__ __forceinline__ float column_sum(float value) {
#pragma unroll
  for (int offset = 4; offset < kWarp; offset *= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

// The sum over a block of kThreads, in every thread. `scratch` has a float for each warp.
template <int kThreads>
__device__ __forceinline__ float block_sum(float value, float* scratch) {
  constexpr int kWarps = kThreads / kWarp;
  value = warp_sum(value);
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = value;
  __syncthreads();
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) total += scratch[i];
  return total;
}

}  // namespace ion::cuda
