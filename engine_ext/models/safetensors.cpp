// Reading of safetensors headers. Format: an 8-byte little-endian length, a JSON header, then tensor bytes
// that cover the rest of the file without gap or overlap.
#include "models/safetensors.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "models/json.h"
#include "models/weight_error.h"

namespace ion {
namespace {

constexpr uint64_t kMaxHeaderBytes = 16 << 20;  // about 100,000 tensors; the format itself allows 100 MB

struct TypeName {
  std::string_view name;
  TensorType type;
  uint32_t num_bytes;
};

constexpr TypeName kTypeNames[] = {
    {"F32", TensorType::kF32, 4},
    {"F16", TensorType::kF16, 2},
    {"BF16", TensorType::kBF16, 2},
    {"F8_E4M3", TensorType::kE4M3, 1},
};

struct Extent {
  uint64_t begin, end;
  std::string name;
};

class Shard {
 public:
  explicit Shard(const FileMap& file) : path_(file.path()), bytes_(file.bytes()) {}

  void read(std::vector<Tensor>& out) {
    const Json header = read_header();
    if (header.object() == nullptr) fail("the header is not an object");
    for (const auto& [name, entry] : *header.object()) {
      if (name != "__metadata__") out.push_back(read_tensor(name, entry));
    }
    check_cover();
  }

 private:
  [[noreturn]] void fail(const std::string& fault) const {
    throw WeightError(quoted_path(path_) + ": " + fault);
  }

  Json read_header() {
    uint64_t length = 0;
    if (bytes_.size() < sizeof length) fail("shorter than a safetensors header (truncated or foreign)");
    std::memcpy(&length, bytes_.data(), sizeof length);
    if (length > kMaxHeaderBytes || length > bytes_.size() - sizeof length) {
      fail("header of " + std::to_string(length) + " bytes in a file of " + std::to_string(bytes_.size()) +
           " (truncated or foreign)");
    }
    const auto* text = reinterpret_cast<const char*>(bytes_.data() + sizeof length);
    data_ = bytes_.subspan(sizeof length + length);
    try {
      return parse_json({text, length});
    } catch (const WeightError& error) {
      fail("header: " + std::string(error.what()));
    }
  }

  Tensor read_tensor(const std::string& name, const Json& entry) {
    const std::string what = "tensor " + quoted(name);
    const JsonObject* fields = entry.object();
    if (fields == nullptr) fail(what + ": not an object");
    const auto field = [&](const char* key) -> const Json& {
      const auto found = fields->find(key);
      if (found == fields->end()) fail(what + ": no " + key);
      return found->second;
    };
    Tensor out;
    out.name = name;
    out.file = path_;
    const std::string* type = field("dtype").string();
    if (type == nullptr) fail(what + ": dtype is not a string");
    out.shape = whole_numbers(field("shape"), what + ": shape");
    const auto offsets = whole_numbers(field("data_offsets"), what + ": data_offsets");
    if (offsets.size() != 2 || offsets[0] > offsets[1]) fail(what + ": data_offsets are not [begin, end]");
    const auto begin = static_cast<uint64_t>(offsets[0]), end = static_cast<uint64_t>(offsets[1]);
    if (end > data_.size()) {
      fail(what + ": wants bytes up to " + std::to_string(end) + " of the " + std::to_string(data_.size()) +
           " bytes of tensor data (truncated or corrupt)");
    }
    out.data = data_.subspan(begin, end - begin);
    extents_.push_back({begin, end, name});
    const auto* known = std::ranges::find(kTypeNames, *type, &TypeName::name);
    out.type_name = *type;
    if (known != std::end(kTypeNames)) {
      out.type = known->type;
      check_size(out, known->num_bytes, what);
    }
    return out;
  }

  std::vector<int64_t> whole_numbers(const Json& json, const std::string& what) const {
    if (json.array() == nullptr) fail(what + " is not a list");
    std::vector<int64_t> out;
    for (const Json& item : *json.array()) {
      if (item.integer() == nullptr || *item.integer() < 0)
        fail(what + " holds something other than whole numbers");
      out.push_back(*item.integer());
    }
    return out;
  }

  void check_size(const Tensor& tensor, uint32_t value_bytes, const std::string& what) const {
    unsigned __int128 size = value_bytes;
    for (int64_t dim : tensor.shape) {
      size *= static_cast<uint64_t>(dim);
      if (size > INT64_MAX) fail(what + ": shape " + shape_text(tensor.shape) + " is larger than any file");
    }
    if (size != tensor.data.size()) {
      fail(what + ": shape " + shape_text(tensor.shape) + " needs " +
           std::to_string(static_cast<uint64_t>(size)) + " bytes, its data_offsets hold " +
           std::to_string(tensor.data.size()));
    }
  }

  void check_cover() {
    std::ranges::sort(extents_, {}, [](const Extent& e) { return std::pair(e.begin, e.end); });
    uint64_t at = 0;
    for (const Extent& extent : extents_) {
      if (extent.begin < at) fail("tensor " + quoted(extent.name) + ": overlaps the tensor before it");
      if (extent.begin > at) fail("tensor " + quoted(extent.name) + ": unused bytes before it");
      at = extent.end;
    }
    if (at != data_.size()) fail(std::to_string(data_.size() - at) + " unused bytes after the last tensor");
  }

  std::string path_;
  std::span<const std::byte> bytes_, data_;
  std::vector<Extent> extents_;
};

}  // namespace

SafetensorsFiles::SafetensorsFiles(std::span<const std::string> paths) {
  if (paths.empty()) throw WeightError("no safetensors file given");
  for (const std::string& path : paths) Shard(files_.emplace_back(path)).read(tensors_);
  std::map<std::string_view, const Tensor*> known;
  for (const Tensor& tensor : tensors_) {
    const auto [first, is_new] = known.emplace(tensor.name, &tensor);
    if (!is_new) {
      throw WeightError(described(tensor) + " appears in two safetensors files, also in " +
                        quoted_path(first->second->file));
    }
  }
}

}  // namespace ion
