// Reading of GGUF, byte by checked byte. Format: the GGUF specification, versions 2 and 3, little-endian.
#include "models/gguf.h"

#include <bit>
#include <cstring>
#include <set>

#include "models/weight_error.h"

namespace ion {
namespace {

constexpr uint32_t kMaxDims = 4;
constexpr int kMaxArrayDepth = 4;  // the format sets none; a bound keeps recursion finite
constexpr uint64_t kDefaultAlignment = 32;

uint32_t scalar_bytes(GgufType type) {
  static constexpr uint32_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};  // 0: not a fixed size
  return kBytes[static_cast<uint32_t>(type)];
}

template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

GgufValue load_scalar(GgufType type, const std::byte* at) {
  switch (type) {
    case GgufType::kUint8:
      return uint64_t{load<uint8_t>(at)};
    case GgufType::kInt8:
      return int64_t{load<int8_t>(at)};
    case GgufType::kUint16:
      return uint64_t{load<uint16_t>(at)};
    case GgufType::kInt16:
      return int64_t{load<int16_t>(at)};
    case GgufType::kUint32:
      return uint64_t{load<uint32_t>(at)};
    case GgufType::kInt32:
      return int64_t{load<int32_t>(at)};
    case GgufType::kFloat32:
      return double{load<float>(at)};
    case GgufType::kBool:
      return load<uint8_t>(at) != 0;
    case GgufType::kUint64:
      return load<uint64_t>(at);
    case GgufType::kInt64:
      return load<int64_t>(at);
    case GgufType::kFloat64:
      return load<double>(at);
    default:
      throw WeightError("a string or array where a number was expected");
  }
}

// Walks the header. Every read is checked against what is left of the file, before anything is allocated.
class Cursor {
 public:
  explicit Cursor(const FileMap& file) : path_(file.path()), bytes_(file.bytes()) {}

  uint64_t offset() const { return at_; }
  void set_context(std::string what) { what_ = std::move(what); }

  [[noreturn]] void fail(const std::string& fault) const {
    throw WeightError(quoted_path(path_) + ": " + what_ + " at byte " + std::to_string(at_) + ": " + fault);
  }

  std::span<const std::byte> take(uint64_t count) {
    if (count > bytes_.size() - at_) {
      fail("needs " + std::to_string(count) + " bytes, the file has " + std::to_string(bytes_.size() - at_) +
           " left (truncated or corrupt)");
    }
    const auto taken = bytes_.subspan(at_, count);
    at_ += count;
    return taken;
  }

  template <typename T>
  T number() {
    return load<T>(take(sizeof(T)).data());
  }

  std::string_view text() {
    const auto taken = take(number<uint64_t>());
    return {reinterpret_cast<const char*>(taken.data()), taken.size()};
  }

  GgufType value_type() {
    const auto id = number<uint32_t>();
    if (id > static_cast<uint32_t>(GgufType::kFloat64)) fail("unknown value type " + std::to_string(id));
    return static_cast<GgufType>(id);
  }

  GgufValue value(GgufType type, int depth = 0) {
    if (type == GgufType::kString) return text();
    if (type == GgufType::kArray) return array(depth);
    return load_scalar(type, take(scalar_bytes(type)).data());
  }

  // A count of things that take at least `min_bytes` each must fit in what is left.
  uint64_t checked_count(uint64_t count, uint64_t min_bytes, const char* noun) const {
    const uint64_t left = bytes_.size() - at_;
    if (count > left / min_bytes) {
      fail(std::to_string(count) + " " + noun + " cannot fit in the " + std::to_string(left) + " bytes left");
    }
    return count;
  }

 private:
  GgufArray array(int depth) {
    if (depth >= kMaxArrayDepth) fail("arrays nested deeper than " + std::to_string(kMaxArrayDepth));
    GgufArray out;
    out.type = value_type();
    const auto count = number<uint64_t>();
    const uint32_t size = scalar_bytes(out.type);
    const uint64_t min_bytes = size != 0 ? size : out.type == GgufType::kString ? 8 : 12;
    out.count = checked_count(count, min_bytes, "array elements");
    if (size != 0) {
      out.raw = take(out.count * size);
      return out;
    }
    for (uint64_t i = 0; i < out.count; ++i) out.values.push_back(value(out.type, depth + 1));
    return out;
  }

