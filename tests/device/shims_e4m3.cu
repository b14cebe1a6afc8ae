// The operations of fp8 as C functions, for check_e4m3.py. Device memory, one
// stream.
#include <exception>
#include <memory>
#include <string>

#include "cuda/blas_lt.h"
#include "cuda/device_memory.h"
#include "kernels/cuda/quantise.h"
#include "kernels/cuda/stream_gemm.h"

using namespace ion::cuda;

namespace {

std::string error;

template <typename F>
int guarded(F call) {
  try {
    call();
    check(cudaDeviceSynchronize(), "operation");
    return 0;
  } catch (const std::exception& caught) {
    error = caught.what();
    return -1;
  }
}

}  // namespace

extern "C" {

const char* e4m3_error() {
  return error.c_str();
}

int e4m3_quantise(uint8_t* codes, float* scales, const __nv_bfloat16* x, int64_t rows, int64_t cols) {
  return guarded([&] { quantise_rows({codes, scales}, x, rows, cols, nullptr); });
}

int e4m3_silu_mul(uint8_t* codes, float* scales, const __nv_bfloat16* gate_up, const float* x_scales,
                  const float* w_scales, int64_t rows, int64_t ffn) {
  return guarded(
      [&] { silu_mul_quantised({codes, scales}, gate_up, {x_scales, w_scales}, rows, ffn, nullptr); });
}

// delta null: the norm alone.
int e4m3_norm(uint8_t* codes, float* scales, float* x, const __nv_bfloat16* delta, const float* x_scales,
              const float* w_scales, const float* weight, int64_t rows, int64_t cols, float eps) {
  return guarded([&] {
    if (delta == nullptr) {
      rms_norm_quantised({codes, scales}, x, weight, rows, cols, eps, nullptr);
    } else {
      add_rms_norm_quantised({codes, scales}, x, delta, {x_scales, w_scales}, weight, rows, cols, eps,
                             nullptr);
    }
  });
}

// y: bf16 [m, n], bf16 [m, n / 2] with silu, or float32.
int e4m3_stream(void* y, int output, const uint8_t* x, const float* x_scales, const uint8_t* w,
                const float* w_scales, int64_t m, int64_t n, int64_t k) {
  return guarded([&] {
    const StreamDevice device = stream_device();
    if (!is_stream_shape(n, k)) throw std::invalid_argument("not a shape of streams");
    const DeviceMemory tiles(n * k, "tiles"), scales(4 * n, "scales"), rows(4 * m, "scales of x");
    const DeviceMemory partial(stream_partial_bytes(device.num_sms), "sums"), counts(n / 128 * 8, "counts");
    check(cudaMemset(counts.as<void>(), 0, counts.num_bytes()), "counts");
    check(cudaMemset(rows.as<void>(), 0xff, rows.num_bytes()), "scales of x");
    check(cudaMemcpy(rows.as<void>(), x_scales, 4 * m, cudaMemcpyDeviceToDevice), "scales of x");
    const auto kind = static_cast<StreamOutput>(output);
    const bool pairs = kind == StreamOutput::silu_mul;
    tile_weights(tiles.as<void>(), w, n, k, pairs, nullptr);
    tile_scales(scales.as<float>(), w_scales, n, pairs, nullptr);
    const StreamScratch scratch{partial.as<float4>(), counts.as<uint32_t>()};
    stream_gemm(y, kind, stream_input(x, rows.as<float>(), m, k), {tiles.as<void>(), scales.as<float>()}, m,
                n, k, scratch, device, nullptr, {tiles.as<void>(), n, k});
    check(cudaDeviceSynchronize(), "streamed product");
  });
}

// y bf16 [m, n], scaled.
int e4m3_library(const char* blaslt, __nv_bfloat16* y, const uint8_t* x, float* x_scales, uint8_t* w,
                 float* w_scales, int64_t m, int64_t n, int64_t k) {
  static std::unique_ptr<BlasLt> library;
  return guarded([&] {
    if (!library) library = std::make_unique<BlasLt>(blaslt);
    const QuantisedRows rows{const_cast<uint8_t*>(x), x_scales};
    apply_scales(y, library->matmul(y, rows, {w, w_scales}, m, n, k, nullptr), m, n, nullptr);
  });
}

}  // extern "C"
