#include "cuda/model.h"

#include <stdexcept>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/stream_gemm.h"

namespace ion::cuda {
namespace {

constexpr int32_t kNumWeights = ION_CUDA_HEAD_SCALE + 1;
constexpr int64_t kLargeWrite = 4 << 20;  // bytes worth several threads

bool is_of_layer(IonCudaWeight weight) {
  return weight != ION_CUDA_EMBEDDING && weight != ION_CUDA_HEAD && weight != ION_CUDA_OUTPUT_NORM &&
         weight != ION_CUDA_HEAD_SCALE;
}

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(std::string("CUDA: ") + what);
}

void require_e4m3(int32_t device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "device");
  if (10 * properties.major + properties.minor >= 89) return;
  throw std::invalid_argument(std::string("CUDA: fp8 wants compute capability 8.9 or more; ") +
                              properties.name + " has " + std::to_string(properties.major) + "." +
                              std::to_string(properties.minor));
}

}  // namespace

Config::Config(const IonCudaConfig& from)
    : num_layers(from.num_layers),
      hidden_size(from.hidden_size),
      num_heads(from.num_heads),
      num_kv_heads(from.num_kv_heads),
      head_dim(from.head_dim),
      ffn_size(from.ffn_size),
      vocab_size(from.vocab_size),
      rms_eps(from.rms_eps),
      has_qkv_bias(from.has_qkv_bias != 0),
      has_qk_norm(from.has_qk_norm != 0),
      is_head_tied(from.is_head_tied != 0),
      is_e4m3(from.matrix_type == ION_CUDA_E4M3),
      is_head_e4m3(from.head_type == ION_CUDA_E4M3),
      is_kv_e4m3(from.kv_type == ION_CUDA_E4M3),
      windows(from.num_layers > 0 ? from.num_layers : 0) {
  require(num_layers > 0 && hidden_size > 0 && num_heads > 0 && num_kv_heads > 0 && ffn_size > 0 &&
              vocab_size > 0,
          "sizes must be positive");
  require(is_attention_shape(num_heads, num_kv_heads, head_dim),
          "head_dim must be 32, 64, 96 or 128, and the heads a multiple of the key/value heads");
  require(hidden_size % 8 == 0 && ffn_size % 8 == 0, "hidden and feed-forward sizes must be multiples of 8");
  require(from.matrix_type == ION_CUDA_BF16 || is_e4m3, "no such type of matrices");
  require(!is_e4m3 || (hidden_size % 16 == 0 && ffn_size % 16 == 0),
          "precision fp8: the hidden and feed-forward sizes must be multiples of 16");
  require(from.head_type == ION_CUDA_BF16 || is_head_e4m3, "no such type of the head");
  require(!is_head_e4m3 || !is_head_tied, "head_precision fp8: such a head is not the embedding");
  require(!is_head_e4m3 || (hidden_size % 16 == 0 && vocab_size % 16 == 0),
          "head_precision fp8: the hidden size and the vocabulary must be multiples of 16");
  require(from.kv_type == ION_CUDA_BF16 || is_kv_e4m3, "no such type of the KV cache");
  require(!is_kv_e4m3 || is_e4m3_kv_shape(head_dim), "kv_precision fp8: head_dim must be 64 or 128");
  require(from.rope_frequencies != nullptr, "rope_frequencies are missing");
  rope_frequencies.assign(from.rope_frequencies, from.rope_frequencies + head_dim / 2);
  if (from.windows != nullptr) windows.assign(from.windows, from.windows + num_layers);
}

int64_t Config::block_values() const {
  return num_layers * kv_layer_values(num_kv_heads, head_dim, is_kv_e4m3);
}

