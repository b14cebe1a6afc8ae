// Two sources of a ModelConfig, GGUF metadata and config.json, read through one checked view of named values.
#include "models/model_config.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <optional>

#include "models/weight_error.h"

namespace ion {
namespace {

constexpr double kMaxRopeFactor = 1 << 20;  // beyond it positions would hardly differ
constexpr int32_t kMaxSize = 1 << 24;  // no dimension of a real decoder is near it; products stay in int64

// One row per family. Adding a family that differs only in biases or q/k norms is a row here: those weights
// are taken where the file has them.
struct Architecture {
  std::string_view gguf_name;
  std::string_view json_name;  // config.json's model_type
  bool is_gguf_qk_interleaved;
};

constexpr Architecture kArchitectures[] = {
    {"llama", "llama", true},
    {"llama", "mistral", true},  // converters write it as llama
    {"qwen2", "qwen2", false},
    {"qwen3", "qwen3", false},
};

using Scalar = std::variant<bool, int64_t, double, std::string>;

std::string known_architectures() {
  std::string out;
  for (const Architecture& known : kArchitectures) {
    out += (out.empty() ? "" : ", ") + std::string(known.json_name);
  }
  return out;
}

const Architecture& find_architecture(std::string_view name, std::string_view Architecture::* field) {
  for (const Architecture& known : kArchitectures) {
    if (known.*field == name) return known;
  }
  throw WeightError("architecture " + quoted(name) +
                    " is not supported (supported: " + known_architectures() + ")");
}

// Named values with range checks. `find` returns nothing for a key that is absent or null.
class Fields {
 public:
  using Find = std::function<std::optional<Scalar>(const std::string& key)>;
  explicit Fields(Find find) : find_(std::move(find)) {}

  bool has(const std::string& key) const { return find_(key).has_value(); }

  int32_t size(const std::string& key, std::optional<int32_t> fallback = {}, int32_t min = 1) const {
    const auto found = find_(key);
    if (!found && fallback) return *fallback;
    if (!found) missing(key);
    const auto* value = std::get_if<int64_t>(&*found);
    if (value == nullptr) throw WeightError(quoted(key) + " is not a whole number");
    if (*value < min || *value > kMaxSize) {
      throw WeightError(quoted(key) + " is " + std::to_string(*value) + ", outside [" + std::to_string(min) +
                        ", " + std::to_string(kMaxSize) + "]");
    }
    return static_cast<int32_t>(*value);
  }

  double real(const std::string& key, std::optional<double> fallback = {},
              double below = std::numeric_limits<double>::infinity()) const {
    const auto found = find_(key);
    if (!found && fallback) return *fallback;
    if (!found) missing(key);
    const auto* whole = std::get_if<int64_t>(&*found);
    const auto* value = std::get_if<double>(&*found);
    if (whole == nullptr && value == nullptr) throw WeightError(quoted(key) + " is not a number");
    const double out = whole != nullptr ? static_cast<double>(*whole) : *value;
    if (!(out > 0) || !std::isfinite(out)) throw WeightError(quoted(key) + " is not positive and finite");
    if (out >= below) {
      throw WeightError(quoted(key) + " is not below " + std::to_string(static_cast<int64_t>(below)));
    }
    return out;
  }

  std::string text(const std::string& key, const std::string& fallback) const {
    const auto found = find_(key);
    if (!found) return fallback;
    const auto* value = std::get_if<std::string>(&*found);
    if (value == nullptr) throw WeightError(quoted(key) + " is not a string");
    return *value;
  }

  bool is_true(const std::string& key) const {
    const auto found = find_(key);
    if (!found) return false;
    const auto* value = std::get_if<bool>(&*found);
    if (value == nullptr) throw WeightError(quoted(key) + " is not true or false");
    return *value;
  }

 private:
  [[noreturn]] static void missing(const std::string& key) {
    throw WeightError("the model's metadata has no " + quoted(key));
  }

