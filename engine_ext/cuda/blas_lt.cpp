#include "cuda/blas_lt.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <map>
#include <memory>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "cuda/algorithm_trial.h"
#include "kernels/cuda/check.h"

namespace ion::cuda {
namespace {

constexpr size_t kWorkspaceBytes = 64 << 20;
// The kernels that scale by rows have one size of tile; products of so few of those are better off without.
constexpr int64_t kScaledTile = 128, kFewTiles = 200;
// From so many rows on the library's first choice is measured against its next ones, which on an H200 are up
// to 12% faster. Below it products come from graphs, and all would be over in no time.
constexpr int64_t kTrialRows = 1024;
constexpr int kCandidates = 6;

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
    std::unique_ptr<AlgorithmTrial> algorithm;
    bool scales_rows = false;
  };
  // float32: of y; e4m3: of x and w; added: to a float32 y
  enum class Kind : uint8_t { bf16, float32, added, e4m3, e4m3_float32 };
  using Key = std::tuple<int64_t, int64_t, int64_t, Kind>;  // m, n, k

  explicit Library(const std::string& path);
  ~Library();

  static bool is_e4m3(Kind kind) { return kind == Kind::e4m3 || kind == Kind::e4m3_float32; }
  static bool is_float32(Kind kind) { return kind != Kind::bf16 && kind != Kind::e4m3; }
  ProductScales run_e4m3(Kind kind, void* y, const QuantisedRows& x, const QuantisedRows& w, int64_t m,
                         int64_t n, int64_t k, cudaStream_t stream);
  void run(Plan& use, void* y, const void* x, const void* w, cudaStream_t stream, float beta = 0.0f);
  // The scales are those of e4m3: the library wants to see some when it chooses.
  Plan& plan(int64_t m, int64_t n, int64_t k, Kind kind, const float* x_scales = nullptr,
             const float* w_scales = nullptr);
  void set_scales(const Plan& plan, const float* x_scales, const float* w_scales);
  Plan make_plan(int64_t m, int64_t n, int64_t k, Kind kind, bool scales_rows);
  bool find_algorithm(Plan& plan, int most);
  bool cuts_columns(const cublasLtMatmulAlgo_t& algorithm);
  template <typename T>
  void set(const Plan& plan, cublasLtMatmulDescAttributes_t attribute, const T& value, const char* what);
  void destroy(const Plan& plan);

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
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) config_get_ = nullptr;

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
  resolve(library_, config_get_, "cublasLtMatmulAlgoConfigGetAttribute");
  check_blas(create_(&handle_), "create");
  check(cudaMalloc(&workspace_, kWorkspaceBytes), "workspace of matrix products");
}

BlasLt::Library::~Library() {
  for (const auto& [key, plan] : plans_) destroy(plan);
  destroy_(handle_);
  cudaFree(workspace_);  // the library stays loaded: others may use it
}

BlasLt::BlasLt(const std::string& path) : library_(std::make_unique<Library>(path)) {}

BlasLt::~BlasLt() = default;

void BlasLt::matmul(__nv_bfloat16* y, const __nv_bfloat16* x, const __nv_bfloat16* w, int64_t m, int64_t n,
                    int64_t k, cudaStream_t stream) {
  library_->run(library_->plan(m, n, k, Library::Kind::bf16), y, x, w, stream);
}

void BlasLt::matmul(float* y, const __nv_bfloat16* x, const __nv_bfloat16* w, int64_t m, int64_t n, int64_t k,
                    cudaStream_t stream) {
  library_->run(library_->plan(m, n, k, Library::Kind::float32), y, x, w, stream);
}

void BlasLt::add_matmul(float* y, const __nv_bfloat16* x, const __nv_bfloat16* w, int64_t m, int64_t n,
                        int64_t k, cudaStream_t stream) {
  library_->run(library_->plan(m, n, k, Library::Kind::added), y, x, w, stream, 1.0f);
}

ProductScales BlasLt::matmul(__nv_bfloat16* y, const QuantisedRows& x, const QuantisedRows& w, int64_t m,
                             int64_t n, int64_t k, cudaStream_t stream) {
  return library_->run_e4m3(Library::Kind::e4m3, y, x, w, m, n, k, stream);
}

ProductScales BlasLt::matmul(float* y, const QuantisedRows& x, const QuantisedRows& w, int64_t m, int64_t n,
                             int64_t k, cudaStream_t stream) {
  return library_->run_e4m3(Library::Kind::e4m3_float32, y, x, w, m, n, k, stream);
}

ProductScales BlasLt::Library::run_e4m3(Kind kind, void* y, const QuantisedRows& x, const QuantisedRows& w,
                                        int64_t m, int64_t n, int64_t k, cudaStream_t stream) {
  Plan& use = plan(m, n, k, kind, x.scales, w.scales);
  if (use.scales_rows) set_scales(use, x.scales, w.scales);
  run(use, y, x.codes, w.codes, stream);
  return use.scales_rows ? ProductScales{} : ProductScales{x.scales, w.scales};
}

