// Which instruction set the kernels use: found once at run time. Knows no kernel.
#include <atomic>
#include <cstdlib>

#include "table.h"

#ifdef ION_X86
#include <cpuid.h>
#endif

namespace ion::kernels {
namespace {

struct Feature {
  std::string_view name;
  bool present;
};

#ifdef ION_X86
// By hand, since not every compiler's __builtin_cpu_supports knows the name: leaf 1, ECX bit 29.
bool has_f16c() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

#define ION_FEATURE(name) Feature{name, __builtin_cpu_supports(name) != 0}
#endif

// The order is that of cpu_features().
std::span<const Feature> features() {
#ifdef ION_X86
  static const Feature found[] = {
      ION_FEATURE("avx2"),     ION_FEATURE("fma"),      {"f16c", has_f16c()},      ION_FEATURE("avx512f"),
      ION_FEATURE("avx512bw"), ION_FEATURE("avx512vl"), ION_FEATURE("avx512vnni"),
  };
  return found;
#else
  return {};
#endif
}

bool has(std::string_view name) {
  for (const Feature& feature : features()) {
    if (feature.name == name) return feature.present;
  }
  return false;
}

Isa find_best() {
  if (!has("avx2") || !has("fma") || !has("f16c")) return Isa::scalar;
  const bool wide = has("avx512f") && has("avx512bw") && has("avx512vl") && has("avx512vnni");
  return wide ? Isa::avx512vnni : Isa::avx2;
}

// ION_ISA=scalar|avx2|avx512vnni lowers the choice, to compare or to rule out a fault. Other values do
// nothing here: engine/device.py refuses them before a model is loaded.
Isa initial() {
  const char* wanted = std::getenv("ION_ISA");
  for (const Isa isa : {Isa::scalar, Isa::avx2}) {
    if (wanted != nullptr && isa_name(isa) == wanted) return isa < best_isa() ? isa : best_isa();
  }
  return best_isa();
}

constexpr KernelTable kReference = {
    reference::quantize_row, reference::matmul_int8, reference::matmul_float, reference::rms_norm_row,
    reference::silu_mul_row, reference::attention,   reference::exp_row,      reference::to_f16,
};
#ifdef ION_X86
constexpr KernelTable kAvx2 = {
    avx2::quantize_row, avx2::matmul_int8, avx2::matmul_float, avx2::rms_norm_row,
    avx2::silu_mul_row, avx2::attention,   avx2::exp_row,      avx2::to_f16,
};
constexpr KernelTable kAvx512Vnni = {
    avx512vnni::quantize_row, avx512vnni::matmul_int8, avx2::matmul_float,  avx2::rms_norm_row,
    avx512vnni::silu_mul_row, avx512vnni::attention,   avx512vnni::exp_row, avx2::to_f16,
};
#endif

std::atomic<Isa>& chosen() {
  static std::atomic<Isa> isa{initial()};
  return isa;
}

}  // namespace

std::string_view isa_name(Isa isa) {
  constexpr std::string_view names[] = {"scalar", "avx2", "avx512vnni"};
  return names[static_cast<int>(isa)];
}

Isa best_isa() {
  static const Isa best = find_best();
  return best;
}

Isa current_isa() {
  return chosen().load(std::memory_order_relaxed);
}

void set_isa(Isa isa) {
  chosen() = isa < best_isa() ? isa : best_isa();
}

std::size_t cpu_features(std::span<std::string_view> names) {
  std::size_t count = 0;
  for (const Feature& feature : features()) {
    if (feature.present && count < names.size()) names[count++] = feature.name;
  }
  return count;
}

const KernelTable& kernel_table() {
#ifdef ION_X86
  if (current_isa() == Isa::avx512vnni) return kAvx512Vnni;
  if (current_isa() == Isa::avx2) return kAvx2;
#endif
  return kReference;
}

}  // namespace ion::kernels
