// First every tensor is looked up and checked (Finder) and the total is known; then one allocation, then the
// packing (Loader).
#include "models/weights.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "models/weight_error.h"

namespace ion {
namespace {

using kernels::DType;

constexpr int64_t kAlignment = 64;      // packed weights (kernels.h)
constexpr size_t kTensorsPerLayer = 9;  // at least: two norms and seven products

// Beginnings of safetensors names, and of a GGUF's for the same.
constexpr std::pair<std::string_view, std::string_view> kTop[] = {
    {"model.embed_tokens.", "token_embd."}, {"model.norm.", "output_norm."}, {"lm_head.", "output."}};
constexpr std::pair<std::string_view, std::string_view> kLayer[] = {
    {"input_layernorm.", "attn_norm."},    {"self_attn.q_proj.", "attn_q."},
    {"self_attn.k_proj.", "attn_k."},      {"self_attn.v_proj.", "attn_v."},
    {"self_attn.o_proj.", "attn_output."}, {"self_attn.q_norm.", "attn_q_norm."},
    {"self_attn.k_norm.", "attn_k_norm."}, {"post_attention_layernorm.", "ffn_norm."},
    {"mlp.gate_proj.", "ffn_gate."},       {"mlp.up_proj.", "ffn_up."},
    {"mlp.down_proj.", "ffn_down."}};
constexpr std::string_view kPrefix = "model.layers.";

// canonical_name the other way round.
std::string safetensors_name(std::string_view name) {
  for (const auto& [to, from] : kTop) {
    if (name.starts_with(from)) return std::string(to) + std::string(name.substr(from.size()));
  }
  constexpr std::string_view kBlock = "blk.";
  const size_t dot = name.find('.', kBlock.size());
  if (!name.starts_with(kBlock) || dot == std::string_view::npos) return std::string(name);
  const std::string_view part = name.substr(dot + 1);
  for (const auto& [to, from] : kLayer) {
    if (!part.starts_with(from)) continue;
    return std::string(kPrefix) + std::string(name.substr(kBlock.size(), dot + 1 - kBlock.size())) +
           std::string(to) + std::string(part.substr(from.size()));
  }
  return std::string(name);
}

// As the model's files name it.
std::string name_in_files(const std::string& name, const NamedTensors& tensors) {
  const bool is_renamed = !tensors.empty() && tensors.begin()->first != tensors.begin()->second->name;
  return is_renamed ? safetensors_name(name) : name;
}

int64_t aligned(int64_t num_bytes) {
  return (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// One tensor that the decoder wants; `found` goes out.
struct Wanted {
  std::string name;
  std::vector<int64_t> shape;
  FoundWeight found;
  bool is_optional = false;
};

DType dtype_of(const Tensor& tensor) {
  return static_cast<DType>(*tensor.type);
}

class Finder {
 public:
  Finder(const ModelConfig& config, const NamedTensors& tensors, bool takes_e4m3)
      : config_(config), tensors_(tensors), takes_e4m3_(takes_e4m3) {}

  std::vector<FoundWeight> find_all() {
    list_wanted();
    std::vector<FoundWeight> out;
    for (Wanted& wanted : wanted_) {
      if (find(wanted)) out.push_back(wanted.found);
    }
    refuse_unknown();
    return out;
  }

 private:
  void want(const std::string& name, std::vector<int64_t> shape, WeightPart part, bool is_optional = false) {
    wanted_.push_back({name, std::move(shape), {.part = part, .layer = layer_}, is_optional});
  }

  void want_linear(const std::string& stem, int64_t n, int64_t k, WeightPart part, int64_t heads = 0) {
    want(stem + ".weight", {n, k}, part);
    wanted_.back().found.num_interleaved_heads = heads;
    want(stem + ".bias", {n}, part, true);
    wanted_.back().found.num_interleaved_heads = heads;
    wanted_.back().found.is_bias = true;
  }

  void list_layer(const std::string& prefix) {
    const int64_t hidden = config_.hidden_size, ffn = config_.ffn_size;
    const int64_t q_heads = config_.is_qk_interleaved ? config_.num_heads : 0;
    const int64_t kv_heads = config_.is_qk_interleaved ? config_.num_kv_heads : 0;
    want(prefix + "attn_norm.weight", {hidden}, WeightPart::attn_norm);
    want_linear(prefix + "attn_q", config_.q_size(), hidden, WeightPart::q, q_heads);
    want_linear(prefix + "attn_k", config_.kv_size(), hidden, WeightPart::k, kv_heads);
    want_linear(prefix + "attn_v", config_.kv_size(), hidden, WeightPart::v);
    want_linear(prefix + "attn_output", hidden, config_.q_size(), WeightPart::o);
    want(prefix + "attn_q_norm.weight", {config_.head_dim}, WeightPart::q_norm, true);
    want(prefix + "attn_k_norm.weight", {config_.head_dim}, WeightPart::k_norm, true);
    want(prefix + "ffn_norm.weight", {hidden}, WeightPart::ffn_norm);
    want_linear(prefix + "ffn_gate", ffn, hidden, WeightPart::gate);
    want_linear(prefix + "ffn_up", ffn, hidden, WeightPart::up);
    want_linear(prefix + "ffn_down", hidden, ffn, WeightPart::down);
  }

  void list_wanted() {
    // Sizes come from the file: refuse a number of layers that its tensors cannot fill before making room for
    // it.
    if (static_cast<size_t>(config_.num_layers) > tensors_.size() / kTensorsPerLayer) {
      throw WeightError(std::to_string(config_.num_layers) + " layers announced, but only " +
                        std::to_string(tensors_.size()) + " tensors");
    }
    const std::vector<int64_t> shape = {config_.vocab_size, config_.hidden_size};
    want("token_embd.weight", shape, WeightPart::embedding);
    if (!config_.is_head_tied && tensors_.contains("output.weight")) {
      want("output.weight", shape, WeightPart::head);
    }
    want("output_norm.weight", {config_.hidden_size}, WeightPart::output_norm);
    for (layer_ = 0; layer_ < config_.num_layers; ++layer_) list_layer("blk." + std::to_string(layer_) + ".");
  }

  // Sets the tensor, or returns false for an absent optional one.
  bool find(Wanted& wanted) const {
    const auto found = tensors_.find(wanted.name);
    if (found == tensors_.end()) {
      if (!wanted.is_optional) {
        throw WeightError("tensor " + quoted(name_in_files(wanted.name, tensors_)) + " " +
                          shape_text(wanted.shape) + " is missing");
      }
      return false;
    }
    const Tensor& tensor = *found->second;
    const std::string what = described(tensor);
    if (!tensor.type) {
      throw WeightError(what + " has type " + tensor.type_name +
                        ", which is not supported (supported: " + supported_type_names() + ")");
    }
    if (tensor.shape != wanted.shape) {
      throw WeightError(what + ": shape " + shape_text(wanted.shape) + " wanted, " +
                        shape_text(tensor.shape) + " found");
    }
    wanted.found.tensor = &tensor;
    if (tensor.type == TensorType::kE4M3) {
      wanted.found.scales = &find_scales(wanted, tensor);
      return true;
    }
    if (tensor.shape.size() == 2 &&
        !kernels::is_packable(dtype_of(tensor), tensor.shape[0], tensor.shape[1])) {
      throw WeightError(what + ": " + shape_text(tensor.shape) + " cannot be packed as " + tensor.type_name);
    }
    return true;
  }

  // One scale for the matrix, one a row, or one a block: "weight_scale", or "weight_scale_inv" where the
  // file's maker calls the same numbers that. Both are factors of the codes.
  const Tensor& find_scales(const Wanted& wanted, const Tensor& matrix) const {
    const std::string what = described(matrix);
    if (!takes_e4m3_ || matrix.shape.size() != 2) {
      throw WeightError(what + " has type " + matrix.type_name +
                        ", which is computed on a GPU alone, in products");
    }
    auto found = tensors_.find(wanted.name + "_scale");
    if (found == tensors_.end()) found = tensors_.find(wanted.name + "_scale_inv");
    if (found == tensors_.end()) {
      throw WeightError(what + " has type " + matrix.type_name + ", but there is no " +
                        quoted(matrix.name + "_scale"));
    }
    const Tensor& scales = *found->second;
    const bool is_readable = scales.type == TensorType::kF32 || scales.type == TensorType::kBF16 ||
                             scales.type == TensorType::kF16;
    const int64_t n = matrix.shape[0], k = matrix.shape[1];
    const std::vector<std::vector<int64_t>> shapes = {
        {},  {1},    {1, 1},
        {n}, {n, 1}, {(n + kScaleBlock - 1) / kScaleBlock, (k + kScaleBlock - 1) / kScaleBlock}};
    if (!is_readable || std::ranges::find(shapes, scales.shape) == shapes.end()) {
      throw WeightError(described(scales) + ": F32, BF16 or F16 of " + shape_text(shapes[1]) + ", " +
                        shape_text(shapes[4]) + " or " + shape_text(shapes[5]) + " wanted, " +
                        scales.type_name + " " + shape_text(scales.shape) + " found");
    }
    return scales;
  }

  // A tensor that nobody reads means a decoder that computes something else than ours would.
  void refuse_unknown() const {
    std::set<std::string_view> known = {"rope_freqs.weight"};
    if (config_.is_head_tied) known.insert("output.weight");  // some files carry the copy
    for (const Wanted& wanted : wanted_) known.insert(wanted.name);
    for (const auto& [name, tensor] : tensors_) {
      if (!known.contains(name) && !is_beside_e4m3(name)) {
        throw WeightError(described(*tensor) + " is not part of a " + config_.architecture + " decoder of " +
                          std::to_string(config_.num_layers) + " layers");
      }
    }
  }

  // Scales of a matrix of e4m3; and those of activations and caches, which are not used: theirs are computed.
  bool is_beside_e4m3(std::string_view name) const {
    for (const std::string_view end : {"weight_scale", "weight_scale_inv", "input_scale"}) {
      if (!name.ends_with(end)) continue;
      const auto matrix = tensors_.find(std::string(name.substr(0, name.size() - end.size())) + "weight");
      return matrix != tensors_.end() && matrix->second->type == TensorType::kE4M3;
    }
    return takes_e4m3_ && (name.ends_with(".self_attn.k_scale") || name.ends_with(".self_attn.v_scale"));
  }

  const ModelConfig& config_;
  const NamedTensors& tensors_;
  const bool takes_e4m3_;
  std::vector<Wanted> wanted_;
  int32_t layer_ = 0;
};

// Packs what was found, in the order of the finding, into one allocation.
class Loader {
 public:
  Loader(Weights& out, const std::vector<FoundWeight>& found, kernels::ThreadPool& pool)
      : out_(out), config_(out.config), found_(found), pool_(pool) {
    out_.layers.resize(config_.num_layers);
    is_head_tied_ =
        std::ranges::none_of(found, [](const FoundWeight& w) { return w.part == WeightPart::head; });
  }

  void load() {
    int64_t total = 0;
    for (const FoundWeight& found : found_) total += aligned(size_of(found));
    out_.memory = Memory(total, "the model's weights");
    std::byte* at = out_.memory.data();
    for (const FoundWeight& found : found_) {
      place(found, at);
      at += aligned(size_of(found));
    }
  }

 private:
  // The embedding in file layout, for gathering; with a tied head the head is gathered from.
  bool is_table(const FoundWeight& found) const {
    return found.part == WeightPart::embedding && !is_head_tied_;
  }

  int64_t size_of(const FoundWeight& found) const {
    const Tensor& tensor = *found.tensor;
    if (tensor.shape.size() == 1) return tensor.shape[0] * static_cast<int64_t>(sizeof(float));
    if (is_table(found)) return static_cast<int64_t>(tensor.data.size());
    return kernels::packed_bytes(dtype_of(tensor), tensor.shape[0], tensor.shape[1], out_.numerics);
  }

  Linear& linear(const FoundWeight& found) {
    LayerWeights& layer = out_.layers[found.layer];
    switch (found.part) {
      case WeightPart::q:
        return layer.q;
      case WeightPart::k:
        return layer.k;
      case WeightPart::v:
        return layer.v;
      case WeightPart::o:
        return layer.o;
      case WeightPart::gate:
        return layer.gate;
      case WeightPart::up:
        return layer.up;
      case WeightPart::down:
        return layer.down;
      default:
        return out_.head;
    }
  }

  const float*& vector(const FoundWeight& found) {
    LayerWeights& layer = out_.layers[found.layer];
    switch (found.part) {
      case WeightPart::output_norm:
        return out_.output_norm;
      case WeightPart::attn_norm:
        return layer.attn_norm;
      case WeightPart::q_norm:
        return layer.q_norm;
      case WeightPart::k_norm:
        return layer.k_norm;
      case WeightPart::ffn_norm:
        return layer.ffn_norm;
      default:
        return linear(found).bias;
    }
  }

  void place(const FoundWeight& found, std::byte* at) {
    const Tensor& tensor = *found.tensor;
    const DType dtype = dtype_of(tensor);
    if (tensor.shape.size() == 1) {
      auto* values = reinterpret_cast<float*>(at);
      kernels::dequantize_row(values, tensor.data.data(), dtype, tensor.shape[0]);
      if (found.num_interleaved_heads > 0) split_halves(values, tensor.shape[0], sizeof(float));
      vector(found) = values;
    } else if (is_table(found)) {
      std::memcpy(at, tensor.data.data(), tensor.data.size());
      out_.embedding = at;
      out_.embedding_dtype = dtype;
    } else {
      std::vector<std::byte> rows;
      const std::byte* source = tensor.data.data();
      if (found.num_interleaved_heads > 0) {
        rows.assign(tensor.data.begin(), tensor.data.end());
        split_halves(rows.data(), tensor.shape[0], tensor.data.size() / tensor.shape[0]);
        source = rows.data();
      }
      linear(found).w =
          kernels::pack_matrix(at, source, dtype, tensor.shape[0], tensor.shape[1], out_.numerics, pool_);
    }
  }

  // Reorders whole rows; a row's values, quantised or not, stay together.
  void split_halves(void* data, int64_t num_rows, int64_t row_bytes) const {
    auto* to = static_cast<std::byte*>(data);
    const std::vector<std::byte> from(to, to + num_rows * row_bytes);
    for (int64_t row = 0; row < num_rows; ++row) {
      std::memcpy(to + row * row_bytes, from.data() + interleaved_row(row, config_.head_dim) * row_bytes,
                  row_bytes);
    }
  }

  Weights& out_;
  const ModelConfig& config_;
  const std::vector<FoundWeight>& found_;
  kernels::ThreadPool& pool_;
  bool is_head_tied_ = false;
};

}  // namespace

std::vector<float> rope_divisors(const ModelConfig& config, const NamedTensors& tensors) {
  const auto found = tensors.find("rope_freqs.weight");
  if (found == tensors.end()) return {config.rope_divisors.begin(), config.rope_divisors.end()};
  const Tensor& tensor = *found->second;
  if (tensor.type != TensorType::kF32 || tensor.shape != std::vector<int64_t>{config.head_dim / 2}) {
    throw WeightError("tensor 'rope_freqs.weight': F32 [" + std::to_string(config.head_dim / 2) +
                      "] wanted, " + tensor.type_name + " " + shape_text(tensor.shape) + " found");
  }
  std::vector<float> out(config.head_dim / 2);
  std::memcpy(out.data(), tensor.data.data(), tensor.data.size());
  for (float divisor : out) {
    if (!(divisor > 0))
      throw WeightError("tensor 'rope_freqs.weight' holds something other than positive factors");
  }
  return out;
}

int64_t interleaved_row(int64_t row, int64_t head_dim) {
  const int64_t head = row / head_dim, dim = row % head_dim, half = head_dim / 2;
  return head * head_dim + (dim < half ? 2 * dim : 2 * (dim - half) + 1);
}

std::vector<FoundWeight> find_weights(const ModelConfig& config, const NamedTensors& tensors,
                                      bool takes_e4m3) {
  if (!kernels::is_attention_shape(config.num_heads, config.num_kv_heads, config.head_dim)) {
    throw WeightError("attention with " + std::to_string(config.num_heads) + " heads of " +
                      std::to_string(config.head_dim) + " over " + std::to_string(config.num_kv_heads) +
                      " key/value heads is not supported");
  }
  return Finder(config, tensors, takes_e4m3).find_all();
}

std::string canonical_name(std::string_view name) {
  if (name.ends_with(".rotary_emb.inv_freq")) return {};  // a constant that old checkpoints carry along
  for (const auto& [from, to] : kTop) {
    if (name.starts_with(from)) return std::string(to) + std::string(name.substr(from.size()));
  }
  const size_t dot = name.find('.', kPrefix.size());
  if (!name.starts_with(kPrefix) || dot == std::string_view::npos) return std::string(name);
  const std::string_view part = name.substr(dot + 1);
  for (const auto& [from, to] : kLayer) {
    if (!part.starts_with(from)) continue;
    return "blk." + std::string(name.substr(kPrefix.size(), dot - kPrefix.size())) + "." + std::string(to) +
           std::string(part.substr(from.size()));
  }
  return std::string(name);
}

Weights load_weights(ModelConfig config, const NamedTensors& tensors, kernels::Numerics numerics,
                     kernels::ThreadPool& pool) {
  Weights out;
  out.config = std::move(config);
  out.numerics = numerics;
  const std::vector<FoundWeight> found = find_weights(out.config, tensors);
  out.rope_divisors = rope_divisors(out.config, tensors);
  Loader(out, found, pool).load();
  return out;
}

}  // namespace ion
