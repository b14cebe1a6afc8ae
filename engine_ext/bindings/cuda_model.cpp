// CudaModel and cuda_device: a model on a GPU, and whether there is one.
#include <pybind11/stl.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/unlocked.h"

namespace py = pybind11;

namespace ion::bindings {
namespace {

CudaPrecision parse_precision(const std::string& name) {
  if (name == "auto") return CudaPrecision::as_stored;
  if (name == "bf16") return CudaPrecision::bf16;
  if (name == "fp8") return CudaPrecision::fp8;
  throw std::invalid_argument("precision '" + name + "' is none of auto, bf16, fp8");
}

// `option` names what is of that format, for messages.
CudaFormat parse_format(const char* option, const std::string& name) {
  if (name == "bf16") return CudaFormat::bf16;
  if (name == "fp8") return CudaFormat::fp8;
  throw std::invalid_argument(std::string(option) + " '" + name + "' is none of bf16, fp8");
}

const char* name_of(CudaFormat format) {
  return format == CudaFormat::fp8 ? "fp8" : "bf16";
}

CudaModelOptions parse_options(int threads, const std::string& blaslt, const std::string& precision,
                               const std::string& head_precision, const std::string& kv_precision) {
  return {threads, blaslt, parse_precision(precision), parse_format("head_precision", head_precision),
          parse_format("kv_precision", kv_precision)};
}

CudaModelHandle load_gguf(const std::string& path, int threads, const std::string& blaslt,
                          const std::string& precision, const std::string& head_precision,
                          const std::string& kv_precision) {
  const CudaModelOptions options = parse_options(threads, blaslt, precision, head_precision, kv_precision);
  const Unlocked unlocked;
  return {CudaModel::load_gguf(path, options)};
}

CudaModelHandle load_safetensors(const std::vector<std::string>& paths, const std::string& config_json,
                                 int threads, const std::string& blaslt, const std::string& precision,
                                 const std::string& head_precision, const std::string& kv_precision) {
  const CudaModelOptions options = parse_options(threads, blaslt, precision, head_precision, kv_precision);
  const Unlocked unlocked;
  return {CudaModel::load_safetensors(paths, config_json, options)};
}

CudaModelHandle random(const std::string& config_json, uint64_t seed, int threads, const std::string& blaslt,
                       const std::string& precision, const std::string& head_precision,
                       const std::string& kv_precision) {
  const CudaModelOptions options = parse_options(threads, blaslt, precision, head_precision, kv_precision);
  const Unlocked unlocked;
  return {CudaModel::random(config_json, seed, options)};
}

double device_read_bandwidth() {
  const Unlocked unlocked;
  const CudaLibrary& library = cuda_library();
  double out = 0.0;
  if (library.read_bandwidth(0, &out) != 0) throw std::runtime_error("measuring the GPU: " + library.why());
  return out;
}

py::object logits(const CudaModelHandle& self, const std::vector<int32_t>& tokens, int32_t chunk) {
  std::vector<float> values;
  {
    const Unlocked unlocked;
    values = self.model->logits(tokens, chunk);
  }
  return float_matrix(std::move(values), tokens.size(), self.model->config().vocab_size);
}

py::dict device() {
  IonCudaDevice found;
  std::string library;
  {
    const Unlocked unlocked;
    const CudaLibrary& opened = cuda_library();
    found = cuda_device(opened);
    library = opened.path;
  }
  py::dict out;
  out["name"] = std::string(found.name);
  out["compute"] = py::make_tuple(found.compute_major, found.compute_minor);
  out["num_sms"] = found.num_sms;
  out["driver_version"] = found.driver_version;
  out["runtime_version"] = found.runtime_version;
  out["total_bytes"] = found.total_bytes;
  out["free_bytes"] = found.free_bytes;
  out["is_coherent"] = found.is_coherent != 0;
  out["library"] = library;
  return out;
}

}  // namespace

void add_cuda_model(py::module_& module) {
  module.def("cuda_device", &device);
  module.def("cuda_read_bandwidth", &device_read_bandwidth);
  py::class_<CudaModelHandle>(module, "CudaModel")
      .def_static("load_gguf", &load_gguf, py::arg("path"), py::arg("threads") = 0, py::arg("blaslt") = "",
                  py::arg("precision") = "auto", py::arg("head_precision") = "bf16",
                  py::arg("kv_precision") = "bf16")
      .def_static("load_safetensors", &load_safetensors, py::arg("paths"), py::arg("config_json"),
                  py::arg("threads") = 0, py::arg("blaslt") = "", py::arg("precision") = "auto",
                  py::arg("head_precision") = "bf16", py::arg("kv_precision") = "bf16")
      .def_static("random", &random, py::arg("config_json"), py::arg("seed"), py::arg("threads") = 0,
                  py::arg("blaslt") = "", py::arg("precision") = "auto", py::arg("head_precision") = "bf16",
                  py::arg("kv_precision") = "bf16")
      .def_property_readonly("streamed_bytes",
                             [](const CudaModelHandle& self) { return self.model->streamed_bytes(); })
      .def_property_readonly("config",
                             [](const CudaModelHandle& self) {
                               return config_dict(self.model->config(), self.model->kv_block_bytes());
                             })
      .def_property_readonly("weight_bytes",
                             [](const CudaModelHandle& self) { return self.model->num_bytes(); })
      .def_property_readonly(
          "precision", [](const CudaModelHandle& self) { return self.model->is_fp8() ? "fp8" : "bf16"; })
      .def_property_readonly(
          "head_precision", [](const CudaModelHandle& self) { return name_of(self.model->head_precision()); })
      .def_property_readonly("kv_precision",
                             [](const CudaModelHandle& self) { return name_of(self.model->kv_precision()); })
      .def("logits", &logits, py::arg("tokens"), py::arg("chunk") = 0);
}

}  // namespace ion::bindings
