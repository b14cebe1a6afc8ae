// Ceilings of the device. Knows no model.
#pragma once

#include <cstdint>

namespace ion::cuda {

// Bytes a second of a plain read of 2 GiB, the median of several passes.
double read_bandwidth(int32_t device);

}  // namespace ion::cuda
