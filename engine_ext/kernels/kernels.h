// Every operation of the decoder, on raw pointers: destination first, never allocating, scratch from the
// caller. Knows no model, no file format beyond its block layouts, no scheduler, no torch, no Python.
//
// Determinism: each output element has one reduction order, whatever the number of rows in the call, the
// thread count or the partition, and each instruction set computes it with the same operations: the bits are
// always the scalar reference's (cpu/*_reference.cpp). Tests hold that. Only a NaN's payload may differ.
//
// Sizes are int64_t and row-major; strides count elements, not bytes. Pointers need no alignment except
// packed weights and scratch (64 bytes). Arguments are trusted: whoever loads a model checks its shapes once
// with `is_packable` and `is_attention_shape`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "cpu/thread_pool.h"

namespace ion::kernels {

// ---------------------------------------------------------------------------------------------------------
// Types of weights

// Numbered as in GGUF, so that a tensor's type id casts to it; BF16 also comes from safetensors.
enum class DType : uint32_t {
  F32 = 0,
  F16 = 1,
  Q4_0 = 2,
  Q4_1 = 3,
  Q5_0 = 6,
  Q5_1 = 7,
  Q8_0 = 8,
  Q4_K = 12,
  Q5_K = 13,
  Q6_K = 14,
  BF16 = 30
};

enum class Numerics : uint8_t {
  fast,   // activations as int8 in groups of 32 against quantised weights, f16 KV
  exact,  // float32 activations against dequantised weights, f32 KV
};

struct DTypeInfo {
  DType dtype;
  std::string_view name;
  int32_t block_size;   // values in a block along k
  int32_t block_bytes;  // bytes of a block in a file
};

const DTypeInfo& dtype_info(DType dtype);
inline bool is_quantized(DType t) {
  return t != DType::F32 && t != DType::F16 && t != DType::BF16;
}

// Bytes of a row of k values as it lies in a file; k is a multiple of the block size.
int64_t row_bytes(DType dtype, int64_t k);

// dst [k] = the k values of one row in file layout.
void dequantize_row(float* dst, const void* row, DType dtype, int64_t k);

// dst[i] = table[ids[i]]: dst [m, k], table [vocab, k] in file layout.
void gather_rows(float* dst, const int32_t* ids, int64_t m, const void* table, DType dtype, int64_t k,
                 ThreadPool& pool);

// ---------------------------------------------------------------------------------------------------------
// Weights and matrix products

constexpr int64_t kPanelRows = 8;  // weight rows that are interleaved in a panel

// A view of [n, k] weights in panels of 8 rows; the caller owns `data` (64-byte aligned, packed_bytes long).
// Panel p holds rows [8p, 8p + 8), zero rows past n; quantised panels lie in pairs. The layout is written out
// in cpu/panel.h.
struct PackedMatrix {
  DType dtype = DType::F32;
  Numerics numerics = Numerics::fast;  // how `matmul` computes with it; the layout is the same
  int64_t n = 0, k = 0;
  const std::byte* data = nullptr;
};

// Whether [n, k] of this type can be packed: n, k > 0 and k a multiple of the block size.
bool is_packable(DType dtype, int64_t n, int64_t k);

// Bytes of the packed form: as in the file with n rounded up to 16, of float types to 8; for Q4_K and
// Q5_K 2.8% and 2.3% more, since their scales of 6 bits are widened to bytes.
int64_t packed_bytes(DType dtype, int64_t n, int64_t k, Numerics numerics);

// Packs rows [0, n) of `src` (file layout, [n, k]) into dst and returns the view.
PackedMatrix pack_matrix(void* dst, const void* src, DType dtype, int64_t n, int64_t k, Numerics numerics,
                         ThreadPool& pool);

// Packs n rows of `src` as rows [first_row, first_row + n) of a matrix being built in dst, so that several
// file tensors of one type (wq, wk, wv) become one matrix. first_row is a multiple of 8; every piece but the
// last has n % 8 == 0. The view is then PackedMatrix{dtype, numerics, total_n, k, dst}.
void pack_rows(void* dst, int64_t first_row, const void* src, DType dtype, int64_t n, int64_t k,
               ThreadPool& pool);

// dst[i] = w[ids[i]] dequantised: dst [m, w.k]. For an embedding that is also the LM head.
void gather_packed_rows(float* dst, const int32_t* ids, int64_t m, const PackedMatrix& w, ThreadPool& pool);

// Scratch for matmul calls of up to m rows of k values (the quantised activations).
int64_t matmul_scratch_bytes(int64_t m, int64_t k);

// dst [m, w.n] = x [m, w.k] * w^T, all dense.
void matmul(float* dst, const float* x, int64_t m, const PackedMatrix& w, void* scratch, ThreadPool& pool);

// One product of a group; `dst_stride` >= w->n.
struct MatmulOutput {
  float* dst;  // [m, dst_stride]
  int64_t dst_stride;
  const PackedMatrix* w;  // [n, k]
};

// Several products of the same x [m, x_stride] (wq, wk, wv; gate, up): x is quantised once and one parallel
// region serves all. All w have the same k and numerics; dtypes may differ.
void matmul_group(std::span<const MatmulOutput> outputs, const float* x, int64_t x_stride, int64_t m,
                  void* scratch, ThreadPool& pool);

// ---------------------------------------------------------------------------------------------------------
// Row-wise operations

// dst[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight: rows of `cols`, weight [cols]. dst may be x.
// For a norm per head pass rows = m * heads and cols = head_dim.
void rms_norm(float* dst, const float* x, const float* weight, int64_t rows, int64_t cols, float eps,
              ThreadPool& pool);

// dst [size] = a + b. dst may be a or b.
void add(float* dst, const float* a, const float* b, int64_t size, ThreadPool& pool);

// dst[r] = x[r] + bias: x [rows, stride], bias [cols]. dst may be x.
void add_bias(float* dst, const float* x, const float* bias, int64_t rows, int64_t cols, int64_t stride,
              ThreadPool& pool);

// dst [rows, cols] = silu(gate) * up; gate and up have `stride` elements from row to row. dst may be gate
// where stride == cols.
void silu_mul(float* dst, const float* gate, const float* up, int64_t rows, int64_t cols, int64_t stride,
              ThreadPool& pool);

// ---------------------------------------------------------------------------------------------------------
// Rotary position embedding (arXiv:2104.09864)

enum class RopeForm : uint8_t {
  normal,  // pairs (2i, 2i + 1): GGUF files of the Llama family
  neox,    // pairs (i, i + rotary_dim / 2): safetensors of the Llama family, Qwen
};

struct RopeParams {
  RopeForm form = RopeForm::normal;
  float theta = 10000.0f;
  int32_t rotary_dim = 0;               // even, at most head_dim; the dims past it pass through
  float position_scale = 1.0f;          // linear scaling: the angle's position is position * this
  const float* freq_factors = nullptr;  // [rotary_dim / 2] or null: frequency i is divided by freq_factors[i]
  float magnitude = 1.0f;               // factor on cos and sin (YaRN's attention factor)
};

// angles [m, rotary_dim / 2, 2] = (cos, sin) of positions[r] * theta^(-2i / rotary_dim) / freq_factors[i].
// Once a step; every layer reads them.
void rope_angles(float* angles, const int32_t* positions, int64_t m, const RopeParams& params,
                 ThreadPool& pool);

// Rotates x in place: head h of row r starts at x + r * row_stride + h * head_dim.
void rope(float* x, int64_t m, int64_t num_heads, int64_t head_dim, int64_t row_stride, const float* angles,
          const RopeParams& params, ThreadPool& pool);

// ---------------------------------------------------------------------------------------------------------
// Paged KV cache and attention

constexpr int64_t kKvBlock = 16;         // tokens in a block
constexpr int64_t kAttentionTile = 128;  // tokens folded at once; tiles are anchored at position 0

// One layer's cache: num_blocks blocks, each [K, V][kv_head][16 * head_dim], f16 in `fast`, f32 in `exact`.
// Inside a head's 16 * head_dim values V is [16][head_dim] and K is [head_dim][16], so that the score of 16
// tokens is a chain of broadcasts without a horizontal sum. A block is one contiguous piece of
// kv_block_bytes(). Fresh memory must be zeroed: stale blocks may hold anything finite.
struct KvShape {
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  Numerics numerics = Numerics::fast;
};

int64_t kv_block_bytes(const KvShape& shape);  // of one layer

// Whether attention can run: head_dim in 1..256, num_heads a multiple of num_kv_heads. A head_dim that is no
// multiple of 16 runs on the scalar reference.
bool is_attention_shape(int64_t num_heads, int64_t num_kv_heads, int64_t head_dim);

// One sequence's share of a step. Rows [first_row, first_row + count) of q, k and v are its positions
// [start, start + count). block_table[i] holds positions [16i, 16i + 16).
struct AttentionSpan {
  const int32_t* block_table;
  int32_t first_row;
  int32_t start;
  int32_t count;
};

// Writes k and v of all spans into one layer's cache. Row r of k starts at k + r * row_stride and holds
// [kv_head][head_dim]; v likewise.
void kv_write(void* layer_cache, const KvShape& shape, const float* k, const float* v, int64_t row_stride,
              std::span<const AttentionSpan> spans, ThreadPool& pool);

struct AttentionParams {
  int32_t num_heads = 0;
  float scale = 0.0f;  // usually head_dim^-0.5
  int32_t window = 0;  // > 0: position p sees (p - window, p]; blocks wholly outside are never read
};

// dst [rows, num_heads * head_dim]; row r of q starts at q + r * q_stride and holds [head][head_dim]. Causal,
// grouped queries, keys and values read from the cache only: call kv_write first. Rows outside every span are
// left alone.
void attention(float* dst, const float* q, int64_t q_stride, const void* layer_cache, const KvShape& shape,
               const AttentionParams& params, std::span<const AttentionSpan> spans, ThreadPool& pool);

// ---------------------------------------------------------------------------------------------------------
// Dispatch

enum class Isa : uint8_t { scalar, avx2, avx512vnni };

std::string_view isa_name(Isa isa);
Isa best_isa();         // the best that this machine and this build have
Isa current_isa();      // what the kernels use now; best_isa() unless ION_ISA or set_isa says less
void set_isa(Isa isa);  // for tests and benchmarks; clamped to best_isa(); not while kernels run

// Instruction sets found at run time, lower case: "avx2", "fma", "f16c", "avx512vnni", ... Writes at most
// names.size() and returns how many.
std::size_t cpu_features(std::span<std::string_view> names);

}  // namespace ion::kernels
