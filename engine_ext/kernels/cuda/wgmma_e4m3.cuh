// Warpgroup matrix products of e4m3, as wgmma.cuh has them of bf16 (PTX ISA 8.0 and up).
#pragma once

#include <cstdint>

#include "wgmma.cuh"

namespace ion::cuda {

// d [64 x N] += a [64 x 32] b [N x 32]^T by a warpgroup, codes of e4m3; d holds N / 2 floats a thread.
template <int N>
struct ProductE4m3;

#define ION_PRODUCT_E4M3(N, REGISTERS, A, B)                                                               \
  template <>                                                                                              \
  struct ProductE4m3<N> {                                                                                  \
    static __device__ __forceinline__ void add(float (&d)[REGISTERS], uint64_t a, uint64_t b) {            \
      asm volatile(                                                                                        \
          "{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"                                                       \
          "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" ION_R##REGISTERS "}, %" #A ", %" #B \
                                                                                        ", p, 1, 1;\n}\n"  \
          : ION_D##REGISTERS(0)                                                                            \
          : "l"(a), "l"(b));                                                                               \
    }                                                                                                      \
  };
ION_PRODUCT_E4M3(8, 4, 4, 5)
ION_PRODUCT_E4M3(16, 8, 8, 9)
ION_PRODUCT_E4M3(32, 16, 16, 17)
ION_PRODUCT_E4M3(64, 32, 32, 33)
ION_PRODUCT_E4M3(96, 48, 48, 49)
ION_PRODUCT_E4M3(128, 64, 64, 65)
ION_PRODUCT_E4M3(192, 96, 96, 97)
ION_PRODUCT_E4M3(256, 128, 128, 129)
#undef ION_PRODUCT_E4M3

}  // namespace ion::cuda
