// Of attention.cu: its kernel for many decode rows.
#pragma once

#include "kernels.h"

namespace ion::cuda {

// A shape that attention_decode takes; see there. `pieces`: of all units.
void attention_decode_narrow(const AttentionArgs& args, const KvCache& cache, const AttentionPlan& plan,
                             const RopeKvArgs* rope, int32_t pieces, int32_t num_sms, cudaStream_t stream);

}  // namespace ion::cuda