  std::string path_;
  std::span<const std::byte> bytes_;
  uint64_t at_ = 0;
  std::string what_ = "header";
};

struct Header {
  uint64_t num_tensors;
  uint64_t num_pairs;
};

Header read_header(Cursor& in) {
  const auto magic = in.take(4);
  if (std::memcmp(magic.data(), "GGUF", 4) != 0) in.fail("not a GGUF file (wrong magic)");
  const auto version = in.number<uint32_t>();
  if (version == 0x02000000 || version == 0x03000000) in.fail("big-endian GGUF is not supported");
  if (version != 2 && version != 3)
    in.fail("GGUF version " + std::to_string(version) + " is not supported (2, 3)");
  const auto num_tensors = in.number<uint64_t>();
  const auto num_pairs = in.number<uint64_t>();
  in.checked_count(num_tensors, 24, "tensors");  // name length, dims, type, offset
  in.checked_count(num_pairs, 13, "metadata entries");
  return {num_tensors, num_pairs};
}

struct TensorPlace {
  const TensorTypeInfo* type;  // nullptr: unknown to us
  uint64_t offset;             // in the data part
};

// Dimensions come innermost first; `Tensor::shape` is outermost first.
TensorPlace read_tensor_info(Cursor& in, Tensor& out) {
  out.name = in.text();
  in.set_context("tensor " + quoted(out.name));
  const auto num_dims = in.number<uint32_t>();
  if (num_dims == 0 || num_dims > kMaxDims) in.fail(std::to_string(num_dims) + " dimensions");
  out.shape.resize(num_dims);
  for (uint32_t i = 0; i < num_dims; ++i) {
    const auto size = in.number<uint64_t>();
    if (size == 0 || size > INT64_MAX) in.fail("dimension of size " + std::to_string(size));
    out.shape[num_dims - 1 - i] = static_cast<int64_t>(size);
  }
  const auto type_id = in.number<uint32_t>();
  const TensorTypeInfo* type = find_tensor_type(type_id);
  out.type_name = type == nullptr ? "type " + std::to_string(type_id) : std::string(type->name);
  if (type != nullptr && type->is_supported) out.type = static_cast<TensorType>(type_id);
  return {type, in.number<uint64_t>()};
}

uint64_t tensor_bytes(const Cursor& in, const Tensor& tensor, const TensorTypeInfo& type) {
  const auto cols = static_cast<uint64_t>(tensor.shape.back());
  if (cols % type.block_size != 0) {
    in.fail("rows of " + std::to_string(cols) + " values, not a multiple of " + std::string(type.name) +
            "'s " + std::to_string(type.block_size));
  }
  unsigned __int128 size = cols / type.block_size;
  size *= type.block_bytes;
  for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) {
    size *= static_cast<uint64_t>(tensor.shape[i]);
    if (size > INT64_MAX) in.fail("shape " + shape_text(tensor.shape) + " is larger than any file");
  }
  if (size > INT64_MAX) in.fail("shape " + shape_text(tensor.shape) + " is larger than any file");
  return static_cast<uint64_t>(size);
}

uint64_t alignment_of(const std::map<std::string, GgufValue, std::less<>>& metadata, const Cursor& in) {
  const auto found = metadata.find("general.alignment");
  if (found == metadata.end()) return kDefaultAlignment;
  const auto* value = std::get_if<uint64_t>(&found->second);
  if (value == nullptr || !std::has_single_bit(*value) || *value > (1u << 20)) {
    in.fail("general.alignment is not a power of two");
  }
  return *value;
}

}  // namespace

GgufValue GgufArray::at(uint64_t i) const {
  return values.empty() ? load_scalar(type, raw.data() + i * scalar_bytes(type)) : values[i];
}

GgufFile::GgufFile(const std::string& path) : file_(path) {
  Cursor in(file_);
  const Header header = read_header(in);
  for (uint64_t i = 0; i < header.num_pairs; ++i) {
    in.set_context("metadata entry " + std::to_string(i));
    const std::string key(in.text());
    in.set_context("metadata " + quoted(key));
    if (!metadata_.emplace(key, in.value(in.value_type())).second) in.fail("appears twice");
  }
  std::vector<TensorPlace> places;
  std::set<std::string> names;
  for (uint64_t i = 0; i < header.num_tensors; ++i) {
    in.set_context("tensor entry " + std::to_string(i));
    places.push_back(read_tensor_info(in, tensors_.emplace_back()));
    if (!names.insert(tensors_.back().name).second) in.fail("appears twice");
  }
  in.set_context("tensor data");
  const uint64_t alignment = alignment_of(metadata_, in);
  in.take((alignment - in.offset() % alignment) % alignment * (tensors_.empty() ? 0 : 1));
  const auto data = file_.bytes().subspan(in.offset());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    Tensor& tensor = tensors_[i];
    in.set_context("tensor " + quoted(tensor.name));
    const auto [type, offset] = places[i];
    if (offset % alignment != 0) in.fail("offset " + std::to_string(offset) + " is not aligned");
    const uint64_t size = type == nullptr ? 0 : tensor_bytes(in, tensor, *type);
    if (offset > data.size() || size > data.size() - offset) {
      in.fail("wants bytes [" + std::to_string(offset) + ", +" + std::to_string(size) + ") of the " +
              std::to_string(data.size()) + " bytes of tensor data (truncated or corrupt)");
    }
    tensor.data = data.subspan(offset, size);
  }
}

}  // namespace ion
