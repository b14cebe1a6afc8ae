// Conversion for the GPU. See cuda_weights.h.
#include "models/cuda_weights.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "kernels/cpu/half.h"
#include "models/weight_error.h"

namespace ion {
namespace {

using kernels::DType;

constexpr int64_t kPieceBytes = 16 << 20;  // of converted rows: enough to keep all threads busy
constexpr int64_t kRun = 256;              // values converted at once; a multiple of every type's block

DType dtype_of(const Tensor& tensor) {
  return static_cast<DType>(*tensor.type);
}

// Where a tensor's rows go in the interface's weights.
struct Place {
  IonCudaWeight weight;
  int64_t first_row = 0;
};

Place matrix_place(const ModelConfig& config, WeightPart part) {
  switch (part) {
    case WeightPart::embedding:
      return {ION_CUDA_EMBEDDING};
    case WeightPart::head:
      return {ION_CUDA_HEAD};
    case WeightPart::q:
      return {ION_CUDA_QKV};
    case WeightPart::k:
      return {ION_CUDA_QKV, config.q_size()};
    case WeightPart::v:
      return {ION_CUDA_QKV, config.q_size() + config.kv_size()};
    case WeightPart::o:
      return {ION_CUDA_O};
    case WeightPart::gate:
      return {ION_CUDA_GATE_UP};
    case WeightPart::up:
      return {ION_CUDA_GATE_UP, config.ffn_size};
    case WeightPart::down:
      return {ION_CUDA_DOWN};
    default:
      throw std::logic_error("a norm among the matrices");
  }
}

IonCudaWeight norm_place(WeightPart part) {
  switch (part) {
    case WeightPart::output_norm:
      return ION_CUDA_OUTPUT_NORM;
    case WeightPart::attn_norm:
      return ION_CUDA_ATTN_NORM;
    case WeightPart::q_norm:
      return ION_CUDA_Q_NORM;
    case WeightPart::k_norm:
      return ION_CUDA_K_NORM;
    case WeightPart::ffn_norm:
      return ION_CUDA_FFN_NORM;
    default:
      throw std::logic_error("a matrix among the norms");
  }
}

bool is_qkv(WeightPart part) {
  return part == WeightPart::q || part == WeightPart::k || part == WeightPart::v;
}

bool has_bias(const std::vector<FoundWeight>& found) {
  return std::ranges::any_of(found, [](const FoundWeight& w) { return w.is_bias; });
}

int64_t count(const std::vector<FoundWeight>& found, WeightPart part) {
  return std::ranges::count(found, part, &FoundWeight::part);
}

// One row of k values in file layout, rounded.
void convert_row(uint16_t* dst, const std::byte* row, DType dtype, int64_t k) {
  if (dtype == DType::BF16) {
    std::memcpy(dst, row, static_cast<size_t>(k) * sizeof(uint16_t));
    return;
  }
  float values[kRun];
  for (int64_t first = 0; first < k; first += kRun) {
    const int64_t num = std::min(kRun, k - first);
    const std::byte* from = row + kernels::row_bytes(dtype, first);
    if (dtype == DType::F32) {
      std::memcpy(values, from, static_cast<size_t>(num) * sizeof(float));
    } else if (dtype == DType::F16) {
      for (int64_t i = 0; i < num; ++i) values[i] = kernels::load_f16(from + 2 * i);
    } else {
      kernels::dequantize_row(values, from, dtype, num);
    }
    for (int64_t i = 0; i < num; ++i) dst[first + i] = kernels::f32_to_bf16(values[i]);
  }
}

class Converter {
 public:
  Converter(const ModelConfig& config, kernels::ThreadPool& pool, const WriteRows& write)
      : config_(config), pool_(pool), write_(write) {}

  void matrix(const FoundWeight& found) {
    const Tensor& tensor = *found.tensor;
    const Place place = matrix_place(config_, found.part);
    const int64_t num_rows = tensor.shape[0], k = tensor.shape[1];
    const int64_t row_bytes = kernels::row_bytes(dtype_of(tensor), k);
    const bool is_as_wanted = dtype_of(tensor) == DType::BF16 && found.num_interleaved_heads == 0;
    const int64_t step = std::max<int64_t>(1, kPieceBytes / (2 * k));
    for (int64_t first = 0; first < num_rows; first += step) {
      const int64_t num = std::min(step, num_rows - first);
      const void* rows = tensor.data.data() + first * row_bytes;
      if (!is_as_wanted) rows = piece(found, first, num);
      write_(place.weight, found.layer, place.first_row + first, num, rows);
    }
  }

  void norm(const FoundWeight& found) {
    const std::vector<float> values = vector(found);
    write_(norm_place(found.part), found.layer, 0, static_cast<int64_t>(values.size()), values.data());
  }

  // What a layer's file has of the three biases; the others are zeros.
  void qkv_bias(const std::vector<FoundWeight>& found, int32_t layer) {
    std::vector<float> joined(config_.q_size() + 2 * config_.kv_size());
    for (const FoundWeight& bias : found) {
      if (!bias.is_bias || bias.layer != layer) continue;
      std::ranges::copy(vector(bias), joined.begin() + matrix_place(config_, bias.part).first_row);
    }
    write_(ION_CUDA_QKV_BIAS, layer, 0, static_cast<int64_t>(joined.size()), joined.data());
  }

