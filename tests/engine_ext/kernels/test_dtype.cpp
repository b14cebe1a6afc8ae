// Types of weights: sizes and 16-bit floats. Values against the gguf package are in test_kernels.py.
#include "kernels/cpu/half.h"
#include "kernels/cpu/table.h"
#include "support.h"

using namespace ion::kernels;
using namespace support;

TEST(rows_have_the_sizes_of_the_gguf_specification) {
  CHECK_EQ(row_bytes(DType::F32, 7), 28);
  CHECK_EQ(row_bytes(DType::F16, 7), 14);
  CHECK_EQ(row_bytes(DType::BF16, 7), 14);
  CHECK_EQ(row_bytes(DType::Q4_0, 576), 18 * 18);
  CHECK_EQ(row_bytes(DType::Q4_1, 576), 18 * 20);
  CHECK_EQ(row_bytes(DType::Q5_0, 576), 18 * 22);
  CHECK_EQ(row_bytes(DType::Q5_1, 576), 18 * 24);
  CHECK_EQ(row_bytes(DType::Q8_0, 576), 18 * 34);
  CHECK_EQ(row_bytes(DType::Q4_K, 512), 2 * 144);
  CHECK_EQ(row_bytes(DType::Q5_K, 512), 2 * 176);
  CHECK_EQ(row_bytes(DType::Q6_K, 512), 2 * 210);
}

TEST(packed_weights_take_the_bytes_of_the_file) {
  for (const DType dtype : all_dtypes()) {
    // Scales and minimums of 6 bits become bytes: 4 more in 256 values of a row.
    const int64_t widened = dtype == DType::Q4_K || dtype == DType::Q5_K ? 16 * 2 * 4 : 0;
    CHECK_EQ(packed_bytes(dtype, 16, 512, Numerics::fast), 16 * row_bytes(dtype, 512) + widened);
    CHECK_EQ(packed_bytes(dtype, 9, 512, Numerics::exact), 16 * row_bytes(dtype, 512) + widened);
  }
}

TEST(shapes_that_do_not_fit_the_blocks_are_not_packable) {
  CHECK(is_packable(DType::Q4_1, 3, 576));
  CHECK(!is_packable(DType::Q4_1, 3, 577));
  for (const DType dtype : {DType::Q4_K, DType::Q5_K, DType::Q6_K}) {
    CHECK(is_packable(dtype, 3, 512));
    CHECK(!is_packable(dtype, 3, 576));
  }
  CHECK(is_packable(DType::BF16, 3, 577));
  CHECK(!is_packable(DType::F32, 0, 4));
  CHECK(!is_packable(DType::F32, 4, 0));
}

TEST(an_unknown_type_is_refused) {
  CHECK_THROWS(std::invalid_argument, dtype_info(static_cast<DType>(77)), "type");
}

TEST(every_f16_survives_the_way_to_f32_and_back) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const uint16_t h = static_cast<uint16_t>(bits);
    const bool is_nan = (h & 0x7c00) == 0x7c00 && (h & 0x3ff) != 0;
    const uint16_t back = f32_to_f16(f16_to_f32(h));
    CHECK_EQ(is_nan ? std::isnan(f16_to_f32(h)) : back == h, true);
  }
}

TEST(f16_rounds_as_the_hardware_does) {
  Random random(1);
  std::vector<float> values = {0.0f,  -0.0f,   65504.0f, 65519.9f, 65520.0f, 1e30f,
                               6e-8f, 2.9e-8f, 3e-8f,    INFINITY, NAN};
  for (int i = 0; i < 100000; ++i) {
    const uint32_t bits = static_cast<uint32_t>(random());
    values.push_back(std::bit_cast<float>(bits));
    values.push_back(std::bit_cast<float>(0x38000000u + bits % 0x01000000u));  // around the subnormals
  }
  std::vector<uint16_t> want(values.size()), got(values.size());
  for (const Isa isa : isas()) {
    const WithIsa with(isa);
    kernel_table().to_f16(got.data(), values.data(), static_cast<int64_t>(values.size()));
    if (isa == Isa::scalar) want = got;
    CHECK(got == want);
  }
}

int main(int argc, char** argv) {
  return check::main(argc, argv);
}
