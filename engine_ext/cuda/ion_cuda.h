/* The C interface of libion_cuda: a decoder and its runner on one NVIDIA GPU. Everything CUDA is behind it:
 * no torch, no Python, cudart linked in, cuBLASLt found at run time. core/runner.h says what a step means;
 * here it is flat arrays. Calls return 0 or -1 (ion_cuda_error says why, of this thread), or null where they
 * make something. One thread at a time for a runner; models may be read by several runners.
 */
#ifndef ION_CUDA_H
#define ION_CUDA_H

#include <stdint.h>

#if defined(__GNUC__)
#define ION_CUDA_API __attribute__((visibility("default")))
#else
#define ION_CUDA_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define ION_CUDA_ABI 5
#define ION_CUDA_MAX_LOGPROBS 20

typedef struct IonCudaModel IonCudaModel;
typedef struct IonCudaRunner IonCudaRunner;

/* Of the values of QKV, O, GATE_UP and DOWN, of the head, of the KV cache; the embedding is bf16. */
typedef enum {
  ION_CUDA_BF16,
  ION_CUDA_E4M3 /* a value is its code times its row's scale; from compute capability 8.9 on */
} IonCudaMatrixType;

typedef struct {
  int32_t num_layers, hidden_size, num_heads, num_kv_heads, head_dim, ffn_size, vocab_size;
  float rms_eps;
  int32_t has_qkv_bias, has_qk_norm, is_head_tied; /* tied: ION_CUDA_HEAD is ION_CUDA_EMBEDDING */
  const double* rope_frequencies;                  /* [head_dim / 2] radians a position, divisors applied */
  const int32_t* windows;                          /* [num_layers] or null; p sees (p - window, p], 0: all */
  int32_t matrix_type;                             /* IonCudaMatrixType */
  int32_t head_type; /* of ION_CUDA_HEAD; with e4m3 is_head_tied is 0: the embedding is bf16 */
  int32_t kv_type;   /* of the cache: e4m3 with a float scale for each token and head of K and of V */
} IonCudaConfig;

/* Matrices are [rows, cols] row-major, bf16 where matrix_type and head_type say nothing else; vectors
 * float32. */
typedef enum {
  ION_CUDA_EMBEDDING,   /* [vocab, hidden], layer 0 */
  ION_CUDA_HEAD,        /* [vocab, hidden], layer 0 */
  ION_CUDA_OUTPUT_NORM, /* float [hidden], layer 0 */
  ION_CUDA_ATTN_NORM,   /* float [hidden] */
  ION_CUDA_QKV,         /* [q_size + 2 * kv_size, hidden]: q, k, v; q and k rows in half-split order */
  ION_CUDA_QKV_BIAS,    /* float [q_size + 2 * kv_size] */
  ION_CUDA_Q_NORM,      /* float [head_dim] */
  ION_CUDA_K_NORM,      /* float [head_dim] */
  ION_CUDA_O,           /* [hidden, q_size] */
  ION_CUDA_FFN_NORM,    /* float [hidden] */
  ION_CUDA_GATE_UP,     /* [2 * ffn, hidden]: gate, up */
  ION_CUDA_DOWN,        /* [hidden, ffn] */
  /* With ION_CUDA_E4M3 alone: a float for each row of these matrices; the head's is of layer 0. */
  ION_CUDA_QKV_SCALE,
  ION_CUDA_O_SCALE,
  ION_CUDA_GATE_UP_SCALE,
  ION_CUDA_DOWN_SCALE,
  ION_CUDA_HEAD_SCALE
} IonCudaWeight;

typedef struct {
  char name[256];
  int32_t compute_major, compute_minor, num_sms, driver_version, runtime_version;
  int64_t total_bytes, free_bytes;
  int32_t is_coherent; /* the host's memory can be read and written in place (GH200) */
} IonCudaDevice;

typedef struct {
  int32_t max_slots, max_tokens_per_step, num_blocks, context_length;
  int32_t num_host_blocks; /* second tier in pinned host memory; 0: none */
  int32_t use_graphs;      /* decode steps from CUDA graphs, captured when first needed */
  int32_t use_streams;  /* Hopper's own kernels where they fit: attention of prompts, and products over tiled
                           weights */
  int32_t decode_warps; /* of attention for a piece of a decode row: 0: as many as are free; for checks 1, 2,
                           4: so many, and -1: one that the copy engine feeds, where that can be */
  /* A sequence's ids and log-probabilities have the same bits whatever runs beside it, however its prompt is
   * cut and whatever the cache held. Wants tiled weights and use_streams. */
  int32_t is_deterministic;
} IonCudaOptions;

typedef struct {
  int32_t slot, start, count, flags; /* flags: RowFlag of core/runner.h */
} IonCudaRow;

typedef struct {
  float temperature, top_p, min_p, top_a, repetition_penalty, presence_penalty, frequency_penalty;
  int32_t top_k, min_tokens, num_logprobs; /* num_logprobs -1: none; at most ION_CUDA_MAX_LOGPROBS */
  uint64_t seed;
} IonCudaSampling;

typedef struct {
  int32_t slot, num_ids, num_prompt; /* ids: prompt, then tokens generated before a preemption */
  const int32_t* ids;
  IonCudaSampling sampling;
  int32_t num_stop_ids, num_biases;
  const int32_t* stop_ids;
  const int32_t* bias_ids; /* [num_biases] */
  const float* biases;     /* [num_biases] */
} IonCudaJoin;

typedef struct {
  int32_t slot, index, block;
} IonCudaAppended;

