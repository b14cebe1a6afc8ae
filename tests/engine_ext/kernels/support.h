// Random inputs and exact comparisons for the kernels' tests. Knows file layouts of weights, no packed ones.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "kernels/kernels.h"

namespace support {

using ion::kernels::DType;
using ion::kernels::Isa;
using ion::kernels::Numerics;
using ion::kernels::ThreadPool;
using Random = std::mt19937_64;

inline const std::vector<DType>& all_dtypes() {
  static const std::vector<DType> dtypes = {DType::F32,  DType::F16,  DType::BF16, DType::Q4_0,
                                            DType::Q4_1, DType::Q5_0, DType::Q5_1, DType::Q8_0,
                                            DType::Q4_K, DType::Q5_K, DType::Q6_K};
  return dtypes;
}

inline std::vector<DType> quantized_dtypes() {
  std::vector<DType> found;
  for (const DType dtype : all_dtypes()) {
    if (ion::kernels::is_quantized(dtype)) found.push_back(dtype);
  }
  return found;
}

inline std::vector<Isa> isas() {
  std::vector<Isa> found;
  for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512vnni}) {
    if (isa <= ion::kernels::best_isa()) found.push_back(isa);
  }
  return found;
}

// Restores the instruction set at the end of a scope.
class WithIsa {
 public:
  explicit WithIsa(Isa isa) : before_(ion::kernels::current_isa()) { ion::kernels::set_isa(isa); }
  ~WithIsa() { ion::kernels::set_isa(before_); }

 private:
  Isa before_;
};

inline std::vector<float> normals(Random& random, int64_t size, float scale = 1.0f) {
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(static_cast<std::size_t>(size));
  for (float& value : values) value = normal(random);
  return values;
}

inline std::vector<float> poisoned(int64_t size) {
  return std::vector<float>(static_cast<std::size_t>(size), std::numeric_limits<float>::quiet_NaN());
}

// Where the f16 values of a block lie in a file: its scale, and a minimum's where the type has one.
inline std::vector<int> half_offsets(DType dtype) {
  switch (dtype) {
    case DType::F32:
    case DType::BF16:
      return {};
    case DType::F16:
    case DType::Q4_0:
    case DType::Q5_0:
    case DType::Q8_0:
      return {0};
    case DType::Q4_1:
    case DType::Q5_1:
    case DType::Q4_K:
    case DType::Q5_K:
      return {0, 2};
    case DType::Q6_K:
      return {208};
  }
  throw std::invalid_argument("no such weight type");
}

inline void put_f16(std::byte* at, Random& random) {
  const uint16_t sign = static_cast<uint16_t>((random() & 1) << 15);
  const uint16_t bits = static_cast<uint16_t>(sign | (0x2000 + random() % 0x0800));  // about 0.008 .. 0.03
  std::memcpy(at, &bits, 2);
}

// Random bits everywhere, then scales of ordinary size where the layout has them.
inline std::vector<std::byte> random_weights(Random& random, DType dtype, int64_t n, int64_t k) {
  const ion::kernels::DTypeInfo& info = ion::kernels::dtype_info(dtype);
  std::vector<std::byte> bytes(static_cast<std::size_t>(n * ion::kernels::row_bytes(dtype, k)));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  for (std::size_t at = 0; at < bytes.size(); at += static_cast<std::size_t>(info.block_bytes)) {
    std::byte* block = bytes.data() + at;
    const float value = std::normal_distribution<float>(0.0f, 0.1f)(random);
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint16_t upper = static_cast<uint16_t>(bits >> 16);
    if (dtype == DType::F32) std::memcpy(block, &bits, 4);
    if (dtype == DType::BF16) std::memcpy(block, &upper, 2);
    for (const int offset : half_offsets(dtype)) put_f16(block + offset, random);
  }
  return bytes;
}

inline std::vector<float> dequantized(const std::vector<std::byte>& bytes, DType dtype, int64_t n,
                                      int64_t k) {
  std::vector<float> values(static_cast<std::size_t>(n * k));
  for (int64_t r = 0; r < n; ++r) {
    ion::kernels::dequantize_row(values.data() + r * k, bytes.data() + r * ion::kernels::row_bytes(dtype, k),
                                 dtype, k);
  }
  return values;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// 64-byte aligned memory filled with a pattern, so that reading what nobody wrote shows.
class Aligned {
 public:
  explicit Aligned(int64_t bytes) : storage_(static_cast<std::size_t>(bytes) + 64, std::byte{0xA5}) {}
  void* data() {
    const auto address = reinterpret_cast<std::uintptr_t>(storage_.data());
    return storage_.data() + (64 - address % 64) % 64;
  }

 private:
  std::vector<std::byte> storage_;
};

// A packed matrix with its memory and its file form.
struct Weights {
  DType dtype;
  int64_t n, k;
  std::vector<std::byte> file;
  Aligned packed;
  ion::kernels::PackedMatrix view;

  Weights(Random& random, DType type, int64_t rows, int64_t cols, Numerics numerics, ThreadPool& pool)
      : dtype(type),
        n(rows),
        k(cols),
        file(random_weights(random, type, rows, cols)),
        packed(ion::kernels::packed_bytes(type, rows, cols, numerics)),
        view(ion::kernels::pack_matrix(packed.data(), file.data(), type, rows, cols, numerics, pool)) {}
};

inline std::string name(DType dtype) {
  return std::string(ion::kernels::dtype_info(dtype).name);
}
inline std::string name(Isa isa) {
  return std::string(ion::kernels::isa_name(isa));
}

}  // namespace support