WeightShape shape_of(const Config& config, IonCudaWeight weight) {
  constexpr int64_t kFloat = 4, kBf16 = 2;
  const int64_t hidden = config.hidden_size, ffn = config.ffn_size, value = config.is_e4m3 ? 1 : kBf16;
  const auto scales = [&](int64_t rows) { return WeightShape{config.is_e4m3 ? rows : 0, 1, kFloat}; };
  switch (weight) {
    case ION_CUDA_EMBEDDING:
      return {config.vocab_size, hidden, kBf16};
    case ION_CUDA_HEAD:
      return {config.is_head_tied ? 0 : config.vocab_size, hidden, config.is_head_e4m3 ? 1 : kBf16};
    case ION_CUDA_HEAD_SCALE:
      return {config.is_head_e4m3 ? config.vocab_size : 0, 1, kFloat};
    case ION_CUDA_OUTPUT_NORM:
    case ION_CUDA_ATTN_NORM:
    case ION_CUDA_FFN_NORM:
      return {hidden, 1, kFloat};
    case ION_CUDA_QKV:
      return {config.qkv_size(), hidden, value};
    case ION_CUDA_QKV_BIAS:
      return {config.has_qkv_bias ? config.qkv_size() : 0, 1, kFloat};
    case ION_CUDA_Q_NORM:
    case ION_CUDA_K_NORM:
      return {config.has_qk_norm ? config.head_dim : 0, 1, kFloat};
    case ION_CUDA_O:
      return {hidden, config.q_size(), value};
    case ION_CUDA_GATE_UP:
      return {2 * ffn, hidden, value};
    case ION_CUDA_DOWN:
      return {hidden, ffn, value};
    case ION_CUDA_QKV_SCALE:
      return scales(config.qkv_size());
    case ION_CUDA_O_SCALE:
    case ION_CUDA_DOWN_SCALE:
      return scales(hidden);
    case ION_CUDA_GATE_UP_SCALE:
      return scales(2 * ffn);
  }
  throw std::invalid_argument("CUDA: no such weight");
}

int64_t weight_bytes(const Config& config) {
  int64_t total = 0;
  for (int32_t i = 0; i < kNumWeights; ++i) {
    const auto weight = static_cast<IonCudaWeight>(i);
    const int64_t copies = is_of_layer(weight) ? config.num_layers : 1;
    total += copies * aligned(shape_of(config, weight).num_bytes());
  }
  return total;
}

Model::Model(const IonCudaConfig& config, int32_t device, const std::string& blaslt)
    : config_(config), device_(device), layers_(config_.num_layers) {
  check(cudaSetDevice(device), "device");
  if (config_.is_e4m3 || config_.is_head_e4m3 || config_.is_kv_e4m3) require_e4m3(device);
  memory_ = DeviceMemory(weight_bytes(config_), "the model's weights");
  int64_t at = 0;
  const auto take = [&](IonCudaWeight weight, auto*& to) {
    const int64_t num_bytes = shape_of(config_, weight).num_bytes();
    to = num_bytes == 0 ? nullptr : memory_.as<std::remove_reference_t<decltype(*to)>>(at);
    at += aligned(num_bytes);
  };
  const auto take_matrix = [&](IonCudaWeight weight, IonCudaWeight scale, Matrix& to) {
    const int64_t num_bytes = shape_of(config_, weight).num_bytes();
    to.values = memory_.as<void>(at);
    at += aligned(num_bytes);
    take(scale, to.scales);
  };
  take(ION_CUDA_EMBEDDING, embedding_);
  take_matrix(ION_CUDA_HEAD, ION_CUDA_HEAD_SCALE, head_);
  if (config_.is_head_tied) head_ = {embedding_};
  take(ION_CUDA_OUTPUT_NORM, output_norm_);
  for (Layer& layer : layers_) {
    take(ION_CUDA_ATTN_NORM, layer.attn_norm);
    take_matrix(ION_CUDA_QKV, ION_CUDA_QKV_SCALE, layer.qkv);
    take(ION_CUDA_QKV_BIAS, layer.qkv_bias);
    take(ION_CUDA_Q_NORM, layer.q_norm);
    take(ION_CUDA_K_NORM, layer.k_norm);
    take_matrix(ION_CUDA_O, ION_CUDA_O_SCALE, layer.o);
    take(ION_CUDA_FFN_NORM, layer.ffn_norm);
    take_matrix(ION_CUDA_GATE_UP, ION_CUDA_GATE_UP_SCALE, layer.gate_up);
    take_matrix(ION_CUDA_DOWN, ION_CUDA_DOWN_SCALE, layer.down);
  }
  blas_ = std::make_unique<BlasLt>(blaslt);
}

