// Hopper's warpgroup matrix products as functions (PTX ISA 8.0 and up).
#pragma once

#include <cstdint>

#include "async.cuh"

namespace ion::cuda {

// An operand in shared memory: rows of 128 bytes, 128-byte swizzle, groups of eight rows 1024 bytes apart.
__device__ __forceinline__ uint64_t operand(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | (1ull << 16) |
         (static_cast<uint64_t>(1024 >> 4) << 32) | (1ull << 62);
}

__device__ __forceinline__ void product_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void product_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int kPending>
__device__ __forceinline__ void product_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// What was computed into d before is not computed later, and what is computed from it behind is not computed
// earlier: the compiler moves arithmetic across asm statements that do not name its values.
template <int N>
__device__ __forceinline__ void hold(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; i += 4) {
    asm volatile("" : "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])::"memory");
  }
}

template <int N>
__device__ __forceinline__ void hold(uint32_t (&d)[N][4]) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    asm volatile("" : "+r"(d[i][0]), "+r"(d[i][1]), "+r"(d[i][2]), "+r"(d[i][3])::"memory");
  }
}

// d [64 x N] += a [64 x 16] b [N x 16]^T by a warpgroup; d holds N / 2 floats a thread.
template <int N>
struct Product;

// The same of codes of e4m3: a [64 x 32], b [N x 32].
template <int N>
struct ProductE4m3;

// The operand lists, by doubling.
#define ION_R4 "%0, %1, %2, %3"
#define ION_R8 ION_R4 ", %4, %5, %6, %7"
#define ION_R16 ION_R8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define ION_R32 ION_R16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define ION_R64                                                                      \
  ION_R32                                                                            \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define ION_R96                                                                                       \
  ION_R64                                                                                             \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, " \
  "%83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define ION_R128                                                                                   \
  ION_R96                                                                                          \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define ION_R48 ION_R32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define ION_D4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define ION_D8(i) ION_D4(i), ION_D4((i) + 4)
#define ION_D16(i) ION_D8(i), ION_D8((i) + 8)
#define ION_D32(i) ION_D16(i), ION_D16((i) + 16)
#define ION_D48(i) ION_D32(i), ION_D16((i) + 32)
#define ION_D64(i) ION_D32(i), ION_D32((i) + 32)
#define ION_D96(i) ION_D64(i), ION_D32((i) + 64)
#define ION_D128(i) ION_D64(i), ION_D64((i) + 64)
#define ION_PRODUCT(NAME, TYPES, LAYOUTS, N, REGISTERS, B)                                                \
  template <>                                                                                             \
  struct NAME<N> {                                                                                        \
    static __device__ __forceinline__ void add(float (&d)[REGISTERS], uint64_t a, uint64_t b) {           \
      asm volatile(                                                                                       \
          "{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"                                                      \
          "wgmma.mma_async.sync.aligned.m64n" #N TYPES " {" ION_R##REGISTERS "}, %" #REGISTERS ", %" #B   \
                                                                             ", p, 1, 1" LAYOUTS ";\n}\n" \
          : ION_D##REGISTERS(0)                                                                           \
          : "l"(a), "l"(b));                                                                              \
    }                                                                                                     \
  };
#define ION_PRODUCTS(NAME, TYPES, LAYOUTS)       \
  ION_PRODUCT(NAME, TYPES, LAYOUTS, 8, 4, 5)     \
  ION_PRODUCT(NAME, TYPES, LAYOUTS, 16, 8, 9)    \
  ION_PRODUCT(NAME, TYPES, LAYOUTS, 32, 16, 17)  \
  ION_PRODUCT(NAME, TYPES, LAYOUTS, 64, 32, 33)  \
  ION_PRODUCT(NAME, TYPES, LAYOUTS, 96, 48, 49)  \
  ION_PRODUCT(NAME, TYPES, LAYOUTS, 128, 64, 65) \
  ION_PRODUCT(NAME, TYPES, LAYOUTS, 192, 96, 97) \
  ION_PRODUCT(NAME, TYPES, LAYOUTS, 256, 128, 129)
ION_PRODUCTS(Product, "k16.f32.bf16.bf16", ", 0, 0")
ION_PRODUCTS(ProductE4m3, "k32.f32.e4m3.e4m3", "")
#undef ION_PRODUCTS
#undef ION_PRODUCT

// The same for attention. scores: d = a b^T where `adds` is 0, else d += a b^T. add_values: d [64 x N] +=
// a [64 x 16] b [16 x N], `a` in registers and b's rows of N in shared memory (`values`).
template <int N>
struct AttentionProduct;
#define ION_ATTENTION_PRODUCT(N, REGISTERS, A0, A1, A2, A3, B)                                               \
  template <>                                                                                                \
  struct AttentionProduct<N> {                                                                               \
    static __device__ __forceinline__ void scores(float (&d)[REGISTERS], uint64_t a, uint64_t b, int adds) { \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #A2                                                  \
                   ", 0;\n"                                                                                  \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" ION_R##REGISTERS             \
                   "}, %" #A0 ", %" #A1 ", p, 1, 1, 0, 0;\n}\n"                                              \
                   : ION_D##REGISTERS(0)                                                                     \
                   : "l"(a), "l"(b), "r"(adds));                                                             \
    }                                                                                                        \
    static __device__ __forceinline__ void add_values(float (&d)[REGISTERS], const uint32_t (&a)[4],         \
                                                      uint64_t b) {                                          \
      asm volatile(                                                                                          \
          "{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"                                                         \
          "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" ION_R##REGISTERS                      \
          "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, 1;\n}\n"                           \
          : ION_D##REGISTERS(0)                                                                              \
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                             \
    }                                                                                                        \
  };
ION_ATTENTION_PRODUCT(64, 32, 32, 33, 34, 35, 36)
ION_ATTENTION_PRODUCT(128, 64, 64, 65, 66, 67, 68)
#undef ION_ATTENTION_PRODUCT

// Attention's tiles: blocks of 16 tokens as block_view brings them, [2][D / 64][8 tokens][128 bytes],
// 128-byte swizzle. An operand of keys: `address` is that of its 16 dims of the tile's first token.
template <int D>
__device__ __forceinline__ uint64_t keys_operand(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | (1ull << 16) |
         (static_cast<uint64_t>(D * 16 >> 4) << 32) | (1ull << 62);
}

// An operand of values, whose rows are the contracted index: a block's.
template <int D>
__device__ __forceinline__ uint64_t values_operand(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | (static_cast<uint64_t>(1024 >> 4) << 16) |
         (static_cast<uint64_t>(D * 16 >> 4) << 32) | (1ull << 62);
}

}  // namespace ion::cuda
