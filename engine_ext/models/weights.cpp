// First every tensor is looked up and checked and the total is known; then one allocation, then the packing.
#include "models/weights.h"

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

// One tensor that the decoder wants, and the one place it goes to.
struct Wanted {
  std::string name;
  std::vector<int64_t> shape;
  kernels::PackedMatrix* matrix = nullptr;
  const float** vector = nullptr;
  const std::byte** table = nullptr;  // rows in file layout, for gathering
  bool is_optional = false;
  int64_t num_interleaved_heads = 0;  // > 0: rows pair (2i, 2i+1) inside each of so many heads
  const Tensor* found = nullptr;
};

DType dtype_of(const Tensor& tensor) {
  return static_cast<DType>(*tensor.type);
}

// Row r of the half-split order, of `heads` heads of `head_dim`: pairs (2i, 2i+1) become (i, i + head_dim/2).
int64_t interleaved_row(int64_t row, int64_t head_dim) {
  const int64_t head = row / head_dim, dim = row % head_dim, half = head_dim / 2;
  return head * head_dim + (dim < half ? 2 * dim : 2 * (dim - half) + 1);
}

class Loader {
 public:
  Loader(Weights& out, const NamedTensors& tensors, kernels::ThreadPool& pool)
      : out_(out), config_(out.config), tensors_(tensors), pool_(pool) {}

  void load() {
    list_wanted();
    int64_t total = 0;
    for (Wanted& wanted : wanted_) total += find(wanted) ? aligned(size_of(wanted)) : 0;
    refuse_unknown();
    out_.memory = Memory(total, "the model's weights");
    std::byte* at = out_.memory.data();
    for (Wanted& wanted : wanted_) {
      if (wanted.found == nullptr) continue;
      place(wanted, at);
      at += aligned(size_of(wanted));
    }
  }

 private:
  void want_vector(const std::string& name, int64_t size, const float** to, bool is_optional,
                   int64_t heads = 0) {
    wanted_.push_back({.name = name,
                       .shape = {size},
                       .vector = to,
                       .is_optional = is_optional,
                       .num_interleaved_heads = heads});
  }

  void want_linear(const std::string& stem, int64_t n, int64_t k, Linear& to, int64_t heads = 0) {
    wanted_.push_back(
        {.name = stem + ".weight", .shape = {n, k}, .matrix = &to.w, .num_interleaved_heads = heads});
    want_vector(stem + ".bias", n, &to.bias, true, heads);
  }

  void list_layer(const std::string& prefix, LayerWeights& layer) {
    const int64_t hidden = config_.hidden_size, ffn = config_.ffn_size;
    const int64_t q_heads = config_.is_qk_interleaved ? config_.num_heads : 0;
    const int64_t kv_heads = config_.is_qk_interleaved ? config_.num_kv_heads : 0;
    want_vector(prefix + "attn_norm.weight", hidden, &layer.attn_norm, false);
    want_linear(prefix + "attn_q", config_.q_size(), hidden, layer.q, q_heads);
    want_linear(prefix + "attn_k", config_.kv_size(), hidden, layer.k, kv_heads);
    want_linear(prefix + "attn_v", config_.kv_size(), hidden, layer.v);
    want_linear(prefix + "attn_output", hidden, config_.q_size(), layer.o);
    want_vector(prefix + "attn_q_norm.weight", config_.head_dim, &layer.q_norm, true);
    want_vector(prefix + "attn_k_norm.weight", config_.head_dim, &layer.k_norm, true);
    want_vector(prefix + "ffn_norm.weight", hidden, &layer.ffn_norm, false);
    want_linear(prefix + "ffn_gate", ffn, hidden, layer.gate);
    want_linear(prefix + "ffn_up", ffn, hidden, layer.up);
    want_linear(prefix + "ffn_down", hidden, ffn, layer.down);
  }

