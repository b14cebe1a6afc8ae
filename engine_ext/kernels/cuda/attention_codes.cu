// attention_wide.cuh over a cache of codes, apart from the others: its kernels take as long to compile.
#include "attention_decode.h"
#include "attention_wide.cuh"

namespace ion::cuda {

void attention_decode_codes(const AttentionArgs& args, const KvCache& cache, const AttentionPlan& plan,
                            const RopeKvArgs* rope, int32_t pieces, int32_t num_sms, DecodeWidth width,
                            cudaStream_t stream) {
  launch_decode<uint8_t>(args, cache, plan, rope, pieces, num_sms, width, stream);
}

}  // namespace ion::cuda
