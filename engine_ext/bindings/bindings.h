// What the files of the Python module give to its one entry point. No logic in this folder: names, defaults,
// conversion, and letting go of the interpreter lock while C++ works.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "models/model.h"

namespace ion::bindings {

// pybind11 keeps no const objects; a model is never changed after loading.
struct ModelHandle {
  std::shared_ptr<const Model> model;
};

void add_metadata(pybind11::module_& module);
void add_model(pybind11::module_& module);
void add_engine(pybind11::module_& module);

}  // namespace ion::bindings