 private:
  int64_t row_in_file(const FoundWeight& found, int64_t row) const {
    return found.num_interleaved_heads > 0 ? interleaved_row(row, config_.head_dim) : row;
  }

  const uint16_t* piece(const FoundWeight& found, int64_t first, int64_t num_rows) {
    const Tensor& tensor = *found.tensor;
    const DType dtype = dtype_of(tensor);
    const int64_t k = tensor.shape[1], row_bytes = kernels::row_bytes(dtype, k);
    piece_.resize(std::max(piece_.size(), static_cast<size_t>(num_rows * k)));
    pool_.parallel_for(num_rows, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const std::byte* row = tensor.data.data() + row_in_file(found, first + i) * row_bytes;
        convert_row(piece_.data() + i * k, row, dtype, k);
      }
    });
    return piece_.data();
  }

  std::vector<float> vector(const FoundWeight& found) const {
    const Tensor& tensor = *found.tensor;
    std::vector<float> values(tensor.shape[0]), out(tensor.shape[0]);
    kernels::dequantize_row(values.data(), tensor.data.data(), dtype_of(tensor), tensor.shape[0]);
    for (size_t i = 0; i < out.size(); ++i) out[i] = values[row_in_file(found, static_cast<int64_t>(i))];
    return out;
  }

  const ModelConfig& config_;
  kernels::ThreadPool& pool_;
  const WriteRows& write_;
  std::vector<uint16_t> piece_;
};

// Vectors by the converter, matrices by `matrix`.
template <typename Matrix>
void convert(const ModelConfig& config, const std::vector<FoundWeight>& found, Converter& converter,
             Matrix matrix) {
  for (const FoundWeight& weight : found) {
    if (weight.is_bias) continue;
    weight.tensor->shape.size() == 1 ? converter.norm(weight) : matrix(weight);
  }
  if (!has_bias(found)) return;
  for (int32_t layer = 0; layer < config.num_layers; ++layer) converter.qkv_bias(found, layer);
}

}  // namespace

CudaConfig::CudaConfig(const ModelConfig& config, const std::vector<FoundWeight>& found,
                       const NamedTensors& tensors)
    : windows_(config.windows) {
  ModelConfig divided = config;
  const std::vector<float> divisors = rope_divisors(config, tensors);
  divided.rope_divisors.assign(divisors.begin(), divisors.end());
  frequencies_ = rope_frequencies(divided);
  values.num_layers = config.num_layers;
  values.hidden_size = config.hidden_size;
  values.num_heads = config.num_heads;
  values.num_kv_heads = config.num_kv_heads;
  values.head_dim = config.head_dim;
  values.ffn_size = config.ffn_size;
  values.vocab_size = config.vocab_size;
  values.rms_eps = config.rms_eps;
  values.has_qkv_bias = has_bias(found) ? 1 : 0;
  values.has_qk_norm = count(found, WeightPart::q_norm) > 0 ? 1 : 0;
  values.is_head_tied = count(found, WeightPart::head) == 0 ? 1 : 0;
  values.rope_frequencies = frequencies_.data();
  values.windows = windows_.empty() ? nullptr : windows_.data();
}

void refuse_inexpressible(const ModelConfig& config, const std::vector<FoundWeight>& found) {
  for (const FoundWeight& weight : found) {
    if (weight.is_bias && !is_qkv(weight.part)) {
      throw WeightError("tensor " + quoted(weight.tensor->name) +
                        ": on CUDA only the products of q, k and v have a bias; device: cpu computes it");
    }
  }
  for (const WeightPart part : {WeightPart::q_norm, WeightPart::k_norm}) {
    const int64_t num = count(found, part), num_q = count(found, WeightPart::q_norm);
    if (num != num_q || (num != 0 && num != config.num_layers)) {
      throw WeightError(
          "norms of the heads in some layers only, or of q or k only, are not supported on CUDA; "
          "device: cpu computes them");
    }
  }
}

void convert_weights(const ModelConfig& config, const std::vector<FoundWeight>& found,
                     kernels::ThreadPool& pool, const WriteRows& write) {
  Converter converter(config, pool, write);
  convert(config, found, converter, [&](const FoundWeight& weight) { converter.matrix(weight); });
}

void make_weights(const ModelConfig& config, const std::vector<FoundWeight>& found, uint64_t seed,
                  kernels::ThreadPool& pool, const WriteRows& write, const FillRows& fill) {
  Converter converter(config, pool, write);
  convert(config, found, converter, [&](const FoundWeight& weight) {
    const Place place = matrix_place(config, weight.part);
    const RandomRecipe recipe = random_recipe(*weight.tensor, seed);
    fill(place.weight, weight.layer, place.first_row, weight.tensor->shape[0], recipe);
  });
}

}  // namespace ion
