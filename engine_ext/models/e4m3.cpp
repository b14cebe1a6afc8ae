// Rounding by integers, so that the compiler can do many values at once.
#include "models/e4m3.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

namespace ion {
namespace {

constexpr uint32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;
constexpr uint32_t kSmallestNormal = 0x3c800000;  // 2^-6

// |value| <= 448.
uint8_t encode(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & kMagnitude;
  // 20 bits of a float's mantissa go; its exponent's bias is 127, ours 7.
  const uint32_t normal = ((magnitude + 0x7ffff + (magnitude >> 20 & 1)) >> 20) - ((127 - 7) << 3);
  // Below 2^-6 steps are 2^-9, which is what the last bit of 2^14 counts.
  const uint32_t small =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0x1p14f) - std::bit_cast<uint32_t>(0x1p14f);
  return static_cast<uint8_t>((magnitude < kSmallestNormal ? small : normal) | (bits >> 24 & 0x80));
}

constexpr float decode(uint32_t code) {
  const uint32_t exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 0x7f) == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = exponent == 0 ? static_cast<float>(mantissa) * 0x1p-9f
                                        : std::bit_cast<float>((exponent + 127 - 7) << 23 | mantissa << 20);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

constexpr auto kValues = [] {
  std::array<float, 256> out{};
  for (uint32_t code = 0; code < 256; ++code) out[code] = decode(code);
  return out;
}();

}  // namespace

float e4m3_to_f32(uint8_t code) {
  return kValues[code];
}

bool quantise_e4m3(uint8_t* codes, float* scale, const float* values, int64_t k) {
  uint32_t most = 0;  // as bits: in the order of magnitudes, NaN above infinity
  for (int64_t i = 0; i < k; ++i) most = std::max(most, std::bit_cast<uint32_t>(values[i]) & kMagnitude);
  if (most >= kInfinity) return false;
  // Below the smallest normal quotient there is no factor: such a row is zeros.
  const float largest = std::bit_cast<float>(most), factor = kLargestE4m3 / largest;
  const bool is_zero = largest < kLargestE4m3 * std::numeric_limits<float>::min();
  *scale = is_zero ? 1.0f : largest / kLargestE4m3;
  for (int64_t i = 0; i < k; ++i) {
    const float code = is_zero ? 0.0f : values[i] * factor;
    codes[i] = encode(std::min(std::max(code, -kLargestE4m3), kLargestE4m3));
  }
  return true;
}

void dequantise_e4m3(float* values, const uint8_t* codes, float scale, int64_t k) {
  for (int64_t i = 0; i < k; ++i) values[i] = kValues[codes[i]] * scale;
}

}  // namespace ion
