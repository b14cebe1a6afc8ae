// The kernels of decode attention, of which attention.cu takes one: for few rows several warps a piece
// (attention_wide.cuh), over a cache of codes in a file of its own; for many rows a warp a piece
// (attention_narrow.cu), on Hopper at the pace of the cache (attention_ring.cu).
#pragma once

#include "kernels.h"

namespace ion::cuda {

// A shape that attention_decode takes; see there. `pieces`: of all units.
void attention_decode_codes(const AttentionArgs& args, const KvCache& cache, const AttentionPlan& plan,
                            const RopeKvArgs* rope, int32_t pieces, int32_t num_sms, DecodeWidth width,
                            cudaStream_t stream);
void attention_decode_narrow(const AttentionArgs& args, const KvCache& cache, const AttentionPlan& plan,
                             const RopeKvArgs* rope, int32_t pieces, int32_t num_sms, cudaStream_t stream);

// The warps of a multiprocessor that it has; `planes`: kv_planes of the whole cache.
int32_t ring_warps();
void attention_decode_ring(const AttentionArgs& args, const KvCache& cache, const AttentionPlan& plan,
                           const RopeKvArgs& rope, const CUtensorMap& planes, int32_t pieces, int32_t num_sms,
                           cudaStream_t stream);

}  // namespace ion::cuda