template <typename T>
void BlasLt::Library::set(const Plan& plan, cublasLtMatmulDescAttributes_t attribute, const T& value,
                          const char* what) {
  check_blas(desc_set_(plan.operation, attribute, &value, sizeof value), what);
}

void BlasLt::Library::destroy(const Plan& plan) {
  desc_destroy_(plan.operation);
  for (const cublasLtMatrixLayout_t layout : {plan.w, plan.x, plan.y}) layout_destroy_(layout);
}

void BlasLt::Library::run(Plan& use, void* y, const void* x, const void* w, cudaStream_t stream, float beta) {
  const float one = 1.0f;
  use.algorithm->run(stream, [&](const cublasLtMatmulAlgo_t& algorithm) {
    check_blas(matmul_(handle_, use.operation, &one, w, use.w, x, use.x, &beta, y, use.y, y, use.y,
                       &algorithm, workspace_, kWorkspaceBytes, stream),
               "matmul");
  });
}

void BlasLt::Library::set_scales(const Plan& plan, const float* x_scales, const float* w_scales) {
  set(plan, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, w_scales, "scales");
  set(plan, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, x_scales, "scales");
}

BlasLt::Library::Plan& BlasLt::Library::plan(int64_t m, int64_t n, int64_t k, Kind kind,
                                             const float* x_scales, const float* w_scales) {
  const Key key{m, n, k, kind};
  const auto found = plans_.find(key);
  if (found != plans_.end()) return found->second;
  const bool is_few =
      (m + kScaledTile - 1) / kScaledTile * ((n + kScaledTile - 1) / kScaledTile) <= kFewTiles;
  for (const bool scales_rows : {true, false}) {
    if (scales_rows && (!is_e4m3(kind) || is_few)) continue;
    Plan made = make_plan(m, n, k, kind, scales_rows);
    if (scales_rows) set_scales(made, x_scales, w_scales);
    if (find_algorithm(made, m >= kTrialRows ? kCandidates : 1)) {
      return plans_.emplace(key, std::move(made)).first->second;
    }
    destroy(made);
  }
  throw std::runtime_error("cuBLASLt has no algorithm for a product of this shape");
}

// The library thinks in columns: row-major y [m, n] is its [n, m], w [n, k] its [k, n] transposed, x its [k,
// m].
BlasLt::Library::Plan BlasLt::Library::make_plan(int64_t m, int64_t n, int64_t k, Kind kind,
                                                 bool scales_rows) {
  Plan plan;
  plan.scales_rows = scales_rows;
  check_blas(desc_create_(&plan.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "descriptor");
  set(plan, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T, "transa");
  set(plan, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N, "transb");
  if (is_e4m3(kind)) set(plan, CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{1}, "sums");
  if (scales_rows) {
    const int32_t by_row = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    set(plan, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, by_row, "scales");
    set(plan, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, by_row, "scales");
  }
  const cudaDataType in = is_e4m3(kind) ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
  check_blas(layout_create_(&plan.w, in, k, n, k), "layout");
  check_blas(layout_create_(&plan.x, in, k, m, k), "layout");
  check_blas(layout_create_(&plan.y, is_float32(kind) ? CUDA_R_32F : CUDA_R_16BF, n, m, n), "layout");
  return plan;
}

// Whether sums over columns are cut: how, and so their bits, would follow from which algorithm is chosen.
bool BlasLt::Library::cuts_columns(const cublasLtMatmulAlgo_t& algorithm) {
  int32_t cuts = 0;
  size_t written = 0;
  check_blas(config_get_(&algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &cuts, sizeof cuts, &written),
             "algorithm");
  return cuts > 1;
}

// `most` candidates; of more than one only those whose sums are in the same order.
bool BlasLt::Library::find_algorithm(Plan& plan, int most) {
  cublasLtMatmulPreference_t preference = nullptr;
  check_blas(preference_create_(&preference), "preference");
  const size_t bytes = kWorkspaceBytes;
  check_blas(preference_set_(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes),
             "workspace");
  std::vector<cublasLtMatmulHeuristicResult_t> found(most);
  int count = 0;
  const cublasStatus_t status = heuristic_(handle_, plan.operation, plan.w, plan.x, plan.y, plan.y,
                                           preference, most, found.data(), &count);
  preference_destroy_(preference);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED && status != CUBLAS_STATUS_INVALID_VALUE) {
    check_blas(status, "heuristic");
  }
  if (status != CUBLAS_STATUS_SUCCESS || count == 0) return false;
  std::vector<cublasLtMatmulAlgo_t> candidates = {found[0].algo};
  for (int i = 1; i < count && !cuts_columns(candidates[0]); ++i) {
    if (found[i].state == CUBLAS_STATUS_SUCCESS && !cuts_columns(found[i].algo)) {
      candidates.push_back(found[i].algo);
    }
  }
  plan.algorithm = std::make_unique<AlgorithmTrial>(std::move(candidates));
  return true;
}

}  // namespace ion::cuda