typedef struct {
  int32_t from, to;
} IonCudaCopy;

typedef struct {
  uint64_t epoch;
  int32_t num_rows, num_leaves, num_joins, num_blocks, num_copies;
  const IonCudaRow* rows;
  const int32_t* leaves; /* slots */
  const IonCudaJoin* joins;
  const IonCudaAppended* blocks;
  const IonCudaCopy* copies;
} IonCudaStep;

typedef struct {
  int32_t slot;
  int32_t num_words;
  const uint32_t* words;
} IonCudaMask;

typedef struct {
  int32_t id;        /* -1: nothing may be sampled, or not finite */
  int32_t is_finite; /* 0: the logits held NaN or infinity */
  float logprob;
  int32_t num_top;
  int32_t top_ids[ION_CUDA_MAX_LOGPROBS];
  float top_logprobs[ION_CUDA_MAX_LOGPROBS];
} IonCudaSample;

/* `slots` and `samples` [num_samples], in row order of the rows with kRowSample, live until the next poll. */
typedef struct {
  uint64_t epoch;
  int32_t num_samples;
  const int32_t* slots;
  const IonCudaSample* samples;
  double seconds; /* on the device */
} IonCudaResult;

ION_CUDA_API int32_t ion_cuda_abi(void);
ION_CUDA_API const char* ion_cuda_error(void);
/* -1 without a GPU or driver. */
ION_CUDA_API int ion_cuda_device(int32_t index, IonCudaDevice* out);

/* Bytes a second of a plain read of device memory; takes 2 GiB of it meanwhile. For benchmarks. */
ION_CUDA_API int ion_cuda_read_bandwidth(int32_t device, double* out);

/* Allocates all weights, unset. `blaslt` is a path of libcublasLt.so, or null to search. */
ION_CUDA_API IonCudaModel* ion_cuda_model_create(const IonCudaConfig* config, int32_t device,
                                                 const char* blaslt);
ION_CUDA_API void ion_cuda_model_destroy(IonCudaModel* model);
ION_CUDA_API int64_t ion_cuda_model_bytes(const IonCudaConfig* config);
ION_CUDA_API int64_t ion_cuda_block_bytes(const IonCudaConfig* config); /* of one KV block, all layers */
/* Copies rows [first_row, first_row + num_rows) from host memory, in the weight's own type; an element of a
 * vector is a row. */
ION_CUDA_API int ion_cuda_model_write(IonCudaModel* model, IonCudaWeight weight, int32_t layer,
                                      int64_t first_row, int64_t num_rows, const void* rows);
/* Fills rows of a matrix on the device with values that follow from `key` (kernels/random_values.h), uniform
 * in
 * [-scale, scale). For benchmarks. */
ION_CUDA_API int ion_cuda_model_fill(IonCudaModel* model, IonCudaWeight weight, int32_t layer,
                                     int64_t first_row, int64_t num_rows, uint64_t key, float scale);
/* Where a weight lies on the device, for filling it there; null if the model has none. */
ION_CUDA_API void* ion_cuda_model_pointer(IonCudaModel* model, IonCudaWeight weight, int32_t layer);

/* After all weights are written: makes the tiled copies that steps of few tokens stream, where the device can
 * and they leave 30% of its memory. Without them everything works, more slowly. */
ION_CUDA_API int ion_cuda_model_tile(IonCudaModel* model);

/* What a runner allocates on the device beside its KV blocks; -1 on error. Making one with is_deterministic
 * fails where the model has no tiled copies, and says why it has none. */
ION_CUDA_API int64_t ion_cuda_runner_bytes(const IonCudaModel* model, const IonCudaOptions* options);
ION_CUDA_API IonCudaRunner* ion_cuda_runner_create(IonCudaModel* model, const IonCudaOptions* options);
ION_CUDA_API void ion_cuda_runner_destroy(IonCudaRunner* runner);
/* Never waits for the device; at most 4 steps may be in flight. */
ION_CUDA_API int ion_cuda_submit(IonCudaRunner* runner, const IonCudaStep* step);
/* Once for each step that has kRowGrammar rows; its sampling, and the steps behind it, wait for them. */
ION_CUDA_API int ion_cuda_upload_masks(IonCudaRunner* runner, uint64_t epoch, const IonCudaMask* masks,
                                       int32_t num_masks);
/* 1: `out` is the oldest step's result; 0: it is not finished; -1: it failed and is over. */
ION_CUDA_API int ion_cuda_poll(IonCudaRunner* runner, IonCudaResult* out, int32_t wait);

/* Between a KV block and the second tier; a ticket is never 0, which is an error. Copies each way end in the
 * order they began. */
ION_CUDA_API uint64_t ion_cuda_copy_out(IonCudaRunner* runner, int32_t block, int32_t host_block);
ION_CUDA_API uint64_t ion_cuda_copy_in(IonCudaRunner* runner, int32_t host_block, int32_t block);
/* 0: pending, 1: done, -1: failed. */
ION_CUDA_API int ion_cuda_copy_state(IonCudaRunner* runner, uint64_t ticket, int32_t wait);

/* Teacher-forced float32 logits [num_ids, vocab] into host memory, for checks; `chunk` tokens a pass;
 * use_streams as above. */
ION_CUDA_API int ion_cuda_logits(IonCudaModel* model, const int32_t* ids, int32_t num_ids, int32_t chunk,
                                 int32_t use_streams, float* logits);

#ifdef __cplusplus
}
#endif
#endif
