// The sampler's stages, a block a row, in the order of kernels/sampler.h. A row of logits is read once if it
// is greedy and unchanged, twice to draw from all ids or from the top k, three times for top-p alone; more
// often only where its candidates do not fit into shared memory.
#include <climits>
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <string>

#include "kernels/cuda/check.h"
#include "kernels/cuda/sampler.h"
#include "kernels/cuda/sampler_adjust.cuh"
#include "kernels/cuda/sampler_select.cuh"

namespace ion::cuda {
namespace {

using namespace selection;

constexpr float kGreedyBelow = 1e-5f;     // temperatures under this are 0
constexpr double kOne = 1099511627776.0;  // 2^40, the weight of the largest

// ---------------------------------------------------------------------------------------------------------
// Random numbers: Philox4x32-10, as kernels/cpu/philox.cpp

__device__ double uniform(uint64_t seed, uint64_t position) {
  uint32_t c[4] = {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0};
  uint32_t k[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c[0], p1 = uint64_t{0xCD9E8D57u} * c[2];
    c[0] = static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k[0];
    c[1] = static_cast<uint32_t>(p1);
    c[2] = static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k[1];
    c[3] = static_cast<uint32_t>(p0);
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  const uint64_t bits = uint64_t{c[0]} << 32 | c[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

// ---------------------------------------------------------------------------------------------------------
// Stages 4 to 6

struct Largest {
  float value;
  int32_t id;
};

// Over the block; ties to the lowest id.
__device__ Largest largest_of(Shared& s, float value, int32_t id) {
  unsigned long long best = static_cast<uint64_t>(image_of(value)) << 32 | ~static_cast<uint32_t>(id);
  const auto reduce = [&best] {
#pragma unroll
    for (int32_t offset = kLanes / 2; offset > 0; offset /= 2) {
      const unsigned long long other = __shfl_xor_sync(0xffffffffu, best, offset);
      best = other > best ? other : best;
    }
  };
  reduce();
  __syncthreads();
  if (threadIdx.x % kLanes == 0) s.warps[threadIdx.x / kLanes] = best;
  __syncthreads();
  best = s.warps[threadIdx.x % kLanes];
  reduce();
  return {value_of(static_cast<uint32_t>(best >> 32)), static_cast<int32_t>(~static_cast<uint32_t>(best))};
}

// The least weight of at least `share` of the largest.
__device__ uint64_t floor_of(double share) {
  return share <= 0 ? 1 : static_cast<uint64_t>(fmax(1.0, ceil(fmin(share, 1.0) * kOne)));
}

// Which ids may be drawn: those of at least `floor`, within the cut.
struct Kept {
  Weigher weigh;
  uint64_t floor;
  Cut cut;

  __device__ __forceinline__ uint64_t above_floor(float x) const {
    const uint64_t weight = weigh(x);
    return weight >= floor ? weight : 0;
  }
  __device__ __forceinline__ uint64_t operator()(float x, int32_t id) const {
    return cut.keeps(x, id) ? above_floor(x) : 0;
  }
};

__device__ __forceinline__ Scan sum_of_all(Shared& s, const Row& row, const Kept& kept) {
  return sum_chunks(s, Source{row, -1}, [&](float x, int32_t) { return kept.above_floor(x); });
}

// Stage 5 after min-p and top-a: narrows `kept`; returns what has all of it.
__device__ Source narrow(Shared& s, const Row& row, const Largest& largest, float thread_largest,
                         const IonCudaSampling& p, Kept& kept) {
  const bool has_top_k = p.top_k > 0 && p.top_k < row.size, has_top_p = p.top_p < 1;
  float least = -INFINITY;
  uint64_t total = 0;
  if (has_top_k) {
    // A value that at least top_k threads reach is one that at least top_k values reach.
    if (p.top_k <= kThreads) least = kth_largest(s, thread_largest, p.top_k);
  } else {
    // All that weigh less than an equal share of the rest, 1 - top_p, stay below that rest together.
    total = sum_of_all(s, row, kept).total;
    const double rest = (1.0 - static_cast<double>(fmaxf(p.top_p, 0.0f))) * static_cast<double>(total);
    kept.floor = max(kept.floor, static_cast<uint64_t>(0.999 * rest / row.size));
  }
  const Source source =
      collect(s, row, [&](float x, int32_t) { return x >= least && kept.above_floor(x) != 0; });
  const uint32_t least_image = max(image_of(least), image_of(kept.weigh.below(kept.floor)));
  Scope scope{source, min(least_image, image_of(largest.value)), image_of(largest.value)};
  if (has_top_k) {
    kept.cut = cut_after(s, scope, p.top_k, [&](float x) { return kept.above_floor(x) != 0; });
    scope.least = max(scope.least, kept.cut.image);
    if (has_top_p) total = sum_chunks(s, source, kept).total;
  }
  if (!has_top_p) return source;
  const double share = ceil(static_cast<double>(fmaxf(p.top_p, 0.0f)) * static_cast<double>(total));
  const uint64_t wanted = min(max(static_cast<uint64_t>(share), uint64_t{1}), total);
  kept.cut = cut_at_weight(s, scope, wanted, [&](float x) { return kept.above_floor(x); });
  return source;
}

// The sampled id; -1 where every id is masked.
__device__ int32_t choose(Shared& s, const Row& row, const Largest& largest, float thread_largest,
                          const IonCudaSampling& p, int32_t position) {
  if (largest.value == -INFINITY) return -1;
  if (p.temperature < kGreedyBelow || largest.value == INFINITY) return largest.id;
  Kept kept{Weigher(largest.value, p.temperature), floor_of(static_cast<double>(p.min_p)), Cut{0, INT_MAX}};
  if (p.top_a > 0) {
    const Kept all{kept.weigh, 1, kept.cut};
    const double total = static_cast<double>(sum_of_all(s, row, all).total) / kOne;
    kept.floor = max(kept.floor, floor_of(static_cast<double>(p.top_a) / total));
  }
  Source source{row, -1};
  const bool is_narrowed = (p.top_k > 0 && p.top_k < row.size) || p.top_p < 1;
  if (is_narrowed) source = narrow(s, row, largest, thread_largest, p, kept);
  const Scan chunks = is_narrowed ? sum_chunks(s, source, kept) : sum_of_all(s, row, kept);
  const double u = uniform(p.seed, static_cast<uint64_t>(position));
  const uint64_t target = static_cast<uint64_t>(u * static_cast<double>(chunks.total));
  return id_at(s, row, chunks, min(target, chunks.total - 1), kept);
}

// ---------------------------------------------------------------------------------------------------------
// Log-probabilities of the raw row

// Puts the num_top largest, in order, and what they are below `log_total` into s.sample.
__device__ void report_top(Shared& s, const Scope& scope, int32_t num_top, double log_total) {
  const Cut cut = cut_after(s, scope, num_top, [](float) { return true; });
  if (threadIdx.x == 0) s.top_size = 0;
  __syncthreads();
  visit_all(s, scope.source, [&](float x, int32_t id) {
    if (!cut.keeps(x, id)) return;
    const uint32_t at = atomicAdd(&s.top_size, 1u);
    if (at < ION_CUDA_MAX_LOGPROBS) s.top[at] = make_uint2(__float_as_uint(x), static_cast<uint32_t>(id));
  });
  __syncthreads();
  if (static_cast<int32_t>(threadIdx.x) >= num_top) return;
  const float value = __uint_as_float(s.top[threadIdx.x].x);
  const uint32_t id = s.top[threadIdx.x].y;
  int32_t rank = 0;
  for (int32_t i = 0; i < num_top; ++i) {
    const float other = __uint_as_float(s.top[i].x);
    if (other > value || (other == value && s.top[i].y < id)) ++rank;
  }
  s.sample.top_ids[rank] = static_cast<int32_t>(id);
  s.sample.top_logprobs[rank] = static_cast<float>(static_cast<double>(value) - log_total);
}

__device__ void report(Shared& s, const Row& raw, float thread_largest, int32_t id, int32_t num_logprobs) {
  const float largest = largest_of(s, thread_largest, 0).value;
  const int32_t num_top = min(min(num_logprobs, ION_CUDA_MAX_LOGPROBS), raw.size);
  const float least = num_top > 0 ? kth_largest(s, thread_largest, num_top) : INFINITY;
  const Weigher weigh(largest, 1.0f);
  uint64_t sum = 0;
  const Source source = collect(s, raw, [&](float x, int32_t) {
    sum += weigh(x);
    return x >= least;
  });
  const uint64_t total = block_scan(s, sum).total;
  const double log_total = static_cast<double>(largest) + log(static_cast<double>(total) / kOne);
  if (threadIdx.x == 0) {
    if (id >= 0) s.sample.logprob = static_cast<float>(static_cast<double>(raw.values[id]) - log_total);
    s.sample.num_top = num_top;
  }
  if (num_top > 0) report_top(s, Scope{source, image_of(least), image_of(largest)}, num_top, log_total);
}

// ---------------------------------------------------------------------------------------------------------

constexpr int32_t kSampleWords = sizeof(IonCudaSample) / 4;
static_assert(sizeof(IonCudaSample) % 4 == 0 && kSampleWords <= kThreads);

// Written by a few threads together: the sample may lie in host memory, behind a bus.
__device__ void publish(Shared& s, const SampleArgs& args, int32_t row, int32_t slot, int32_t id) {
  __syncthreads();
  if (threadIdx.x < kSampleWords) {
    reinterpret_cast<uint32_t*>(args.samples + row)[threadIdx.x] =
        reinterpret_cast<const uint32_t*>(&s.sample)[threadIdx.x];
  }
  if (threadIdx.x != 0) return;
  const int32_t next = max(id, 0);
  args.last_ids[slot] = next;
  if (args.slots[slot].has_counts == 0) return;
  uint16_t& count = args.generated[static_cast<int64_t>(slot) * args.vocab + next];
  if (count < UINT16_MAX) ++count;
}

__global__ void __launch_bounds__(kThreads) sample_kernel(SampleArgs args) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  const int32_t row = blockIdx.x, slot = args.row_slots[row];
  if (slot < 0) return;
  if (threadIdx.x < kSampleWords) reinterpret_cast<uint32_t*>(&s.sample)[threadIdx.x] = 0;
  const SlotSampling& of = args.slots[slot];
  const Row raw{args.logits + static_cast<int64_t>(row) * args.vocab, args.vocab};
  const Changes changes = changes_of(args, row, slot);
  float* adjusted = args.adjusted + static_cast<int64_t>(row) * args.vocab;
  Seen seen = changes.any() ? change(adjusted, raw, changes, of.params) : look(raw);
  int32_t id = -1;
  const bool is_finite = __syncthreads_or(seen.is_bad ? 1 : 0) == 0;
  if (is_finite) {
    const Row sampled = changes.any() ? Row{adjusted, args.vocab} : raw;
    if (changes.has_biases || changes.masks_stop_ids) {
      scatter(adjusted, args.vocab, changes, of);
      const float raw_largest = seen.raw_largest;
      seen = look(sampled);
      seen.raw_largest = raw_largest;
    }
    const Largest largest = largest_of(s, seen.largest, seen.id);
    id = choose(s, sampled, largest, seen.largest, of.params, args.row_positions[row]);
    if (of.params.num_logprobs >= 0) report(s, raw, seen.raw_largest, id, of.params.num_logprobs);
  }
  if (threadIdx.x == 0) s.sample.id = id, s.sample.is_finite = is_finite ? 1 : 0;
  publish(s, args, row, slot, id);
}

// ---------------------------------------------------------------------------------------------------------
// Counts of a slot

__global__ void count_kernel(uint16_t* generated, uint32_t* prompt_seen, int32_t vocab, const int32_t* ids,
                             int32_t num_ids, int32_t num_prompt) {
  const int32_t i = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= num_ids) return;
  const int32_t id = ids[i];
  if (id < 0 || id >= vocab) return;
  if (i < num_prompt) {
    atomicOr(&prompt_seen[id / 32], 1u << id % 32);
    return;
  }
  uint16_t seen = generated[id];
  while (seen < UINT16_MAX) {
    const uint16_t found = atomicCAS(&generated[id], seen, static_cast<uint16_t>(seen + 1));
    if (found == seen) return;
    seen = found;
  }
}

}  // namespace

void sample(const SampleArgs& args, int32_t num_rows, cudaStream_t stream) {
  if (num_rows <= 0) return;
  if (args.vocab < 1 || args.vocab > kMaxVocab) {
    throw std::runtime_error("sampler: a vocabulary of " + std::to_string(args.vocab) + " is outside [1, " +
                             std::to_string(kMaxVocab) + "]");
  }
  allow_shared(sample_kernel, sizeof(Shared));
  sample_kernel<<<num_rows, kThreads, sizeof(Shared), stream>>>(args);
  check_launch("sampler");
}

void reset_counts(const SampleArgs& args, int32_t slot, const int32_t* ids, int32_t num_ids,
                  int32_t num_prompt, cudaStream_t stream) {
  const int64_t num_words = (args.vocab + 31) / 32;
  uint16_t* generated = args.generated + static_cast<int64_t>(slot) * args.vocab;
  uint32_t* prompt_seen = args.prompt_seen + slot * num_words;
  check(cudaMemsetAsync(generated, 0, sizeof(uint16_t) * static_cast<size_t>(args.vocab), stream), "counts");
  check(cudaMemsetAsync(prompt_seen, 0, sizeof(uint32_t) * static_cast<size_t>(num_words), stream), "counts");
  if (num_ids <= 0) return;
  constexpr int32_t kBlock = 256;
  count_kernel<<<(num_ids + kBlock - 1) / kBlock, kBlock, 0, stream>>>(generated, prompt_seen, args.vocab,
                                                                       ids, num_ids, num_prompt);
  check_launch("counts");
}

}  // namespace ion::cuda
