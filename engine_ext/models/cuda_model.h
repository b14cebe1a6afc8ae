// A model on a GPU: the same files as models/model.h reads, its weights as bfloat16 or e4m3 behind
// cuda/ion_cuda.h.
// Knows no sequences, no scheduling, and no CUDA beyond that interface.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/cuda_library.h"
#include "models/model_config.h"

namespace ion {

struct ModelFiles;

// Of the matrices of the layers on the device.
enum class CudaPrecision : uint8_t {
  as_stored,  // fp8 where the files hold a layer's matrix as such, else bf16
  bf16,
  fp8,
};

// Of the head and of the KV cache, however the files hold them.
enum class CudaFormat : uint8_t { bf16, fp8 };

struct CudaModelOptions {
  int threads = 0;     // that convert weights; 0: one per available CPU
  std::string blaslt;  // path of libcublasLt.so; empty: the library searches
  CudaPrecision precision = CudaPrecision::as_stored;
  CudaFormat head_precision = CudaFormat::bf16, kv_precision = CudaFormat::bf16;
};

class CudaModel {
 public:
  // Both throw WeightError for files or a precision that cannot be computed with, MemoryShort where the GPU
  // has too little, std::runtime_error for a library or GPU that is missing or fails.
  static std::shared_ptr<const CudaModel> load_gguf(const std::string& path, const CudaModelOptions& options);
  static std::shared_ptr<const CudaModel> load_safetensors(std::span<const std::string> paths,
                                                           const std::string& config_json,
                                                           const CudaModelOptions& options);
  // As Model::random; where nothing is quantised, matrices are made on the device.
  static std::shared_ptr<const CudaModel> random(const std::string& config_json, uint64_t seed,
                                                 const CudaModelOptions& options);
  ~CudaModel();
  CudaModel(const CudaModel&) = delete;
  CudaModel& operator=(const CudaModel&) = delete;

  const ModelConfig& config() const { return config_; }
  const CudaLibrary& library() const { return library_; }
  IonCudaModel* handle() const { return handle_; }
  bool is_fp8() const { return is_fp8_; }
  CudaFormat head_precision() const { return head_precision_; }
  CudaFormat kv_precision() const { return kv_precision_; }
  int64_t num_bytes() const { return num_bytes_; }            // of all weights on the device
  int64_t streamed_bytes() const { return streamed_bytes_; }  // as Model::streamed_bytes
  int64_t kv_block_bytes() const { return kv_block_bytes_; }  // of 16 tokens, all layers

  // As Model::logits.
  std::vector<float> logits(std::span<const int32_t> tokens, int32_t chunk) const;

 private:
  CudaModel(const CudaLibrary& library, ModelConfig config) : library_(library), config_(std::move(config)) {}
  static std::shared_ptr<const CudaModel> load(const ModelFiles& files, const CudaModelOptions& options);

  const CudaLibrary& library_;
  const ModelConfig config_;
  IonCudaModel* handle_ = nullptr;
  bool is_fp8_ = false;
  CudaFormat head_precision_ = CudaFormat::bf16, kv_precision_ = CudaFormat::bf16;
  int64_t num_bytes_ = 0, streamed_bytes_ = 0, kv_block_bytes_ = 0;
};

}  // namespace ion
