// What the files of the Python module give to its one entry point. No logic in this folder: names, defaults,
// conversion, and letting go of the interpreter lock while C++ works.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <vector>

#include "models/cuda_model.h"
#include "models/model.h"

namespace ion::bindings {

// pybind11 keeps no const objects; a model is never changed after loading.
struct ModelHandle {
  std::shared_ptr<const Model> model;
};

struct CudaModelHandle {
  std::shared_ptr<const CudaModel> model;
};

// float32 [num_rows, cols] as a memoryview that keeps its values alive.
pybind11::object float_matrix(std::vector<float> values, size_t num_rows, int32_t cols);
pybind11::dict config_dict(const ModelConfig& config, int64_t kv_block_bytes);

void add_metadata(pybind11::module_& module);
void add_model(pybind11::module_& module);
void add_cuda_model(pybind11::module_& module);
void add_engine(pybind11::module_& module);

}  // namespace ion::bindings