  Find find_;
};

std::optional<Scalar> gguf_scalar(const GgufFile& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end()) return {};
  return std::visit(
      [&](const auto& value) -> std::optional<Scalar> {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, GgufArray>) {
          throw WeightError(quoted(key) + " is a list, of one value for each layer perhaps: not supported");
        }
        if constexpr (std::is_same_v<T, std::string_view>) return std::string(value);
        if constexpr (std::is_same_v<T, uint64_t>) {
          if (value > INT64_MAX) return static_cast<double>(value);
          return static_cast<int64_t>(value);
        }
        if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, uint64_t>) return Scalar(value);
        return {};
      },
      found->second);
}

std::optional<Scalar> json_scalar(const JsonObject& object, const std::string& key) {
  const auto found = object.find(key);
  if (found == object.end()) return {};
  const auto& value = found->second.value;
  if (const auto* flag = std::get_if<bool>(&value)) return *flag;
  if (const auto* whole = std::get_if<int64_t>(&value)) return *whole;
  if (const auto* real = std::get_if<double>(&value)) return *real;
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (found->second.is_null()) return {};
  throw WeightError(quoted(key) + " is " + (found->second.array() != nullptr ? "a list" : "an object"));
}

// An epsilon that is 0 as a float is none, and one of 1 would drown the values.
float rms_eps(const Fields& fields, const std::string& key) {
  const auto eps = static_cast<float>(fields.real(key, {}, 1.0));
  if (!(eps > 0)) throw WeightError(quoted(key) + " is 0 as a float");
  return eps;
}

void check(const ModelConfig& config) {
  if (config.num_heads % config.num_kv_heads != 0) {
    throw WeightError(std::to_string(config.num_heads) + " query heads cannot share " +
                      std::to_string(config.num_kv_heads) + " key/value heads evenly");
  }
  if (config.head_dim % 2 != 0) throw WeightError("head size " + std::to_string(config.head_dim) + " is odd");
}

int32_t default_head_dim(const ModelConfig& config) {
  if (config.hidden_size % config.num_heads != 0) {
    throw WeightError("hidden size " + std::to_string(config.hidden_size) + " is not a multiple of " +
                      std::to_string(config.num_heads) + " heads, and no head size is given");
  }
  return config.hidden_size / config.num_heads;
}

// Llama 3.1's stretch: long wavelengths are slowed by `factor`, short ones kept, a ramp between.
// Source: the reference code published with Llama 3.1 (apply_scaling).
std::vector<double> llama3_divisors(const ModelConfig& config, const Fields& rope) {
  const double factor = rope.real("factor", {}, kMaxRopeFactor), low = rope.real("low_freq_factor"),
               high = rope.real("high_freq_factor");
  const double original = rope.real("original_max_position_embeddings");
  if (high <= low) throw WeightError("rope scaling: high_freq_factor is not above low_freq_factor");
  std::vector<double> out;
  for (double frequency : rope_frequencies(config)) {
    const double turns = original * frequency / (2 * std::numbers::pi);  // over the original context
    const double keep = std::clamp((turns - low) / (high - low), 0.0, 1.0);
    out.push_back(1.0 / ((1 - keep) / factor + keep));
  }
  return out;
}

void rotates_all(const Fields& fields) {
  if (const double part = fields.real("partial_rotary_factor", 1.0); part != 1.0) {
    throw WeightError("'partial_rotary_factor' is " + std::to_string(part) +
                      ": rotating part of a head is not supported");
  }
}

// nullptr: absent or null.
const JsonObject* json_object(const JsonObject& root, const char* key) {
  const auto found = root.find(key);
  if (found == root.end() || found->second.is_null()) return nullptr;
  if (found->second.object() == nullptr) throw WeightError(quoted(key) + " is not an object");
  return found->second.object();
}

// Codes of e4m3 with their scales are read (find_weights looks at each tensor); all else is refused by name.
void require_readable_quantization(const JsonObject& root) {
  const JsonObject* object = json_object(root, "quantization_config");
  if (object == nullptr) return;
  const Fields fields([&](const std::string& key) { return json_scalar(*object, key); });
  std::string kind = fields.text("quant_method", "");
  if (kind == "compressed-tensors") kind += " in " + fields.text("format", "");
  if (kind != "fp8" && kind != "compressed-tensors in float-quantized") {
    throw WeightError("quantised safetensors of " + quoted(kind) +
                      " are not supported (supported: fp8, compressed-tensors in float-quantized)");
  }
  const JsonObject* transforms = json_object(*object, "transform_config");
  if (transforms != nullptr && !transforms->empty()) {
    throw WeightError("'transform_config' of 'quantization_config' is not supported");
  }
}

