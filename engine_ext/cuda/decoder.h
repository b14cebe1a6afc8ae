// One forward pass of the decoder on the device, for any mix of sequences. Owns the KV cache, the block
// tables and the activations. Knows rows, slots and positions; knows no sampling, no steps, no epochs.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "cuda/device_memory.h"
#include "cuda/model.h"
#include "cuda/step_buffer.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/prompt_gemm.h"
#include "kernels/cuda/quantise.h"
#include "kernels/cuda/stream_gemm.h"

namespace ion::cuda {

struct DecoderLimits {
  int32_t max_rows = 0, max_slots = 0, max_logit_rows = 0;
  int32_t num_blocks = 0, context_length = 0;
  bool streams = true;       // Hopper's own kernels where they fit
  int32_t decode_warps = 0;  // as in IonCudaOptions
  bool is_deterministic = false;
};

// Rows of one pass; pointers are device memory. Rows without a slot (-1) pad a graph: they cost time and
// change nothing.
struct DecoderBatch {
  int64_t num_rows = 0;
  const int32_t* ids = nullptr;        // [num_rows], -1: the slot's last sampled id
  const int32_t* slots = nullptr;      // [num_rows]
  const int32_t* positions = nullptr;  // [num_rows]
  AttentionPlan plan;
  int64_t num_decode_pieces = 0;          // a bound: the plan's own count rules
  DecodeWidth width = DecodeWidth::four;  // as in StepContents, and so the next
  int64_t first_rotated = 0, num_rotated = 0;
  std::span<const int32_t> decode_launches;
  std::span<const PrefillLaunch> prefill_launches;
  std::optional<std::span<const RowRun>> wanted;  // as in StepContents
  bool has_chunks = false;
  const UnpackSpan* unpacked = nullptr;
  const int32_t* logit_rows = nullptr;  // [num_logit_rows]
  int64_t num_logit_rows = 0;
};

// The pass over a step that is laid out for `sizes` in device memory. `contents` is kept by reference.
DecoderBatch batch_of(const int32_t* step, const StepSizes& sizes, const StepContents& contents);

class Decoder {
 public:
  Decoder(const Model& model, const DecoderLimits& limits);

  // logits [num_logit_rows, vocab]. One stream at a time.
  void forward(const DecoderBatch& batch, float* logits, cudaStream_t stream);
  void copy_block(int32_t from, int32_t to, cudaStream_t stream);

  std::byte* block(int32_t index) const;  // block_bytes of it
  int64_t block_bytes() const { return model_.config().block_bytes(); }
  int32_t* block_tables() const { return block_tables_; }  // [max_slots, table_stride]
  int32_t table_stride() const { return table_stride_; }
  int32_t* last_ids() const { return last_ids_; }  // [max_slots]
  // Of a step, of a launch of attention, and how many launches a step may have.
  int64_t max_decode_pieces() const { return max_pieces_; }
  int64_t pieces_a_launch() const { return pieces_a_launch_; }
  int64_t max_decode_launches() const;
  PlanSizes plan_sizes() const;

  static int64_t scratch_bytes(const Config& config, const DecoderLimits& limits,
                               int32_t num_sms);  // all but the KV cache

 private:
  struct Layout;

  // The rows that the rest of a pass is about: their residual stream, attention's output.
  struct LastRows {
    float* x;
    bf16* mixed;
    int64_t count;
  };

  KvCache cache_of(int64_t layer) const;
  void forward_streamed(const DecoderBatch& batch, cudaStream_t stream);
  LastRows forward_blas(const DecoderBatch& batch, cudaStream_t stream);
  LastRows forward_e4m3(const DecoderBatch& batch, cudaStream_t stream);  // decoder_e4m3.cpp
  // last_ -> logits [count, vocab]
  void multiply_head(float* logits, int64_t count, cudaStream_t stream);
  LastRows pick_rows(const DecoderBatch& batch, cudaStream_t stream);
  void stream(void* y, StreamOutput output, const StreamInput& x, const Matrix& w, int64_t rows, int64_t n,
              int64_t k, cudaStream_t stream, const StreamNext& next = {});
  bool is_fused(int64_t rows) const;
  bool is_fused_qkv(const DecoderBatch& batch) const;
  RopeKvArgs rope_of(int64_t layer, const DecoderBatch& batch) const;
  void multiply_qkv(int64_t layer, const DecoderBatch& batch, cudaStream_t stream);
  void attend(int64_t layer, const DecoderBatch& batch, bool is_rotated, cudaStream_t stream);
  void attend_prompts(const AttentionArgs& args, const KvCache& cache, const DecoderBatch& batch,
                      bool is_last, cudaStream_t stream);
  void attend_decode(const AttentionArgs& args, const KvCache& cache, const DecoderBatch& batch,
                     const RopeKvArgs* rope, cudaStream_t stream);
  void multiply(bf16* y, const bf16* x, const bf16* w, int64_t rows, int64_t n, int64_t k,
                cudaStream_t stream);
  void add_branch(const LastRows& at, const bf16* branch, const bf16* w, int64_t k, const float* norm,
                  cudaStream_t stream);
  ProductScales multiply_quantised(bf16* y, const Matrix& w, int64_t rows, int64_t n, int64_t k,
                                   cudaStream_t stream);

  const Model& model_;
  DecoderLimits limits_;
  int64_t max_pieces_ = 0, pieces_a_launch_ = 0;
  int32_t table_stride_ = 0;
  int32_t num_sms_ = 0;
  int64_t stream_rows_ = 0;   // products of so many rows are streamed; 0: none
  DeviceMemory kv_;           // [num_blocks] blocks
  DeviceMemory scratch_;      // everything below
  float* x_ = nullptr;        // [max_rows, hidden], the residual stream
  float* picked_ = nullptr;   // [max_logit_rows, hidden], of x_
  bf16* normed_ = nullptr;    // [max_rows, hidden], a branch's input, then its output
  bf16* qkv_ = nullptr;       // [max_rows, qkv_size]
  bf16* mixed_ = nullptr;     // [max_rows, q_size]
  bf16* gate_up_ = nullptr;   // [max_rows, 2 ffn]
  bf16* gated_ = nullptr;     // [max_rows, ffn]
  bf16* last_ = nullptr;      // [max_logit_rows, hidden]
  float* partial_ = nullptr;  // attention's
  uint32_t* arrivals_ = nullptr;
  float2* rotations_ = nullptr;  // [context_length, head_dim / 2]
  int32_t* block_tables_ = nullptr;
  int32_t* last_ids_ = nullptr;
  StreamScratch streaming_{};  // null where the model is not tiled
  StreamDevice stream_device_;
  StreamInput normed_view_, mixed_view_, gated_view_, last_view_;
  int32_t prompt_clusters_ = 0;  // of prompt_gemm; 0: there is none
  CUtensorMap prompt_view_{};    // of normed_, where there is one
  bool is_wide_prefill_ = false;
  CUtensorMap kv_view_{};        // where it is, of the cache that prompts read
  int32_t unpacked_blocks_ = 0;  // of a cache of codes; 0: it is not of codes
  bf16* unpacked_ = nullptr;     // a layer's
  int32_t* unpacked_tables_ = nullptr;
  bool has_ring_ = false;           // DecodeWidth::ring
  CUtensorMap kv_planes_{};         // where it has
  QuantisedRows quantised_last_{};  // [max_logit_rows, hidden], where the head is e4m3
  QuantisedRows quantised_{};       // [max_rows, the widest], a product's input, where matrices are e4m3
};

}  // namespace ion::cuda
