// Entry point of ionrouter.engine._ion; the contract is ionrouter/engine/_ion.pyi.
#include "bindings/bindings.h"

PYBIND11_MODULE(_ion, module) {
  module.doc() = "The C++ engine; see _ion.pyi beside it.";
  ion::bindings::add_metadata(module);
  ion::bindings::add_model(module);
  ion::bindings::add_cuda_model(module);
  ion::bindings::add_engine(module);
}
