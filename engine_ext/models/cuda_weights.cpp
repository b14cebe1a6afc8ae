// Conversion for the GPU. See cuda_weights.h.
#include "models/cuda_weights.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <stdexcept>

#include "kernels/cpu/half.h"
#include "models/e4m3.h"
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

bool is_tied(const std::vector<FoundWeight>& found) {
  return count(found, WeightPart::head) == 0;
}

bool is_of_layer(WeightPart part) {
  return part != WeightPart::embedding && part != WeightPart::head;
}

IonCudaWeight scale_place(IonCudaWeight weight) {
  switch (weight) {
    case ION_CUDA_QKV:
      return ION_CUDA_QKV_SCALE;
    case ION_CUDA_O:
      return ION_CUDA_O_SCALE;
    case ION_CUDA_GATE_UP:
      return ION_CUDA_GATE_UP_SCALE;
    case ION_CUDA_DOWN:
      return ION_CUDA_DOWN_SCALE;
    case ION_CUDA_HEAD:
      return ION_CUDA_HEAD_SCALE;
    default:
      throw std::logic_error("a matrix without scales");
  }
}

// The factors of a matrix of e4m3.
class Scales {
 public:
  explicit Scales(const FoundWeight& found) : values_(num_values(*found.scales)) {
    const Tensor& scales = *found.scales;
    kernels::dequantize_row(values_.data(), scales.data.data(), dtype_of(scales),
                            static_cast<int64_t>(values_.size()));
    const int64_t n = found.tensor->shape[0];
    if (values_.size() == 1) return;
    is_block_ =
        static_cast<int64_t>(values_.size()) != n || (scales.shape.size() == 2 && scales.shape[1] != 1);
    row_stride_ = is_block_ ? scales.shape[1] : 1;
  }

  bool is_block() const { return is_block_; }
  float at(int64_t row, int64_t column) const {
    return is_block_ ? values_[row / kScaleBlock * row_stride_ + column / kScaleBlock]
                     : values_[row * row_stride_];
  }

 private:
  std::vector<float> values_;
  bool is_block_ = false;
  int64_t row_stride_ = 0;  // 0: one for all rows
};

// Values [first, first + num) of a row of a matrix; `row` is where the row lies in the file.
void read_values(float* dst, const Tensor& tensor, const Scales* scales, int64_t row, int64_t first,
                 int64_t num) {
  const int64_t k = tensor.shape[1];
  if (scales != nullptr) {
    const auto* codes = reinterpret_cast<const uint8_t*>(tensor.data.data()) + row * k;
    for (int64_t i = 0; i < num; i += kScaleBlock) {
      const int64_t count = std::min(kScaleBlock, num - i);
      dequantise_e4m3(dst + i, codes + first + i, scales->at(row, first + i), count);
    }
    return;
  }
  const DType dtype = dtype_of(tensor);
  const std::byte* from =
      tensor.data.data() + row * kernels::row_bytes(dtype, k) + kernels::row_bytes(dtype, first);
  if (dtype == DType::F32) {
    std::memcpy(dst, from, static_cast<size_t>(num) * sizeof(float));
  } else if (dtype == DType::F16) {
    for (int64_t i = 0; i < num; ++i) dst[i] = kernels::load_f16(from + 2 * i);
  } else {
    kernels::dequantize_row(dst, from, dtype, num);
  }
}

class Converter {
 public:
  Converter(const ModelConfig& config, const CudaTypes& types, kernels::ThreadPool& pool,
            const WriteRows& write)
      : config_(config), types_(types), pool_(pool), write_(write) {}

  void matrix(const FoundWeight& found) { matrix(found, matrix_place(config_, found.part)); }

