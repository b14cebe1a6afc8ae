// Loading onto the GPU, and teacher-forced logits from there.
#include "models/cuda_model.h"

#include <algorithm>
#include <stdexcept>

#include "models/cuda_weights.h"
#include "models/model.h"
#include "models/model_files.h"
#include "models/weight_error.h"

namespace ion {
namespace {

// `what` is fp8 here, because of `option`.
void require_fp8(const IonCudaDevice& device, const std::string& what, const std::string& option) {
  if (10 * device.compute_major + device.compute_minor >= 89) return;
  throw WeightError(what + " wants a GPU of compute capability 8.9 or more; " + std::string(device.name) +
                    " has " + std::to_string(device.compute_major) + "." +
                    std::to_string(device.compute_minor) + "; " + option + ": bf16 computes there");
}

// What the options come to with these weights.
CudaTypes types_of(const CudaModelOptions& options, const std::vector<FoundWeight>& found,
                   const IonCudaDevice& device) {
  CudaTypes out;
  if (options.precision == CudaPrecision::fp8 ||
      (options.precision == CudaPrecision::as_stored && has_e4m3(found))) {
    require_fp8(device, "fp8", "precision");
    out.matrices = ION_CUDA_E4M3;
  }
  if (options.head_precision == CudaFormat::fp8) {
    require_fp8(device, "head_precision fp8", "head_precision");
    out.head = ION_CUDA_E4M3;
  }
  if (options.kv_precision == CudaFormat::fp8) {
    require_fp8(device, "kv_precision fp8", "kv_precision");
    out.kv = ION_CUDA_E4M3;
  }
  return out;
}

}  // namespace

std::shared_ptr<const CudaModel> CudaModel::load_gguf(const std::string& path,
                                                      const CudaModelOptions& options) {
  return load(ModelFiles::open_gguf(path), options);
}

std::shared_ptr<const CudaModel> CudaModel::load_safetensors(std::span<const std::string> paths,
                                                             const std::string& config_json,
                                                             const CudaModelOptions& options) {
  return load(ModelFiles::open_safetensors(paths, config_json), options);
}

std::shared_ptr<const CudaModel> CudaModel::random(const std::string& config_json, uint64_t seed,
                                                   const CudaModelOptions& options) {
  // What is quantised is quantised on the host.
  const bool is_quantised =
      options.precision == CudaPrecision::fp8 || options.head_precision == CudaFormat::fp8;
  const auto pool = is_quantised ? shared_pool(options.threads) : nullptr;
  return load(ModelFiles::random(config_json, seed, pool.get()), options);
}

std::shared_ptr<const CudaModel> CudaModel::load(const ModelFiles& files, const CudaModelOptions& options) {
  const CudaLibrary& library = cuda_library();
  const IonCudaDevice device = cuda_device(library);
  const std::vector<FoundWeight> found = find_weights(files.config, files.tensors, true);
  refuse_inexpressible(files.config, found);
  const CudaTypes types = types_of(options, found, device);
  const CudaConfig config(files.config, found, files.tensors, types);

  std::shared_ptr<CudaModel> model(new CudaModel(library, files.config));
  model->is_fp8_ = types.matrices == ION_CUDA_E4M3;
  model->head_precision_ = options.head_precision;
  model->kv_precision_ = options.kv_precision;
  model->num_bytes_ = library.model_bytes(&config.values);
  const int64_t embedding_bytes = int64_t{2} * files.config.vocab_size * files.config.hidden_size;
  model->streamed_bytes_ = model->num_bytes_ - (config.values.is_head_tied ? 0 : embedding_bytes);
  model->kv_block_bytes_ = library.block_bytes(&config.values);
  if (model->num_bytes_ < 1 || model->kv_block_bytes_ < 1) {
    throw WeightError("not a model that CUDA computes: " + library.why());
  }
  if (model->num_bytes_ > device.free_bytes) {
    throw MemoryShort("the model's weights on " + std::string(device.name) + ": " +
                      std::to_string(model->num_bytes_) + " bytes needed, " +
                      std::to_string(device.free_bytes) + " available");
  }
  const char* blaslt = options.blaslt.empty() ? nullptr : options.blaslt.c_str();
  model->handle_ = library.model_create(&config.values, 0, blaslt);
  if (model->handle_ == nullptr) throw WeightError("CUDA refuses the model: " + library.why());
  const WriteRows write = [&](IonCudaWeight weight, int32_t layer, int64_t first_row, int64_t num_rows,
                              const void* rows) {
    if (library.model_write(model->handle_, weight, layer, first_row, num_rows, rows) != 0) {
      throw std::runtime_error("writing weights to the GPU failed: " + library.why());
    }
  };
  const FillRows fill = [&](IonCudaWeight weight, int32_t layer, int64_t first_row, int64_t num_rows,
                            const RandomRecipe& recipe) {
    if (library.model_fill(model->handle_, weight, layer, first_row, num_rows, recipe.key, recipe.scale) !=
        0) {
      throw std::runtime_error("making weights on the GPU failed: " + library.why());
    }
  };
  const auto pool = shared_pool(options.threads);
  if (files.seed && types.matrices == ION_CUDA_BF16 && types.head == ION_CUDA_BF16) {
    make_weights(files.config, found, *files.seed, *pool, write, fill);
  } else {
    convert_weights(files.config, found, types, *pool, write);
  }
  files.require_whole();
  if (library.model_tile(model->handle_) != 0) {
    throw std::runtime_error("tiling weights on the GPU failed: " + library.why());
  }
  return model;
}

CudaModel::~CudaModel() {
  if (handle_ != nullptr) library_.model_destroy(handle_);
}

std::vector<float> CudaModel::logits(std::span<const int32_t> tokens, int32_t chunk) const {
  constexpr int32_t kMaxChunk = 2048;
  check_tokens(tokens, config_.vocab_size);
  const auto num_tokens = static_cast<int32_t>(tokens.size());
  const int32_t step = std::clamp(chunk > 0 ? chunk : kMaxChunk, 1, std::min(kMaxChunk, num_tokens));
  std::vector<float> out(tokens.size() * static_cast<size_t>(config_.vocab_size));
  if (library_.logits(handle_, tokens.data(), num_tokens, step, 1, out.data()) != 0) {
    throw std::runtime_error("logits on CUDA failed: " + library_.why());
  }
  return out;
}

}  // namespace ion
