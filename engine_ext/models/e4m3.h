// Codes of e4m3 (fp8 as NVIDIA, Arm and Intel have it: 4 bits of exponent, 3 of mantissa, no infinity,
// largest value 448), read and made a row at a time. Knows no tensors.
#pragma once

#include <cstdint>

namespace ion {

constexpr float kLargestE4m3 = 448.0f;

// 0x7f and 0xff are NaN.
float e4m3_to_f32(uint8_t code);

// codes [k]: values / scale to the nearest, ties to even; `scale` gives the row's largest the code of 448,
// and is 1 for a row of zeros. False, and nothing is written, where a value is not finite.
bool quantise_e4m3(uint8_t* codes, float* scale, const float* values, int64_t k);

// values [k] = codes * scale.
void dequantise_e4m3(float* values, const uint8_t* codes, float scale, int64_t k);

}  // namespace ion
