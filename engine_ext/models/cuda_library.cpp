// dlopen and dlsym. The library stays open until the process ends: the driver's threads run in it.
#include "models/cuda_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <stdexcept>

namespace ion {
namespace {

constexpr const char* kVariable = "IONROUTER_CUDA_LIBRARY";
constexpr const char* kName = "libion_cuda.so";

std::string beside_this_module() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&cuda_library), &info) == 0 || info.dli_fname == nullptr) {
    return kName;
  }
  const std::string module = info.dli_fname;
  const size_t slash = module.rfind('/');
  return slash == std::string::npos ? kName : module.substr(0, slash + 1) + kName;
}

std::string wanted_path() {
  const char* named = std::getenv(kVariable);
  return named != nullptr && *named != '\0' ? named : beside_this_module();
}

std::string last_fault() {
  const char* text = dlerror();
  return text != nullptr ? text : "no reason given";
}

void* open_library(const std::string& path) {
  if (access(path.c_str(), F_OK) != 0) {
    throw std::runtime_error("there is no " + path +
                             ": this build has no CUDA part (IONROUTER_CUDA=on builds it)");
  }
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw std::runtime_error(path + " cannot be loaded: " + last_fault());
  return handle;
}

class Symbols {
 public:
  explicit Symbols(const std::string& path) : path_(path), handle_(open_library(path)) {}

  template <typename Function>
  void resolve(const char* name, Function& to) const {
    void* found = dlsym(handle_, name);
    if (found == nullptr) throw std::runtime_error(path_ + " has no function " + name);
    to = reinterpret_cast<Function>(found);
  }

 private:
  const std::string& path_;
  void* handle_;
};

CudaLibrary load(const std::string& path) {
  CudaLibrary out{};
  out.path = path;
  const Symbols symbols(path);
  symbols.resolve("ion_cuda_abi", out.abi);
  if (const int32_t found = out.abi(); found != ION_CUDA_ABI) {
    throw std::runtime_error(path + " has version " + std::to_string(found) +
                             " of the interface, this build wants " + std::to_string(ION_CUDA_ABI) +
                             ": build both from the same sources");
  }
  symbols.resolve("ion_cuda_error", out.error);
  symbols.resolve("ion_cuda_device", out.device);
  symbols.resolve("ion_cuda_read_bandwidth", out.read_bandwidth);
  symbols.resolve("ion_cuda_model_create", out.model_create);
  symbols.resolve("ion_cuda_model_destroy", out.model_destroy);
  symbols.resolve("ion_cuda_model_bytes", out.model_bytes);
  symbols.resolve("ion_cuda_block_bytes", out.block_bytes);
  symbols.resolve("ion_cuda_model_write", out.model_write);
  symbols.resolve("ion_cuda_model_fill", out.model_fill);
  symbols.resolve("ion_cuda_model_pointer", out.model_pointer);
  symbols.resolve("ion_cuda_model_tile", out.model_tile);
  symbols.resolve("ion_cuda_runner_bytes", out.runner_bytes);
  symbols.resolve("ion_cuda_runner_create", out.runner_create);
  symbols.resolve("ion_cuda_runner_destroy", out.runner_destroy);
  symbols.resolve("ion_cuda_submit", out.submit);
  symbols.resolve("ion_cuda_upload_masks", out.upload_masks);
  symbols.resolve("ion_cuda_poll", out.poll);
  symbols.resolve("ion_cuda_copy_out", out.copy_out);
  symbols.resolve("ion_cuda_copy_in", out.copy_in);
  symbols.resolve("ion_cuda_copy_state", out.copy_state);
  symbols.resolve("ion_cuda_logits", out.logits);
  return out;
}

}  // namespace

std::string CudaLibrary::why() const {
  const char* text = error();
  return text != nullptr && *text != '\0' ? text : "the CUDA library failed without a reason";
}

const CudaLibrary& cuda_library() {
  static std::mutex mutex;
  static std::map<std::string, CudaLibrary> opened;  // by path; addresses stay
  const std::lock_guard lock(mutex);
  const std::string path = wanted_path();
  auto found = opened.find(path);
  if (found == opened.end()) found = opened.emplace(path, load(path)).first;
  return found->second;
}

IonCudaDevice cuda_device(const CudaLibrary& library, int32_t index) {
  IonCudaDevice out{};
  if (library.device(index, &out) != 0) throw std::runtime_error("no GPU to compute on: " + library.why());
  return out;
}

}  // namespace ion
