// Model: loading, config, teacher-forced logits.
#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/unlocked.h"
#include "models/model_files.h"
#include "models/random_model.h"
#include "models/read_bandwidth.h"
#include "models/weight_error.h"

namespace py = pybind11;

namespace ion::bindings {
namespace {

// float32 [rows, cols] that a memoryview can keep alive.
struct FloatMatrix {
  std::vector<float> values;
  py::ssize_t rows, cols;

  py::buffer_info buffer() {
    constexpr py::ssize_t item = sizeof(float);
    return py::buffer_info(values.data(), {rows, cols}, {cols * item, item}, true);
  }
};

ModelHandle load_gguf(const std::string& path, const std::string& numerics, int threads) {
  const Unlocked unlocked;
  return {Model::load_gguf(path, parse_numerics(numerics), threads)};
}

ModelHandle load_safetensors(const std::vector<std::string>& paths, const std::string& config_json,
                             const std::string& numerics, int threads) {
  const Unlocked unlocked;
  return {Model::load_safetensors(paths, config_json, parse_numerics(numerics), threads)};
}

ModelHandle random(const std::string& config_json, uint64_t seed, const std::string& numerics, int threads) {
  const Unlocked unlocked;
  return {Model::random(config_json, seed, parse_numerics(numerics), threads)};
}

void write_random_model(const std::string& path, const std::string& config_json, uint64_t seed, int threads) {
  const Unlocked unlocked;
  const auto pool = shared_pool(threads);
  write_random_file(path, ModelFiles::random(config_json, seed, nullptr).config, seed, *pool);
}

double memory_read_bandwidth(int threads) {
  const Unlocked unlocked;
  return read_bandwidth(*shared_pool(threads));
}

py::object logits(const ModelHandle& self, const std::vector<int32_t>& tokens, int32_t chunk) {
  std::vector<float> values;
  {
    const Unlocked unlocked;
    values = self.model->logits(tokens, chunk);
  }
  return float_matrix(std::move(values), tokens.size(), self.model->config().vocab_size);
}

py::dict config(const ModelHandle& self) {
  return config_dict(self.model->config(), self.model->kv_block_bytes());
}

}  // namespace

py::object float_matrix(std::vector<float> values, size_t num_rows, int32_t cols) {
  const auto rows = static_cast<py::ssize_t>(num_rows);
  py::object owner = py::cast(FloatMatrix{std::move(values), rows, cols});
  return py::memoryview(owner);
}

py::dict config_dict(const ModelConfig& config, int64_t kv_block_bytes) {
  py::dict out;
  out["architecture"] = config.architecture;
  out["num_layers"] = config.num_layers;
  out["hidden_size"] = config.hidden_size;
  out["num_heads"] = config.num_heads;
  out["num_kv_heads"] = config.num_kv_heads;
  out["head_dim"] = config.head_dim;
  out["ffn_size"] = config.ffn_size;
  out["vocab_size"] = config.vocab_size;
  out["context_length"] = config.context_length;
  out["windows"] = config.windows;
  out["rms_eps"] = config.rms_eps;
  out["rope_theta"] = config.rope_theta;
  out["kv_block_bytes"] = kv_block_bytes;
  return out;
}

void add_model(py::module_& module) {
  py::register_exception<MemoryShort>(module, "MemoryShort", PyExc_ValueError);
  module.def("write_random_model", &write_random_model, py::arg("path"), py::arg("config_json"),
             py::arg("seed"), py::arg("threads") = 0);
  module.def("read_bandwidth", &memory_read_bandwidth, py::arg("threads") = 0);
  py::class_<FloatMatrix>(module, "_FloatMatrix", py::buffer_protocol()).def_buffer(&FloatMatrix::buffer);
  py::class_<ModelHandle>(module, "Model")
      .def_static("load_gguf", &load_gguf, py::arg("path"), py::arg("numerics") = "fast",
                  py::arg("threads") = 0)
      .def_static("load_safetensors", &load_safetensors, py::arg("paths"), py::arg("config_json"),
                  py::arg("numerics") = "fast", py::arg("threads") = 0)
      .def_static("random", &random, py::arg("config_json"), py::arg("seed"), py::arg("numerics") = "fast",
                  py::arg("threads") = 0)
      .def_property_readonly("streamed_bytes",
                             [](const ModelHandle& self) { return self.model->streamed_bytes(); })
      .def_property_readonly("config", &config)
      .def_property_readonly("weight_bytes",
                             [](const ModelHandle& self) { return self.model->weights().num_bytes(); })
      .def("logits", &logits, py::arg("tokens"), py::arg("chunk") = 0);
}

}  // namespace ion::bindings
