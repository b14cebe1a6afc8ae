// Hopper's asynchronous pieces as functions: mbarriers, bulk copies, warpgroup matrix products (PTX ISA 8.0
// and up).
#pragma once

#include <cuda.h>

#include <cstdint>

namespace ion::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count));
}

__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ bool barrier_test(uint32_t barrier, uint32_t parity) {
  uint32_t is_over;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(is_over)
      : "r"(barrier), "r"(parity)
      : "memory");
  return is_over != 0;
}

__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  uint32_t is_over;
  do {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(is_over)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (is_over == 0);
}

// A place in a ring of stages and the parity of its round: what a barrier of whoever waits for it has then.
struct Stage {
  uint32_t index = 0, parity;

  __device__ explicit Stage(uint32_t first_parity) : parity(first_parity) {}
  __device__ void next(uint32_t stages) {
    if (++index == stages) index = 0, parity ^= 1;
  }
  __device__ void skip(uint32_t places, uint32_t stages) {
    const uint32_t rounds = (index + places) / stages;
    index += places - rounds * stages;
    parity ^= rounds & 1;
  }
};

__device__ __forceinline__ uint64_t evict_first() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ uint64_t evict_last() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

#define ION_COPY_BOX(RANK, COORDINATES) \
  "cp.async.bulk.tensor." RANK          \
  ".shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {" COORDINATES "}]"

// A box of a view of two dimensions.
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap* map, int column, int row,
                                         uint32_t barrier, uint64_t policy) {
  asm volatile(ION_COPY_BOX("2d", "%2, %3") ", [%4], %5;" ::"r"(to), "l"(map), "r"(column), "r"(row),
               "r"(barrier), "l"(policy)
               : "memory");
}

// Of four dimensions; `at` from the innermost on.
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap* map, const int (&at)[4],
                                         uint32_t barrier, uint64_t policy) {
  asm volatile(ION_COPY_BOX("4d", "%2, %3, %4, %5") ", [%6], %7;" ::"r"(to), "l"(map), "r"(at[0]), "r"(at[1]),
               "r"(at[2]), "r"(at[3]), "r"(barrier), "l"(policy)
               : "memory");
}
#undef ION_COPY_BOX

// One lane of a warp that is together.
__device__ __forceinline__ bool is_elected() {
  uint32_t is_it;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}\n" : "=r"(is_it));
  return is_it != 0;
}

__device__ __forceinline__ void copy_bytes(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier,
                                           uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
      "[%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

// The same to this place of every block of the cluster whose bit is set; each one's barrier at this place
// counts the bytes.
__device__ __forceinline__ void copy_bytes_to(uint16_t blocks, uint32_t to, const void* from, uint32_t bytes,
                                              uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, "
      "[%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "h"(blocks)
      : "memory");
}

// A box of shared memory to a matrix; what would lie outside is not written. A thread's boxes since its last
// commit are a group.
__device__ __forceinline__ void store_box(const CUtensorMap* map, int column, int row, uint32_t from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
               "r"(column), "r"(row), "r"(from)
               : "memory");
}

__device__ __forceinline__ void store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Until all but the last kPending groups of this thread have been read out of shared memory.
template <int kPending>
__device__ __forceinline__ void store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

__device__ __forceinline__ void store_wait() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

__device__ __forceinline__ void prefetch_bytes(const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void fence_async_proxy() {
  asm volatile("fence.proxy.async;" ::: "memory");
}

// Of this thread's writes to its block's shared memory alone; the other one waits for the device's memory.
__device__ __forceinline__ void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void add_release(uint32_t* to, uint32_t value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

__device__ __forceinline__ uint32_t load_acquire(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

// All threads of the cluster's blocks that have not ended meet; what they wrote before, each other's shared
// memory included, is there afterwards.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// Whoever waits knows that all the cluster's threads have said so, and nothing of what they wrote.
__device__ __forceinline__ void cluster_say() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// The same place of another block of the cluster.
__device__ __forceinline__ uint32_t shared_of(uint32_t address, uint32_t block) {
  uint32_t out;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(out) : "r"(address), "r"(block));
  return out;
}

__device__ __forceinline__ uint32_t block_in_cluster() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// At a barrier of any block of the cluster. It says that shared memory has been read, and nothing of what was
// written: to order writes for another block takes a fence of the whole device.
__device__ __forceinline__ void barrier_arrive_at(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void store_shared(uint32_t to, const float4& value) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(value.x), "f"(value.y),
               "f"(value.z), "f"(value.w)
               : "memory");
}

__device__ __forceinline__ void store_shared(uint32_t to, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
}

__device__ __forceinline__ float4 load_shared(uint32_t from) {
  float4 value;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(from)
               : "memory");
  return value;
}

// Of the 8 x 8 matrix of 16-bit values that a warp holds, a row in four neighbouring lanes.
__device__ __forceinline__ uint32_t transposed(uint32_t pair) {
  uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
  return out;
}

// Four 8 x 8 matrices of 16-bit values, each held by a warp as above, to shared memory; lane 8 i + j names
// where row j of matrix i goes.
__device__ __forceinline__ void store_matrices(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

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
#define ION_PRODUCT(N, REGISTERS, A, B)                                                         \
  template <>                                                                                   \
  struct Product<N> {                                                                           \
    static __device__ __forceinline__ void add(float (&d)[REGISTERS], uint64_t a, uint64_t b) { \
      asm volatile(                                                                             \
          "{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"                                            \
          "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" ION_R##REGISTERS         \
          "}, %" #A ", %" #B ", p, 1, 1, 0, 0;\n}\n"                                            \
          : ION_D##REGISTERS(0)                                                                 \
          : "l"(a), "l"(b));                                                                    \
    }                                                                                           \
  };
ION_PRODUCT(8, 4, 4, 5)
ION_PRODUCT(16, 8, 8, 9)
ION_PRODUCT(32, 16, 16, 17)
ION_PRODUCT(64, 32, 32, 33)
ION_PRODUCT(96, 48, 48, 49)
ION_PRODUCT(128, 64, 64, 65)
ION_PRODUCT(192, 96, 96, 97)
ION_PRODUCT(256, 128, 128, 129)
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

template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void leave_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace ion::cuda