void read_json_scaling(ModelConfig& config, const JsonObject& object) {
  for (const auto& [name, value] : object) {  // {"full_attention": {...}, "sliding_attention": {...}}
    if (value.object() != nullptr) {
      throw WeightError("rope of its own for " + quoted(name) + " is not supported");
    }
  }
  const Fields rope([&](const std::string& name) { return json_scalar(object, name); });
  rotates_all(rope);
  config.rope_theta = rope.real("rope_theta", config.rope_theta);
  const std::string type = rope.text("rope_type", rope.text("type", "default"));
  if (type == "llama3") {
    config.rope_divisors = llama3_divisors(config, rope);
  } else if (type == "linear") {
    config.rope_divisors.assign(config.head_dim / 2, rope.real("factor", {}, kMaxRopeFactor));
  } else if (type != "default") {
    throw WeightError("rope type " + quoted(type) + " is not supported (supported: default, linear, llama3)");
  }
}

void read_json_rope(ModelConfig& config, const JsonObject& root, const Fields& top) {
  config.rope_theta = top.real("rope_theta", 10000.0);
  rotates_all(top);
  // transformers 5 writes the first and reads the second from older files; one of them counts.
  const JsonObject* parameters = json_object(root, "rope_parameters");
  const JsonObject* scaling = json_object(root, "rope_scaling");
  if (const JsonObject* rope = parameters != nullptr ? parameters : scaling) read_json_scaling(config, *rope);
}

void read_gguf_rope(ModelConfig& config, const std::string& prefix, const Fields& fields) {
  config.rope_theta = fields.real(prefix + "rope.freq_base", 10000.0);
  const int32_t rotated = fields.size(prefix + "rope.dimension_count", config.head_dim);
  if (rotated != config.head_dim) {
    throw WeightError(quoted(prefix + "rope.dimension_count") + " is " + std::to_string(rotated) +
                      ": rotating part of a head of " + std::to_string(config.head_dim) +
                      " is not supported");
  }
  const std::string type = fields.text(prefix + "rope.scaling.type", "none");
  if (type == "linear") {
    config.rope_divisors.assign(config.head_dim / 2,
                                fields.real(prefix + "rope.scaling.factor", {}, kMaxRopeFactor));
  } else if (type != "none") {
    throw WeightError("rope type " + quoted(type) +
                      " is not supported (supported: none, linear, and factors in "
                      "rope_freqs.weight)");
  }
}

// A window as wide as the context hides nothing.
void set_windows(ModelConfig& config, int32_t window, const std::function<bool(int32_t layer)>& is_sliding) {
  if (window == 0 || window >= config.context_length) return;
  for (int32_t i = 0; i < config.num_layers; ++i) config.windows.push_back(is_sliding(i) ? window : 0);
}

// Which layers slide: `layer_types` where the file has it; else Qwen's from `max_window_layers` on, and all
// of Mistral's. Qwen's files carry a window that only `use_sliding_window` switches on.
void read_json_windows(ModelConfig& config, const JsonObject& root, const Fields& fields) {
  if (!fields.has("sliding_window")) return;
  const bool is_qwen = config.architecture != "llama";
  if (fields.has("use_sliding_window") || is_qwen) {
    if (!fields.is_true("use_sliding_window")) return;
  }
  const int32_t window = fields.size("sliding_window");
  const auto found = root.find("layer_types");
  if (found == root.end() || found->second.is_null()) {
    const int32_t first = is_qwen ? fields.size("max_window_layers", 28, 0) : 0;
    return set_windows(config, window, [=](int32_t layer) { return layer >= first; });
  }
  const JsonArray* types = found->second.array();
  if (types == nullptr || types->size() != static_cast<size_t>(config.num_layers)) {
    throw WeightError("'layer_types' is not a list of " + std::to_string(config.num_layers) + " names");
  }
  for (const Json& type : *types) {
    const std::string name = type.string() == nullptr ? "" : *type.string();
    if (name != "sliding_attention" && name != "full_attention") {
      throw WeightError("'layer_types' has " + quoted(name) +
                        " (supported: full_attention, sliding_attention)");
    }
  }
  set_windows(config, window,
              [&](int32_t layer) { return *(*types)[layer].string() == "sliding_attention"; });
}

