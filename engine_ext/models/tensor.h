// A tensor as it lies in a file: type, shape, bytes. Knows no container format and no model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ion {

// Numbered as in GGUF, so that a file's id can be named even where we cannot compute with the type; what GGUF
// does not have comes after 255.
enum class TensorType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBF16 = 30,
  kE4M3 = 256,  // safetensors' F8_E4M3; a matrix of it has a tensor of scales
};

// A type's storage: `block_bytes` hold `block_size` values. Ids and sizes: the GGUF specification.
struct TensorTypeInfo {
  uint32_t id;
  std::string_view name;
  uint32_t block_size;
  uint32_t block_bytes;
  bool is_supported;
};

const TensorTypeInfo* find_tensor_type(uint32_t id);  // nullptr: unknown id
std::string supported_type_names();                   // "F32, F16, ..."

// A view; the bytes belong to the FileMap of the file it came from.
struct Tensor {
  std::string name;
  std::string type_name;           // as the file's format spells it
  std::optional<TensorType> type;  // empty: a type that we do not read
  std::vector<int64_t> shape;      // outermost first: [rows, cols], as in safetensors and torch
  std::span<const std::byte> data;
  std::string file;  // its path, where a model lies in several; empty: there is one
};

int64_t num_values(const Tensor& tensor);     // of a shape that is known to fit
std::string described(const Tensor& tensor);  // "'model-1.safetensors': tensor 'model.norm.weight'"

std::string shape_text(std::span<const int64_t> shape);  // "[576, 1536]"

}  // namespace ion
