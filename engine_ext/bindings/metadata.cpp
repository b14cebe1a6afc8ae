// cpu_features and gguf_metadata.
#include <string_view>
#include <variant>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/unlocked.h"
#include "kernels/kernels.h"
#include "models/control_group.h"
#include "models/gguf.h"
#include "models/memory.h"

namespace py = pybind11;

namespace ion::bindings {
namespace {

py::object text(std::string_view value) {
  PyObject* decoded =
      PyUnicode_DecodeUTF8(value.data(), static_cast<Py_ssize_t>(value.size()), "surrogateescape");
  if (decoded == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(decoded);
}

py::object to_python(const GgufValue& value);

struct Converter {
  py::object operator()(std::string_view value) const { return text(value); }
  py::object operator()(bool value) const { return py::bool_(value); }
  py::object operator()(int64_t value) const { return py::int_(value); }
  py::object operator()(uint64_t value) const { return py::int_(value); }
  py::object operator()(double value) const { return py::float_(value); }
  py::object operator()(const GgufArray& value) const {
    py::list out(value.count);
    for (uint64_t i = 0; i < value.count; ++i) out[i] = to_python(value.at(i));
    return out;
  }
};

py::object to_python(const GgufValue& value) {
  return std::visit(Converter{}, value);
}

py::dict gguf_metadata(const std::string& path) {
  const GgufFile file = [&] {
    const Unlocked unlocked;
    return GgufFile(path);
  }();
  py::dict out;
  for (const auto& [key, value] : file.metadata()) out[text(key)] = to_python(value);
  file.require_whole();
  return out;
}

py::list cpu_features() {
  std::vector<std::string_view> names(32);
  names.resize(kernels::cpu_features(names));
  py::list out;
  for (std::string_view name : names) out.append(text(name));
  return out;
}

py::dict control_group_limits(const std::string& root) {
  const auto shown = [](int64_t limit) {
    return limit == kNoLimit ? py::object(py::none()) : py::int_(limit);
  };
  py::dict out;
  out["bytes"] = shown(control_group_bytes(root));
  out["cpus"] = shown(control_group_cpus(root));
  return out;
}

}  // namespace

void add_metadata(py::module_& module) {
  module.def("gguf_metadata", &gguf_metadata, py::arg("path"));
  module.def("cpu_features", &cpu_features);
  module.def("control_group_limits", &control_group_limits, py::arg("root") = "");
  module.def("usable_cpus", &usable_cpus);
  module.def("available_memory", &available_memory_bytes);
  module.def("promised_memory", &promised_memory_bytes);
}

}  // namespace ion::bindings
