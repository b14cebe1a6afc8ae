// A model's files, opened: its config and its tensors by GGUF name, from either container. Knows no weights
// in memory and no device.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/gguf.h"
#include "models/memory.h"
#include "models/model_config.h"
#include "models/safetensors.h"
#include "models/weights.h"

namespace ion {

// `tensors` point into the files, which the object keeps mapped. Both throw WeightError.
struct ModelFiles {
  static ModelFiles open_gguf(const std::string& path);
  static ModelFiles open_safetensors(std::span<const std::string> paths, const std::string& config_json);
  // No files at all: what the config wants, with values from a seed (models/random_model.h). Without
  // a pool to make them, matrices have no data.
  static ModelFiles random(const std::string& config_json, uint64_t seed, kernels::ThreadPool* pool);

  // After all is read: throws WeightError if some of the files was not there (FileMap).
  void require_whole() const;

  ModelConfig config;
  NamedTensors tensors;
  std::unique_ptr<const GgufFile> gguf;
  std::unique_ptr<const SafetensorsFiles> safetensors;
  std::optional<uint64_t> seed;  // of a random model
  std::vector<Tensor> random_tensors;
  Memory random_data;
};

}  // namespace ion