void* Model::pointer(IonCudaWeight weight, int32_t layer) const {
  if (layer < 0 || layer >= config_.num_layers) throw std::invalid_argument("CUDA: no such layer");
  const Layer& of = layers_[layer];
  switch (weight) {
    case ION_CUDA_EMBEDDING:
      return embedding_;
    case ION_CUDA_HEAD:
      return config_.is_head_tied ? nullptr : head_.values;
    case ION_CUDA_HEAD_SCALE:
      return head_.scales;
    case ION_CUDA_OUTPUT_NORM:
      return output_norm_;
    case ION_CUDA_ATTN_NORM:
      return of.attn_norm;
    case ION_CUDA_QKV:
      return of.qkv.values;
    case ION_CUDA_QKV_BIAS:
      return of.qkv_bias;
    case ION_CUDA_Q_NORM:
      return of.q_norm;
    case ION_CUDA_K_NORM:
      return of.k_norm;
    case ION_CUDA_O:
      return of.o.values;
    case ION_CUDA_FFN_NORM:
      return of.ffn_norm;
    case ION_CUDA_GATE_UP:
      return of.gate_up.values;
    case ION_CUDA_DOWN:
      return of.down.values;
    case ION_CUDA_QKV_SCALE:
      return of.qkv.scales;
    case ION_CUDA_O_SCALE:
      return of.o.scales;
    case ION_CUDA_GATE_UP_SCALE:
      return of.gate_up.scales;
    case ION_CUDA_DOWN_SCALE:
      return of.down.scales;
  }
  throw std::invalid_argument("CUDA: no such weight");
}

void Model::write(IonCudaWeight weight, int32_t layer, int64_t first_row, int64_t num_rows,
                  const void* rows) {
  const WeightShape shape = shape_of(config_, weight);
  if (shape.rows == 0) throw std::invalid_argument("CUDA: the model has no such weight");
  if (first_row < 0 || num_rows < 0 || first_row + num_rows > shape.rows) {
    throw std::invalid_argument("CUDA: rows outside the weight");
  }
  check(cudaSetDevice(device_), "device");
  auto* to = static_cast<std::byte*>(pointer(weight, layer)) + first_row * shape.row_bytes();
  const int64_t num_bytes = num_rows * shape.row_bytes();
  if (num_bytes < kLargeWrite) {
    check(cudaMemcpy(to, rows, num_bytes, cudaMemcpyHostToDevice), "copy of weights");
    return;
  }
  if (upload_ == nullptr) upload_ = std::make_unique<Upload>(device_);
  upload_->copy(to, static_cast<const std::byte*>(rows), num_bytes);
}

void Model::fill(IonCudaWeight weight, int32_t layer, int64_t first_row, int64_t num_rows, uint64_t key,
                 float scale) {
  const WeightShape shape = shape_of(config_, weight);
  if (shape.value_bytes != sizeof(__nv_bfloat16) || first_row < 0 || num_rows < 0 ||
      first_row + num_rows > shape.rows) {
    throw std::invalid_argument("CUDA: rows outside the matrix");
  }
  check(cudaSetDevice(device_), "device");
  auto* to = static_cast<__nv_bfloat16*>(pointer(weight, layer)) + first_row * shape.cols;
  fill_random(to, num_rows * shape.cols, key, scale, nullptr);
}

