// Logits of every position of a given text, for checks.
#pragma once

#include <cstdint>

#include "cuda/model.h"

namespace ion::cuda {

// logits [num_ids, vocab] in host memory; `chunk` positions a pass (0: 512).
void teacher_forced_logits(const Model& model, const int32_t* ids, int32_t num_ids, int32_t chunk,
                           bool streams, float* logits);

}  // namespace ion::cuda
