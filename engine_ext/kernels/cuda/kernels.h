// The decoder's operations on the device beside the matrix products: destination first, never allocating, on
// a stream. Matrices are row-major; activations bf16, the residual stream float32, sums float32. Knows no
// model.
//
// A row's result depends on that row alone, bit for bit, except where attention splits a long context: the
// cuts are anchored at position 0. Their size is the plan's, and follows the step's other rows unless the
// plan is deterministic (cuda/step_buffer.h).
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace ion::cuda {

using bf16 = __nv_bfloat16;

constexpr int32_t kKvBlock = 16;       // tokens in a KV block
constexpr int32_t kSplitTokens = 256;  // tokens of the smallest piece of a decode row's context
// Where no decode row is longer, each is one piece: to bring two together costs more than they save.
constexpr int32_t kWholeTokens = 512;
constexpr int32_t kPrefillRows = 64;       // (token, head of its group) pairs of one prefill piece
constexpr int32_t kWidePrefillRows = 128;  // the same on Hopper
constexpr int32_t kPackedHeads = 16;       // of a group; larger ones are cut
constexpr int32_t kWideTileTokens = 128;   // of the context, what a piece on Hopper goes over at a time
constexpr int32_t kMostCuts = 8;           // of such a piece: blocks of a cluster

// x [rows, hidden] = table[id], id = ids[r], or last_ids[slots[r]] where ids[r] is -1. Rows without a slot
// (-1) are 0.
void embed(float* x, const int32_t* ids, const int32_t* slots, const int32_t* last_ids, const bf16* table,
           int64_t rows, int64_t hidden, cudaStream_t stream);

// x_to [count, hidden] = x[r], to [count, cols] = from[r] for r = picked[i]; -1: row 0. hidden and cols are
// multiples of 8.
void gather_rows(float* x_to, const float* x, bf16* to, const bf16* from, const int32_t* picked,
                 int64_t count, int64_t hidden, int64_t cols, cudaStream_t stream);

// dst [rows, cols] = x / sqrt(mean(x^2) + eps) * weight.
void rms_norm(bf16* dst, const float* x, const float* weight, int64_t rows, int64_t cols, float eps,
              cudaStream_t stream);

// x [rows, cols] += delta; dst [rows, cols] = norm(x). dst may be delta.
void add_rms_norm(bf16* dst, float* x, const bf16* delta, const float* weight, int64_t rows, int64_t cols,
                  float eps, cudaStream_t stream);

// dst [count, cols] = norm(x[r] + delta[r]) for r = picked[i]; x stays. picked -1: row 0.
void add_rms_norm_picked(bf16* dst, const float* x, const bf16* delta, const float* weight,
                         const int32_t* picked, int64_t count, int64_t cols, float eps, cudaStream_t stream);

// dst [rows, ffn] = silu(gate_up[:, :ffn]) * gate_up[:, ffn:]; ffn is a multiple of 8.
void silu_mul(bf16* dst, const bf16* gate_up, int64_t rows, int64_t ffn, cudaStream_t stream);

// One layer's part of the paged cache: [block][layer][K, V][kv_head][16][head_dim]; `base` points at layer 0.
// Values are bf16, or codes of e4m3, a byte each; behind a layer's codes come floats [K, V][kv_head][16],
// which they are to be multiplied with.
struct KvCache {
  void* base;
  int64_t block_stride;         // values from block to block
  int64_t layer_offset;         // values from a block's start to this layer's K
  const int32_t* block_tables;  // [max_slots, table_stride]: block of positions [16 i, 16 i + 16)
  int32_t table_stride;
  int32_t num_kv_heads;
  bool is_e4m3;

  bf16* values() const { return static_cast<bf16*>(base); }
};

// Of a layer in a block, in values as block_stride counts them.
int64_t kv_layer_values(int32_t num_kv_heads, int32_t head_dim, bool is_e4m3);
// Whether decode attention can read codes: the cache's head_dim is 64 or 128.
bool is_e4m3_kv_shape(int32_t head_dim);

struct RopeKvArgs {
  bf16* qkv;            // [rows, (num_heads + 2 kv_heads) * head_dim]; q is rotated in place
  const float* bias;    // [num_heads + 2 kv_heads][head_dim] or null
  const float* q_norm;  // [head_dim] or null
  const float* k_norm;
  const float2* rotations;  // [positions, head_dim / 2] (cos, sin)
  const int32_t* slots;     // [rows], -1: padding
  const int32_t* positions;
  int32_t num_heads, head_dim;
  float eps;
};

// Bias, the norm per head, rotation of halves (i, i + head_dim / 2); K and V go into the cache, and, where
// that is of bf16, zeros into what is left for V of the block that a slot's last row lies in.
void rope_kv(const RopeKvArgs& args, const KvCache& cache, int64_t rows, cudaStream_t stream);

// rotations [positions, half] from frequencies [half] in double.
void rotations(float2* dst, const double* frequencies, int64_t positions, int32_t half, cudaStream_t stream);

// Rows [first_row, first_row + count) are positions [start, start + count) of a slot.
struct Span {
  int32_t slot, first_row, start, count;
};

// A span of more tokens than one whose context is unpacked for its attention: positions [0, end) of a slot,
// the first `start` of which are not of this pass, to blocks [first, first + end / kKvBlock rounded up).
struct UnpackSpan {
  int32_t slot, first, start, end;
};

// dst [num_blocks][K, V][kv_head][16][head_dim] = the blocks of the spans (by `first`) of one layer of a
// cache of codes, zeros from a span's end on; tables [max_slots, cache.table_stride]: where they are. What a
// window hides from all of a span is left out.
void unpack_kv(bf16* dst, int32_t* tables, const KvCache& cache, const UnpackSpan* spans, int32_t num_blocks,
               int32_t window, int32_t head_dim, cudaStream_t stream);

// A piece of attention: of a decode span (count 1) tokens [size part, size part + size), size being the
// plan's; of a longer span its packed rows [size part, size part + size), size being kPrefillRows or
// kWidePrefillRows and a packed row (token, head of the group), group innermost.
struct Piece {
  int32_t span, part;
};

// A plan of the step, on the device. `counts` is read there, so that a graph serves any number of pieces.
struct AttentionPlan {
  const Span* spans;
  const Piece* decode_pieces;  // by span, ascending parts, parts outside the window left out
  const Piece* prefill_pieces;
  const int32_t* counts;  // [4]: decode pieces, prefill pieces, (not read), tokens of a decode piece
};

struct AttentionArgs {
  bf16* dst;        // [rows, num_heads * head_dim]
  const bf16* qkv;  // [rows, qkv_stride], q first
  int32_t qkv_stride;
  int32_t num_heads, head_dim;
  int32_t window;  // 0: none
  float scale;
  // Decode rows see others of this pass: nothing of the cache is read before rope_kv is over.
  bool awaits_rows;
  float* partial;      // scratch: attention_partial_floats
  uint32_t* arrivals;  // [num_spans * kv_heads * head groups], zero before and after
};

// Blocks' worth of heads that a decode piece is computed in.
int32_t attention_decode_units(int32_t num_heads, int32_t num_kv_heads);

// head_dim 32, 64, 96 or 128, and a whole number of query heads for each KV head.
bool is_attention_shape(int32_t num_heads, int32_t num_kv_heads, int32_t head_dim);
int64_t attention_partial_floats(int64_t max_pieces, int32_t num_heads, int32_t num_kv_heads,
                                 int32_t head_dim);

// Warps for a piece of a decode row: few rows leave the device to few pieces, many rows need no more than
// one. ring: one, whose blocks the copy engine brings (Hopper; is_ring_shape).
enum class DecodeWidth : uint8_t { one, two, four, eight, ring };
// How many pieces, of all units, are resident at once; and the width for so many units of rows, which have so
// many tokens of context together.
int32_t resident_pieces(DecodeWidth width, int32_t num_sms);
DecodeWidth decode_width(int64_t num_pieces, int64_t num_tokens, int32_t num_sms, bool has_ring);

// Causal attention of decode spans: a fixed grid takes the pieces in turn; the last piece of a row to arrive
// merges the row's parts in order (split-KV, Dao et al. 2023, "Flash-Decoding"). With `rope` it does
// rope_kv's work for its rows first, qkv being the product's; eight warps and the ring are for that alone.
// `planes`: kv_planes of the whole cache, read by the ring alone. `num_pieces`: a bound of the plan's.
void attention_decode(const AttentionArgs& args, const KvCache& cache, const AttentionPlan& plan,
                      const RopeKvArgs* rope, const CUtensorMap* planes, int32_t num_pieces, int32_t num_sms,
                      DecodeWidth width, cudaStream_t stream);

bool is_ring_shape(int32_t head_dim);  // of the current device, too
CUtensorMap kv_planes(const bf16* base, int64_t num_elements, int32_t num_kv_heads, int32_t head_dim);

// The same of longer spans, a block each (online softmax: Dao 2023, arXiv:2307.08691).
void attention_prefill(const AttentionArgs& args, const KvCache& cache, const AttentionPlan& plan,
                       int32_t num_pieces, cudaStream_t stream);

// The same on Hopper: pieces of kWidePrefillRows, taken in turn by a block a multiprocessor; `view` is the
// whole cache's. In a block that the span ends in, values behind its end must be finite (rope_kv leaves zeros
// there). Each piece's tokens are cut into so many runs of tiles, kMostCuts at most; cut, no more pieces of
// all units than prefill_room. `partial`: prefill_partial_floats; `arrivals`: its first word counts pieces
// taken.
bool is_wide_prefill_shape(int32_t head_dim);
int32_t prefill_units(int32_t num_heads, int32_t num_kv_heads);  // blocks' worth of heads of a piece
int32_t prefill_room(int32_t head_dim, int32_t cuts);            // on the current device
int64_t prefill_partial_floats(int32_t num_sms, int32_t head_dim);
CUtensorMap kv_view(const bf16* base, int64_t num_elements, int32_t head_dim);
void attention_prefill_wide(const AttentionArgs& args, const KvCache& cache, const AttentionPlan& plan,
                            const CUtensorMap& view, int32_t num_pieces, int32_t cuts, int32_t num_sms,
                            cudaStream_t stream);

// What the host changes between steps: (slot, index, block) triples.
void append_blocks(int32_t* block_tables, int32_t table_stride, const int32_t* triples, const int32_t* count,
                   int32_t most, cudaStream_t stream);

// Between device memory and mapped host memory, by a kernel; `count` is a multiple of 4, both 16-byte
// aligned.
void copy_words(int32_t* to, const int32_t* from, int64_t count, cudaStream_t stream);

// For benchmarks. `count` values from a key (kernels/random_values.h), a multiple of 4.
void fill_random(bf16* dst, int64_t count, uint64_t key, float scale, cudaStream_t stream);
// Reads every byte, a multiple of 16, and keeps none; `sink` is hardly ever written.
void read_through(const void* from, int64_t num_bytes, uint32_t* sink, cudaStream_t stream);

}  // namespace ion::cuda