  // The same rows may have two places: a tied head of codes beside the embedding.
  void matrix(const FoundWeight& found, const Place& place) {
    const Tensor& tensor = *found.tensor;
    const bool is_e4m3 = type_of(place.weight) == ION_CUDA_E4M3;
    const int64_t num_rows = tensor.shape[0], k = tensor.shape[1];
    std::optional<Scales> scales;
    if (found.scales != nullptr) scales.emplace(found);
    const int64_t step = std::max<int64_t>(1, kPieceBytes / (2 * k));
    for (int64_t first = 0; first < num_rows; first += step) {
      const Rows rows{found, scales ? &*scales : nullptr, first, std::min(step, num_rows - first)};
      if (is_e4m3) {
        write_(place.weight, found.layer, place.first_row + first, rows.num, codes(rows));
        write_(scale_place(place.weight), found.layer, place.first_row + first, rows.num, row_scales_.data());
      } else {
        write_(place.weight, found.layer, place.first_row + first, rows.num, rounded(rows));
      }
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
  IonCudaMatrixType type_of(IonCudaWeight matrix) const {
    if (matrix == ION_CUDA_EMBEDDING) return ION_CUDA_BF16;
    return matrix == ION_CUDA_HEAD ? types_.head : types_.matrices;
  }

  int64_t row_in_file(const FoundWeight& found, int64_t row) const {
    return found.num_interleaved_heads > 0 ? interleaved_row(row, config_.head_dim) : row;
  }

  // Rows [first, first + num) of a matrix.
  struct Rows {
    const FoundWeight& found;
    const Scales* scales;
    int64_t first, num;

    int64_t k() const { return found.tensor->shape[1]; }
  };

  // The rows as bfloat16.
  const void* rounded(const Rows& rows) {
    const Tensor& tensor = *rows.found.tensor;
    const int64_t k = rows.k();
    const bool is_bf16 = tensor.type == TensorType::kBF16;
    if (is_bf16 && rows.found.num_interleaved_heads == 0) return tensor.data.data() + 2 * rows.first * k;
    piece_.resize(std::max(piece_.size(), static_cast<size_t>(2 * rows.num * k)));
    pool_.parallel_for(rows.num, [&](int64_t begin, int64_t end) {
      float values[kRun];
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = row_in_file(rows.found, rows.first + i);
        auto* to = reinterpret_cast<uint16_t*>(piece_.data()) + i * k;
        if (is_bf16) std::memcpy(to, tensor.data.data() + 2 * row * k, static_cast<size_t>(2 * k));
        for (int64_t first = 0; first < k && !is_bf16; first += kRun) {
          const int64_t num = std::min(kRun, k - first);
          read_values(values, tensor, rows.scales, row, first, num);
          for (int64_t j = 0; j < num; ++j) to[first + j] = kernels::f32_to_bf16(values[j]);
        }
      }
    });
    return piece_.data();
  }

  // The rows as codes of e4m3; row_scales_ has their scales.
  const void* codes(const Rows& rows) {
    const Tensor& tensor = *rows.found.tensor;
    const int64_t k = rows.k();
    row_scales_.resize(rows.num);
    if (rows.scales != nullptr && !rows.scales->is_block() && rows.found.num_interleaved_heads == 0) {
      for (int64_t i = 0; i < rows.num; ++i) row_scales_[i] = rows.scales->at(rows.first + i, 0);
      return tensor.data.data() + rows.first * k;
    }
    piece_.resize(std::max(piece_.size(), static_cast<size_t>(rows.num * k)));
    std::atomic<bool> is_finite = true;
    pool_.parallel_for(rows.num, [&](int64_t begin, int64_t end) {
      std::vector<float> values(k);
      for (int64_t i = begin; i < end; ++i) {
        read_values(values.data(), tensor, rows.scales, row_in_file(rows.found, rows.first + i), 0, k);
        auto* to = reinterpret_cast<uint8_t*>(piece_.data()) + i * k;
        if (!quantise_e4m3(to, &row_scales_[i], values.data(), k)) is_finite = false;
      }
    });
    if (!is_finite) {
      throw WeightError(described(tensor) +
                        " holds values that are not finite: it cannot be quantised to fp8");
    }
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
  const CudaTypes types_;
  kernels::ThreadPool& pool_;
  const WriteRows& write_;
  std::vector<std::byte> piece_;
  std::vector<float> row_scales_;
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
                       const NamedTensors& tensors, const CudaTypes& types)
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
  values.is_head_tied = types.head == ION_CUDA_BF16 && is_tied(found) ? 1 : 0;
  values.rope_frequencies = frequencies_.data();
  values.matrix_type = types.matrices;
  values.head_type = types.head;
  values.kv_type = types.kv;
  values.windows = windows_.empty() ? nullptr : windows_.data();
}

bool has_e4m3(const std::vector<FoundWeight>& found) {
  return std::ranges::any_of(found,
                             [](const FoundWeight& w) { return w.scales != nullptr && is_of_layer(w.part); });
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

void convert_weights(const ModelConfig& config, const std::vector<FoundWeight>& found, const CudaTypes& types,
                     kernels::ThreadPool& pool, const WriteRows& write) {
  Converter converter(config, types, pool, write);
  const bool is_head_copied = types.head == ION_CUDA_E4M3 && is_tied(found);
  convert(config, found, converter, [&](const FoundWeight& weight) {
    converter.matrix(weight);
    if (is_head_copied && weight.part == WeightPart::embedding) converter.matrix(weight, {ION_CUDA_HEAD});
  });
}

void make_weights(const ModelConfig& config, const std::vector<FoundWeight>& found, uint64_t seed,
                  kernels::ThreadPool& pool, const WriteRows& write, const FillRows& fill) {
  Converter converter(config, CudaTypes{}, pool, write);
  convert(config, found, converter, [&](const FoundWeight& weight) {
    const Place place = matrix_place(config, weight.part);
    const RandomRecipe recipe = random_recipe(*weight.tensor, seed);
    fill(place.weight, weight.layer, place.first_row, weight.tensor->shape[0], recipe);
  });
}

}  // namespace ion
