// Safetensors files, one or several shards: where the tensors lie. Knows the container only.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "models/file_map.h"
#include "models/tensor.h"

namespace ion {

// Types of the format that we read are F32, F16, BF16 and F8_E4M3; others are listed without `type` and
// refused by name when something asks for them. Throws WeightError as GgufFile does.
class SafetensorsFiles {
 public:
  explicit SafetensorsFiles(std::span<const std::string> paths);

  const std::vector<Tensor>& tensors() const { return tensors_; }
  void require_whole() const {
    for (const FileMap& file : files_) file.require_whole();
  }

 private:
  std::vector<FileMap> files_;
  std::vector<Tensor> tensors_;
};

}  // namespace ion
