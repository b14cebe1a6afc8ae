// How fast this machine's memory is read: what a decode step cannot be faster than. Knows no model.
#pragma once

#include "kernels/kernels.h"

namespace ion {

// Bytes a second of all the pool's threads reading one large array, the median of several passes.
double read_bandwidth(kernels::ThreadPool& pool);

}  // namespace ion
