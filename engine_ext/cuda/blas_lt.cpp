#include "cuda/blas_lt.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <map>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "kernels/cuda/check.h"

namespace ion::cuda {
namespace {

constexpr size_t kWorkspaceBytes = 64 << 20;

void check_blas(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw std::runtime_error(std::string("cuBLASLt: ") + what + ": status " + std::to_string(status));
}

void* open_library(const std::string& path) {
  std::vector<std::string> names = {path};
  if (path.empty()) names = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"};
  std::string reasons;
  for (const std::string& name : names) {
    if (void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    reasons += std::string("\n  ") + dlerror();
  }
  throw std::runtime_error(
      "libcublasLt is not found (the package nvidia-cublas and the CUDA toolkit have it):" + reasons);
}

template <typename F>
void resolve(void* library, F& function, const char* name) {
  function = reinterpret_cast<F>(dlsym(library, name));
  if (function == nullptr) throw std::runtime_error(std::string("libcublasLt has no ") + name);
}

}  // namespace

struct BlasLt::Library {
  struct Plan {
    cublasLtMatmulDesc_t operation = nullptr;
    cublasLtMatrixLayout_t w = nullptr, x = nullptr, y = nullptr;
    cublasLtMatmulAlgo_t algorithm;
  };
  using Key = std::tuple<int64_t, int64_t, int64_t, int>;  // m, n, k, type of y

  explicit Library(const std::string& path);
  ~Library();

  void run(void* y, cudaDataType type, const __nv_bfloat16* x, const __nv_bfloat16* w, int64_t m, int64_t n,
           int64_t k, cudaStream_t stream);
  const Plan& plan(int64_t m, int64_t n, int64_t k, cudaDataType type);
  Plan make_plan(int64_t m, int64_t n, int64_t k, cudaDataType type);

  void* library_ = nullptr;
  decltype(&cublasLtCreate) create_ = nullptr;
  decltype(&cublasLtDestroy) destroy_ = nullptr;
  decltype(&cublasLtMatmul) matmul_ = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create_ = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set_ = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy_ = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create_ = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy_ = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create_ = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set_ = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy_ = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic_ = nullptr;

  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  std::map<Key, Plan> plans_;
};

BlasLt::Library::Library(const std::string& path) : library_(open_library(path)) {
  resolve(library_, create_, "cublasLtCreate");
  resolve(library_, destroy_, "cublasLtDestroy");
  resolve(library_, matmul_, "cublasLtMatmul");
  resolve(library_, desc_create_, "cublasLtMatmulDescCreate");
  resolve(library_, desc_set_, "cublasLtMatmulDescSetAttribute");
  resolve(library_, desc_destroy_, "cublasLtMatmulDescDestroy");
  resolve(library_, layout_create_, "cublasLtMatrixLayoutCreate");
  resolve(library_, layout_destroy_, "cublasLtMatrixLayoutDestroy");
  resolve(library_, preference_create_, "cublasLtMatmulPreferenceCreate");
  resolve(library_, preference_set_, "cublasLtMatmulPreferenceSetAttribute");
  resolve(library_, preference_destroy_, "cublasLtMatmulPreferenceDestroy");
  resolve(library_, heuristic_, "cublasLtMatmulAlgoGetHeuristic");
  check_blas(create_(&handle_), "create");
  check(cudaMalloc(&workspace_, kWorkspaceBytes), "workspace of matrix products");
}

BlasLt::Library::~Library() {
  for (auto& [key, plan] : plans_) {
    desc_destroy_(plan.operation);
    for (const cublasLtMatrixLayout_t layout : {plan.w, plan.x, plan.y}) layout_destroy_(layout);
  }
  destroy_(handle_);
  cudaFree(workspace_);  // the library stays loaded: others may use it
}

BlasLt::BlasLt(const std::string& path) : library_(std::make_unique<Library>(path)) {}

BlasLt::~BlasLt() = default;

void BlasLt::matmul(__nv_bfloat16* y, const __nv_bfloat16* x, const __nv_bfloat16* w, int64_t m, int64_t n,
                    int64_t k, cudaStream_t stream) {
  library_->run(y, CUDA_R_16BF, x, w, m, n, k, stream);
}

void BlasLt::matmul(float* y, const __nv_bfloat16* x, const __nv_bfloat16* w, int64_t m, int64_t n, int64_t k,
                    cudaStream_t stream) {
  library_->run(y, CUDA_R_32F, x, w, m, n, k, stream);
}

void BlasLt::Library::run(void* y, cudaDataType type, const __nv_bfloat16* x, const __nv_bfloat16* w,
                          int64_t m, int64_t n, int64_t k, cudaStream_t stream) {
  const Plan& use = plan(m, n, k, type);
  const float one = 1.0f, zero = 0.0f;
  check_blas(matmul_(handle_, use.operation, &one, w, use.w, x, use.x, &zero, y, use.y, y, use.y,
                     &use.algorithm, workspace_, kWorkspaceBytes, stream),
             "matmul");
}

const BlasLt::Library::Plan& BlasLt::Library::plan(int64_t m, int64_t n, int64_t k, cudaDataType type) {
  const Key key{m, n, k, static_cast<int>(type)};
  const auto found = plans_.find(key);
  if (found != plans_.end()) return found->second;
  return plans_.emplace(key, make_plan(m, n, k, type)).first->second;
}

// The library thinks in columns: row-major y [m, n] is its [n, m], w [n, k] its [k, n] transposed, x its [k,
// m].
BlasLt::Library::Plan BlasLt::Library::make_plan(int64_t m, int64_t n, int64_t k, cudaDataType type) {
  Plan plan;
  check_blas(desc_create_(&plan.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "descriptor");
  const cublasOperation_t transposed = CUBLAS_OP_T, plain = CUBLAS_OP_N;
  check_blas(desc_set_(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed),
             "transa");
  check_blas(desc_set_(plan.operation, CUBLASLT_MATMUL_DESC_TRANSB, &plain, sizeof plain), "transb");
  check_blas(layout_create_(&plan.w, CUDA_R_16BF, k, n, k), "layout");
  check_blas(layout_create_(&plan.x, CUDA_R_16BF, k, m, k), "layout");
  check_blas(layout_create_(&plan.y, type, n, m, n), "layout");
  cublasLtMatmulPreference_t preference = nullptr;
  check_blas(preference_create_(&preference), "preference");
  const size_t bytes = kWorkspaceBytes;
  check_blas(preference_set_(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes),
             "workspace");
  cublasLtMatmulHeuristicResult_t best{};
  int count = 0;
  const cublasStatus_t status =
      heuristic_(handle_, plan.operation, plan.w, plan.x, plan.y, plan.y, preference, 1, &best, &count);
  preference_destroy_(preference);
  check_blas(status, "heuristic");
  if (count == 0) throw std::runtime_error("cuBLASLt has no algorithm for a product of this shape");
  plan.algorithm = best.algo;
  return plan;
}

}  // namespace ion::cuda