// Empty: the device can stream all of the matrices.
std::string Model::why_not_streamed() const {
  int major = 0, minor = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device_), "device");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device_), "device");
  if (major != 9) {
    return "it is for GPUs of compute capability 9.0 (Hopper), and this one has " + std::to_string(major) +
           "." + std::to_string(minor);
  }
  const int64_t hidden = config_.hidden_size, ffn = config_.ffn_size, value = config_.is_e4m3 ? 1 : 2;
  const int64_t head_value = config_.is_head_e4m3 ? 1 : 2;
  const struct {
    const char* name;
    int64_t rows, row_bytes;
  } matrices[] = {{"q, k, v", config_.qkv_size(), value * hidden},
                  {"attention's output", hidden, value * config_.q_size()},
                  {"gate and up", 2 * ffn, value * hidden},
                  {"down", hidden, value * ffn},
                  {"the head", config_.vocab_size, head_value * hidden}};
  for (const auto& matrix : matrices) {
    if (is_stream_shape(matrix.rows, matrix.row_bytes)) continue;
    return "the matrix of " + std::string(matrix.name) + " (" + std::to_string(matrix.rows) + " rows of " +
           std::to_string(matrix.row_bytes) + " bytes) is not in whole tiles of " +
           std::to_string(kStreamRows) + " rows and " + std::to_string(kStreamBytes) + " bytes";
  }
  return {};
}

void Model::tile() {
  upload_.reset();
  if (is_tiled()) return;
  check(cudaSetDevice(device_), "device");
  why_not_tiled_ = why_not_streamed();
  if (!why_not_tiled_.empty()) return;
  const int64_t hidden = config_.hidden_size, ffn = config_.ffn_size, q_size = config_.q_size();
  const int64_t value = config_.is_e4m3 ? 1 : 2, head_row = (config_.is_head_e4m3 ? 1 : 2) * hidden;
  const int64_t head_bytes = config_.vocab_size * (head_row + (config_.is_head_e4m3 ? 4 : 0));
  const int64_t num_scales = config_.is_e4m3 ? config_.qkv_size() + 2 * hidden + 2 * ffn : 0;
  const int64_t per_layer =
      value * (config_.qkv_size() * hidden + hidden * q_size + 3 * hidden * ffn) + 4 * num_scales;
  const int64_t num_bytes = config_.num_layers * per_layer + head_bytes;
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "device memory");
  constexpr double kLeftForKv = 0.3;
  if (static_cast<double>(free) - static_cast<double>(num_bytes) < kLeftForKv * static_cast<double>(total)) {
    why_not_tiled_ = "its " + std::to_string(num_bytes) +
                     " bytes would leave less than 30% of the GPU's memory (" + std::to_string(free) +
                     " of " + std::to_string(total) + " bytes are free)";
    return;
  }
  tiled_memory_ = DeviceMemory(num_bytes, "tiled weights");
  int64_t at = 0;
  const auto copy = [&](const Matrix& from, int64_t n, int64_t row_bytes, bool pairs) {
    Matrix to{tiled_memory_.as<void>(at)};
    at += n * row_bytes;  // a whole number of 16 KiB pieces; scales: n is one of 128 rows
    tile_weights(to.values, from.values, n, row_bytes, pairs, nullptr);
    if (from.scales == nullptr) return to;
    to.scales = tiled_memory_.as<float>(at);
    at += 4 * n;
    tile_scales(to.scales, from.scales, n, pairs, nullptr);
    return to;
  };
  std::vector<TiledLayer> made(config_.num_layers);
  for (int32_t i = 0; i < config_.num_layers; ++i) {
    made[i].qkv = copy(layers_[i].qkv, config_.qkv_size(), value * hidden, false);
    made[i].o = copy(layers_[i].o, hidden, value * q_size, false);
    made[i].gate_up = copy(layers_[i].gate_up, 2 * ffn, value * hidden, true);
    made[i].down = copy(layers_[i].down, hidden, value * ffn, false);
  }
  tiled_head_ = copy(head_, config_.vocab_size, head_row, false);
  check(cudaDeviceSynchronize(), "tiling of weights");
  tiled_layers_ = std::move(made);
}

}  // namespace ion::cuda
