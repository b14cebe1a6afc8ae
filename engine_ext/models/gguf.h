// GGUF v2/v3 files: metadata and where the tensors lie. Knows the container only: no architecture, no
// arithmetic.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "models/file_map.h"
#include "models/tensor.h"

namespace ion {

// Value types of the format, by their numbers in the file.
enum class GgufType : uint32_t {
  kUint8 = 0,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
};

struct GgufArray;

// Strings are views into the mapping: copy them to keep them longer than the file.
using GgufValue = std::variant<bool, int64_t, uint64_t, double, std::string_view, GgufArray>;

// `values` for strings and nested arrays; numbers stay as raw little-endian bytes of the file, so that an
// array never costs more than a small multiple of its size there.
struct GgufArray {
  GgufType type = GgufType::kUint8;
  uint64_t count = 0;
  std::span<const std::byte> raw;
  std::vector<GgufValue> values;

  GgufValue at(uint64_t i) const;
};

// Everything is checked against the file's size while opening; a fault throws WeightError that names
// the place (key, tensor, byte offset) and the fault. Tensors of types we cannot read are listed all the
// same.
class GgufFile {
 public:
  explicit GgufFile(const std::string& path);

  const std::map<std::string, GgufValue, std::less<>>& metadata() const { return metadata_; }
  const std::vector<Tensor>& tensors() const { return tensors_; }
  const std::string& path() const { return file_.path(); }
  void require_whole() const { file_.require_whole(); }

 private:
  FileMap file_;
  std::map<std::string, GgufValue, std::less<>> metadata_;
  std::vector<Tensor> tensors_;
};

}  // namespace ion
