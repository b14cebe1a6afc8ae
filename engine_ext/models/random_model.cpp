// Names, shapes and values of a model that nobody trained. See random_model.h.
#include "models/random_model.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <string_view>

#include "kernels/cpu/half.h"
#include "kernels/random_values.h"
#include "models/weight_error.h"

namespace ion {
namespace {

using kernels::kRandomGroup;
using kernels::random_group;
using kernels::random_value;

constexpr int64_t kPieceBytes = 64 << 20;  // of a file, made and written at once

int64_t num_bytes(const Tensor& tensor) {
  return num_values(tensor) * (tensor.type == TensorType::kBF16 ? 2 : 4);
}

// Of its name, so that a tensor's values do not depend on its neighbours. FNV-1a.
uint64_t hash_of(std::string_view name, uint64_t seed) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char letter : name) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3u;
  return random_group(hash, seed);
}

}  // namespace

RandomRecipe random_recipe(const Tensor& tensor, uint64_t seed) {
  RandomRecipe out{.key = hash_of(tensor.name, seed)};
  if (tensor.shape.size() == 2) {
    const bool is_embedding = tensor.name == "model.embed_tokens.weight";
    out.scale = std::sqrt(3.0f / static_cast<float>(is_embedding ? 1 : tensor.shape[1]));
  } else {
    const bool is_bias = tensor.name.ends_with(".bias");
    out.middle = is_bias ? 0.0f : 1.0f;
    out.scale = is_bias ? 0.2f : 0.5f;
  }
  return out;
}

namespace {

class Lister {
 public:
  explicit Lister(const ModelConfig& config) : config_(config) {}

  std::vector<Tensor> list() {
    const int64_t hidden = config_.hidden_size;
    add("model.embed_tokens.weight", {config_.vocab_size, hidden});
    if (!config_.is_head_tied) add("lm_head.weight", {config_.vocab_size, hidden});
    add("model.norm.weight", {hidden});
    for (int32_t i = 0; i < config_.num_layers; ++i) layer("model.layers." + std::to_string(i) + ".");
    return std::move(tensors_);
  }

 private:
  void add(const std::string& name, std::vector<int64_t> shape) {
    Tensor& added = tensors_.emplace_back();
    const bool is_vector = shape.size() == 1;
    added.name = name;
    added.type_name = is_vector ? "F32" : "BF16";
    added.type = is_vector ? TensorType::kF32 : TensorType::kBF16;
    added.shape = std::move(shape);
  }

  void layer(const std::string& prefix) {
    const int64_t hidden = config_.hidden_size, ffn = config_.ffn_size;
    const std::string attention = prefix + "self_attn.";
    add(prefix + "input_layernorm.weight", {hidden});
    add(attention + "q_proj.weight", {config_.q_size(), hidden});
    add(attention + "k_proj.weight", {config_.kv_size(), hidden});
    add(attention + "v_proj.weight", {config_.kv_size(), hidden});
    add(attention + "o_proj.weight", {hidden, config_.q_size()});
    if (config_.architecture == "qwen2") {
      add(attention + "q_proj.bias", {config_.q_size()});
      add(attention + "k_proj.bias", {config_.kv_size()});
      add(attention + "v_proj.bias", {config_.kv_size()});
    }
    if (config_.architecture == "qwen3") {
      add(attention + "q_norm.weight", {config_.head_dim});
      add(attention + "k_norm.weight", {config_.head_dim});
    }
    add(prefix + "post_attention_layernorm.weight", {hidden});
    add(prefix + "mlp.gate_proj.weight", {ffn, hidden});
    add(prefix + "mlp.up_proj.weight", {ffn, hidden});
    add(prefix + "mlp.down_proj.weight", {hidden, ffn});
  }

