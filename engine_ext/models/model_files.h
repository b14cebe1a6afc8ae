// A model's files, opened: its config and its tensors by GGUF name, from either container. Knows no weights
// in memory and no device.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "models/gguf.h"
#include "models/model_config.h"
#include "models/safetensors.h"
#include "models/weights.h"

namespace ion {

// `tensors` point into the files, which the object keeps mapped. Both throw WeightError.
struct ModelFiles {
  static ModelFiles open_gguf(const std::string& path);
  static ModelFiles open_safetensors(std::span<const std::string> paths, const std::string& config_json);

  ModelConfig config;
  NamedTensors tensors;
  std::unique_ptr<const GgufFile> gguf;
  std::unique_ptr<const SafetensorsFiles> safetensors;
};

}  // namespace ion
