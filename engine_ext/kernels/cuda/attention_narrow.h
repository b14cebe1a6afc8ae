// Of attention.cu: its kernels for many decode rows.
#pragma once

#include "kernels.h"

namespace ion::cuda {

// A shape that attention_decode takes; see there. `pieces`: of all units.
void attention_decode_narrow(const AttentionArgs& args, const KvCache& cache, const AttentionPlan& plan,
                             const RopeKvArgs* rope, int32_t pieces, int32_t num_sms, cudaStream_t stream);

// The same on Hopper, at the pace of the cache, and the warps of a multiprocessor that it has:
// attention_ring.cu. `planes`: kv_planes of the whole cache.
int32_t ring_warps();
void attention_decode_ring(const AttentionArgs& args, const KvCache& cache, const AttentionPlan& plan,
                           const RopeKvArgs& rope, const CUtensorMap& planes, int32_t pieces, int32_t num_sms,
                           cudaStream_t stream);

}  // namespace ion::cuda
