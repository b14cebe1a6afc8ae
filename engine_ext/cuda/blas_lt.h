// cuBLASLt, loaded at run time: the library is large, and whoever has torch or the toolkit has it already.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/cuda/quantise.h"

namespace ion::cuda {

// y [m, n] = x [m, k] * w [n, k]^T, all row-major and dense, bf16 or e4m3 in, float32 sums. One stream at a
// time: calls share a workspace. Plans are kept for each shape.
class BlasLt {
 public:
  // `path` names libcublasLt.so, or is empty: then the loader's own search. Throws std::runtime_error.
  explicit BlasLt(const std::string& path);
  ~BlasLt();
  BlasLt(const BlasLt&) = delete;
  BlasLt& operator=(const BlasLt&) = delete;

  void matmul(__nv_bfloat16* y, const __nv_bfloat16* x, const __nv_bfloat16* w, int64_t m, int64_t n,
              int64_t k, cudaStream_t stream);
  void matmul(float* y, const __nv_bfloat16* x, const __nv_bfloat16* w, int64_t m, int64_t n, int64_t k,
              cudaStream_t stream);
  // y += x * w^T: a float32 sum is rounded once.
  void add_matmul(float* y, const __nv_bfloat16* x, const __nv_bfloat16* w, int64_t m, int64_t n, int64_t k,
                  cudaStream_t stream);
  // Codes of e4m3, each row of x and of w with its scale; n and k are multiples of 16. Gives the scales that
  // are not in y yet: the library can scale by rows on sm_90 alone, and only many rows gain by it (decision
  // 44).
  ProductScales matmul(__nv_bfloat16* y, const QuantisedRows& x, const QuantisedRows& w, int64_t m, int64_t n,
                       int64_t k, cudaStream_t stream);
  ProductScales matmul(float* y, const QuantisedRows& x, const QuantisedRows& w, int64_t m, int64_t n,
                       int64_t k, cudaStream_t stream);

 private:
  struct Library;  // its functions, handle and plans: only blas_lt.cpp needs cublasLt.h

  std::unique_ptr<Library> library_;
};

}  // namespace ion::cuda