void read_gguf_windows(ModelConfig& config, const std::string& prefix, const GgufFile& file,
                       const Fields& fields) {
  const std::string pattern = prefix + "attention.sliding_window_pattern";
  if (file.metadata().contains(pattern)) throw WeightError(quoted(pattern) + " is not supported");
  set_windows(config, fields.size(prefix + "attention.sliding_window", 0, 0), [](int32_t) { return true; });
}

}  // namespace

ModelConfig config_from_gguf(const GgufFile& file) {
  const Fields fields([&](const std::string& key) { return gguf_scalar(file, key); });
  if (!fields.has("general.architecture")) throw WeightError("the file names no 'general.architecture'");
  ModelConfig config;
  config.architecture = fields.text("general.architecture", "");
  const Architecture& known = find_architecture(config.architecture, &Architecture::gguf_name);
  config.is_qk_interleaved = known.is_gguf_qk_interleaved;
  const std::string prefix = config.architecture + ".";
  if (fields.size(prefix + "expert_count", 0, 0) > 0)
    throw WeightError("mixtures of experts are not supported");
  config.num_layers = fields.size(prefix + "block_count");
  config.hidden_size = fields.size(prefix + "embedding_length");
  config.ffn_size = fields.size(prefix + "feed_forward_length");
  config.num_heads = fields.size(prefix + "attention.head_count");
  config.num_kv_heads = fields.size(prefix + "attention.head_count_kv", config.num_heads);
  config.context_length = fields.size(prefix + "context_length");
  config.vocab_size = fields.size(prefix + "vocab_size", 0);
  config.rms_eps = rms_eps(fields, prefix + "attention.layer_norm_rms_epsilon");
  config.head_dim = fields.has(prefix + "attention.key_length") ? fields.size(prefix + "attention.key_length")
                                                                : default_head_dim(config);
  if (fields.size(prefix + "attention.value_length", config.head_dim) != config.head_dim) {
    throw WeightError("keys and values of different sizes are not supported");
  }
  read_gguf_rope(config, prefix, fields);
  read_gguf_windows(config, prefix, file, fields);
  check(config);
  return config;
}

ModelConfig config_from_json(const Json& json) {
  if (json.object() == nullptr) throw WeightError("not an object");
  const JsonObject& root = *json.object();
  const Fields fields([&](const std::string& key) { return json_scalar(root, key); });
  ModelConfig config;
  config.architecture = find_architecture(fields.text("model_type", ""), &Architecture::json_name).gguf_name;
  require_readable_quantization(root);
  if (const std::string act = fields.text("hidden_act", "silu"); act != "silu") {
    throw WeightError("hidden_act " + quoted(act) + " is not supported (supported: silu)");
  }
  config.num_layers = fields.size("num_hidden_layers");
  config.hidden_size = fields.size("hidden_size");
  config.ffn_size = fields.size("intermediate_size");
  config.num_heads = fields.size("num_attention_heads");
  config.num_kv_heads = fields.size("num_key_value_heads", config.num_heads);
  config.context_length = fields.size("max_position_embeddings");
  config.vocab_size = fields.size("vocab_size");
  config.rms_eps = rms_eps(fields, "rms_norm_eps");
  config.head_dim = fields.has("head_dim") ? fields.size("head_dim") : default_head_dim(config);
  config.is_head_tied = fields.is_true("tie_word_embeddings");
  config.has_own_head = fields.has("tie_word_embeddings") && !config.is_head_tied;
  read_json_windows(config, root, fields);
  read_json_rope(config, root, fields);
  check(config);
  return config;
}

int32_t ModelConfig::widest_window() const {
  if (windows.empty() || std::ranges::find(windows, 0) != windows.end()) return 0;
  return *std::ranges::max_element(windows);
}

std::vector<double> rope_frequencies(const ModelConfig& config) {
  std::vector<double> out(config.head_dim / 2);
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = std::pow(config.rope_theta, -2.0 * static_cast<double>(i) / config.head_dim);
    if (!config.rope_divisors.empty()) out[i] /= config.rope_divisors[i];
  }
  return out;
}

}  // namespace ion