  const ModelConfig& config_;
  std::vector<Tensor> tensors_;
};

// Values [first, first + count) of a matrix; `first` and `count` are multiples of kRandomGroup.
void fill(uint16_t* dst, const RandomRecipe& recipe, int64_t first, int64_t count,
          kernels::ThreadPool& pool) {
  pool.parallel_for(count / kRandomGroup, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const uint64_t group = random_group(recipe.key, first / kRandomGroup + i);
      for (int lane = 0; lane < kRandomGroup; ++lane) {
        dst[i * kRandomGroup + lane] = kernels::f32_to_bf16(random_value(group, lane, recipe.scale));
      }
    }
  });
}

std::vector<float> vector_values(const Tensor& tensor, uint64_t seed) {
  const RandomRecipe recipe = random_recipe(tensor, seed);
  std::vector<float> out(num_values(tensor));
  for (size_t i = 0; i < out.size(); ++i) {
    const uint64_t group = random_group(recipe.key, i / kRandomGroup);
    out[i] = recipe.middle + random_value(group, static_cast<int>(i % kRandomGroup), recipe.scale);
  }
  return out;
}

std::string header_of(const std::vector<Tensor>& tensors) {
  std::string text = "{";
  int64_t at = 0;
  for (const Tensor& tensor : tensors) {
    const int64_t end = at + num_bytes(tensor);
    if (at > 0) text += ",";
    text += "\"" + tensor.name + "\":{\"dtype\":\"" + tensor.type_name +
            "\",\"shape\":" + shape_text(tensor.shape) + ",\"data_offsets\":[" + std::to_string(at) + "," +
            std::to_string(end) + "]}";
    at = end;
  }
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

}  // namespace

std::vector<Tensor> random_tensors(const ModelConfig& config) {
  return Lister(config).list();
}

Memory make_random_data(std::vector<Tensor>& tensors, uint64_t seed, kernels::ThreadPool* pool) {
  const auto is_made = [&](const Tensor& tensor) { return pool != nullptr || tensor.shape.size() == 1; };
  int64_t total = 0;
  for (const Tensor& tensor : tensors) total += is_made(tensor) ? num_bytes(tensor) : 0;
  Memory memory(total, "random weights");
  std::byte* at = memory.data();
  for (Tensor& tensor : tensors) {
    if (!is_made(tensor)) continue;
    if (tensor.shape.size() == 2) {
      fill(reinterpret_cast<uint16_t*>(at), random_recipe(tensor, seed), 0, num_values(tensor), *pool);
    } else {
      std::memcpy(at, vector_values(tensor, seed).data(), num_bytes(tensor));
    }
    tensor.data = {at, static_cast<size_t>(num_bytes(tensor))};
    at += num_bytes(tensor);
  }
  return memory;
}

void write_random_file(const std::string& path, const ModelConfig& config, uint64_t seed,
                       kernels::ThreadPool& pool) {
  static_assert(std::endian::native == std::endian::little);
  const std::vector<Tensor> tensors = random_tensors(config);
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  const std::string header = header_of(tensors);
  const uint64_t size = header.size();
  file.write(reinterpret_cast<const char*>(&size), sizeof size);
  file.write(header.data(), static_cast<std::streamsize>(header.size()));
  std::vector<uint16_t> piece(kPieceBytes / 2);
  for (const Tensor& tensor : tensors) {
    if (tensor.shape.size() == 1) {
      const std::vector<float> values = vector_values(tensor, seed);
      file.write(reinterpret_cast<const char*>(values.data()),
                 static_cast<std::streamsize>(values.size() * 4));
      continue;
    }
    const RandomRecipe recipe = random_recipe(tensor, seed);
    for (int64_t first = 0, left = num_values(tensor); left > 0;) {
      const int64_t count = std::min<int64_t>(left, static_cast<int64_t>(piece.size()));
      fill(piece.data(), recipe, first, count, pool);
      file.write(reinterpret_cast<const char*>(piece.data()), count * 2);
      first += count, left -= count;
    }
  }
  file.close();
  if (!file) throw WeightError(path + " cannot be written: " + std::strerror(errno));
}

}  // namespace ion
