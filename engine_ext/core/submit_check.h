// What a submission must look like to be accepted. Knows limits, no state: whatever passes can run to its
// end.
#pragma once

#include <cstdint>

#include "core/engine.h"

namespace ion {

struct SubmitLimits {
  int32_t context_length = 0;  // prompt + generated
  int32_t vocab_size = 0;
  int32_t max_logprobs = INT32_MAX;  // of the runner; the vocabulary is a limit too
  bool scores_prompts = true;
};

// Throws std::invalid_argument naming the field, the value and the limit.
void check_submit(const SubmitParams& params, const SubmitLimits& limits);

}  // namespace ion
