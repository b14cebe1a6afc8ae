// Two containers, one view of what is in them.
#include "models/model_files.h"

#include "models/random_model.h"
#include "models/weight_error.h"

namespace ion {
namespace {

// A GGUF may leave vocab_size to the embedding's shape.
int32_t vocab_size_of(const NamedTensors& tensors) {
  const auto found = tensors.find("token_embd.weight");
  if (found == tensors.end()) throw WeightError("tensor 'token_embd.weight' is missing");
  const std::vector<int64_t>& shape = found->second->shape;
  if (shape.size() != 2 || shape[0] > INT32_MAX) {
    throw WeightError("tensor 'token_embd.weight': [vocab, hidden] wanted, " + shape_text(shape) + " found");
  }
  return static_cast<int32_t>(shape[0]);
}

ModelConfig read_config(const std::string& text) {
  try {
    return config_from_json(parse_json(text));
  } catch (const WeightError& error) {
    throw WeightError("config.json: " + std::string(error.what()));
  }
}

}  // namespace

ModelFiles ModelFiles::open_gguf(const std::string& path) {
  ModelFiles out;
  out.gguf = std::make_unique<const GgufFile>(path);
  for (const Tensor& tensor : out.gguf->tensors()) out.tensors.emplace(tensor.name, &tensor);
  out.config = config_from_gguf(*out.gguf);
  if (out.config.vocab_size == 0) out.config.vocab_size = vocab_size_of(out.tensors);
  return out;
}

ModelFiles ModelFiles::open_safetensors(std::span<const std::string> paths, const std::string& config_json) {
  ModelFiles out;
  out.safetensors = std::make_unique<const SafetensorsFiles>(paths);
  for (const Tensor& tensor : out.safetensors->tensors()) {
    const std::string name = canonical_name(tensor.name);
    if (!name.empty()) out.tensors.emplace(name, &tensor);
  }
  out.config = read_config(config_json);
  if (out.config.has_own_head && !out.tensors.contains("output.weight")) {
    throw WeightError("tensor 'lm_head.weight' is missing, and config.json: 'tie_word_embeddings' is false");
  }
  return out;
}

void ModelFiles::require_whole() const {
  if (gguf != nullptr) gguf->require_whole();
  if (safetensors != nullptr) safetensors->require_whole();
}

ModelFiles ModelFiles::random(const std::string& config_json, uint64_t seed, kernels::ThreadPool* pool) {
  ModelFiles out;
  out.config = read_config(config_json);
  out.seed = seed;
  out.random_tensors = ion::random_tensors(out.config);
  out.random_data = make_random_data(out.random_tensors, seed, pool);
  for (const Tensor& tensor : out.random_tensors) out.tensors.emplace(canonical_name(tensor.name), &tensor);
  return out;
}

}  // namespace ion