  void list_wanted() {
    // Sizes come from the file: refuse a number of layers that its tensors cannot fill before making room for
    // it.
    if (static_cast<size_t>(config_.num_layers) > tensors_.size() / kTensorsPerLayer) {
      throw WeightError(std::to_string(config_.num_layers) + " layers announced, but only " +
                        std::to_string(tensors_.size()) + " tensors");
    }
    out_.layers.resize(config_.num_layers);
    const std::vector<int64_t> shape = {config_.vocab_size, config_.hidden_size};
    if (config_.is_head_tied || !tensors_.contains("output.weight")) {
      wanted_.push_back({.name = "token_embd.weight", .shape = shape, .matrix = &out_.head.w});
    } else {
      wanted_.push_back({.name = "token_embd.weight", .shape = shape, .table = &out_.embedding});
      wanted_.push_back({.name = "output.weight", .shape = shape, .matrix = &out_.head.w});
    }
    want_vector("output_norm.weight", config_.hidden_size, &out_.output_norm, false);
    for (int32_t i = 0; i < config_.num_layers; ++i) {
      list_layer("blk." + std::to_string(i) + ".", out_.layers[i]);
    }
  }

  // Sets `found`, or leaves it null for an absent optional tensor.
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
                        ", which is not supported (supported: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q6_K)");
    }
    if (tensor.shape != wanted.shape) {
      throw WeightError(what + ": shape " + shape_text(wanted.shape) + " wanted, " +
                        shape_text(tensor.shape) + " found");
    }
    if (wanted.vector == nullptr &&
        !kernels::is_packable(dtype_of(tensor), tensor.shape[0], tensor.shape[1])) {
      throw WeightError(what + ": " + shape_text(tensor.shape) + " cannot be packed as " + tensor.type_name);
    }
    wanted.found = &tensor;
    return true;
  }

  int64_t size_of(const Wanted& wanted) const {
    const Tensor& tensor = *wanted.found;
    if (wanted.vector != nullptr) return tensor.shape[0] * static_cast<int64_t>(sizeof(float));
    if (wanted.table != nullptr) return static_cast<int64_t>(tensor.data.size());
    return kernels::packed_bytes(dtype_of(tensor), tensor.shape[0], tensor.shape[1], out_.numerics);
  }

  // A tensor that nobody reads means a decoder that computes something else than ours would.
  void refuse_unknown() const {
    std::set<std::string_view> known = {"rope_freqs.weight"};
    if (config_.is_head_tied) known.insert("output.weight");  // some files carry the copy
    for (const Wanted& wanted : wanted_) known.insert(wanted.name);
    for (const auto& [name, tensor] : tensors_) {
      if (!known.contains(name)) {
        throw WeightError(described(*tensor) + " is not part of a " + config_.architecture + " decoder of " +
                          std::to_string(config_.num_layers) + " layers");
      }
    }
  }

  void place(const Wanted& wanted, std::byte* at) {
    const Tensor& tensor = *wanted.found;
    const DType dtype = dtype_of(tensor);
    if (wanted.vector != nullptr) {
      auto* values = reinterpret_cast<float*>(at);
      kernels::dequantize_row(values, tensor.data.data(), dtype, tensor.shape[0]);
      if (wanted.num_interleaved_heads > 0) split_halves(values, tensor.shape[0], sizeof(float));
      *wanted.vector = values;
    } else if (wanted.table != nullptr) {
      std::memcpy(at, tensor.data.data(), tensor.data.size());
      *wanted.table = at;
      out_.embedding_dtype = dtype;
    } else {
      std::vector<std::byte> rows;
      const std::byte* source = tensor.data.data();
      if (wanted.num_interleaved_heads > 0) {
        rows.assign(tensor.data.begin(), tensor.data.end());
        split_halves(rows.data(), tensor.shape[0], tensor.data.size() / tensor.shape[0]);
        source = rows.data();
      }
      *wanted.matrix =
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
  const NamedTensors& tensors_;
  kernels::ThreadPool& pool_;
  std::vector<Wanted> wanted_;
};

// Factors of a GGUF's own tensor; a config's formula otherwise.
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

}  // namespace

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
  if (!kernels::is_attention_shape(config.num_heads, config.num_kv_heads, config.head_dim)) {
    throw WeightError("attention with " + std::to_string(config.num_heads) + " heads of " +
                      std::to_string(config.head_dim) + " over " + std::to_string(config.num_kv_heads) +
                      " key/value heads is not supported");
  }
  Weights out;
  out.config = std::move(config);
  out.numerics = numerics;
  out.rope_divisors = rope_divisors(out.config, tensors);
  Loader(out, tensors, pool).load();
  return out;
}

}  // namespace ion
