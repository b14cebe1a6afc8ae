#include "cuda/teacher_forced.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "cuda/decoder.h"
#include "cuda/step_buffer.h"

namespace ion::cuda {
namespace {

constexpr int32_t kChunk = 512;

}  // namespace

void teacher_forced_logits(const Model& model, const int32_t* ids, int32_t num_ids, int32_t chunk,
                           bool streams, float* logits) {
  const int64_t vocab = model.config().vocab_size;
  if (num_ids < 1) throw std::invalid_argument("tokens: empty");
  for (int32_t i = 0; i < num_ids; ++i) {
    if (ids[i] < 0 || ids[i] >= vocab) throw std::invalid_argument("tokens: an id outside the vocabulary");
  }
  const int32_t step_rows = std::min(chunk > 0 ? chunk : kChunk, num_ids);
  const int32_t num_blocks = (num_ids + kKvBlock - 1) / kKvBlock;
  DecoderLimits limits;
  limits.max_rows = limits.max_logit_rows = step_rows;
  limits.max_slots = 1;
  limits.num_blocks = num_blocks;
  limits.context_length = num_ids;
  limits.streams = streams;
  Decoder decoder(model, limits);
  PlanSizes sizes_of_plan = decoder.plan_sizes();
  sizes_of_plan.most_pieces = 2;
  std::vector<int32_t> blocks(num_blocks);
  std::iota(blocks.begin(), blocks.end(), 0);
  check(cudaMemcpy(decoder.block_tables(), blocks.data(), blocks.size() * 4, cudaMemcpyHostToDevice),
        "blocks");
  const DeviceMemory out(step_rows * vocab * 4, "logits");
  for (int32_t start = 0; start < num_ids; start += step_rows) {
    const int32_t count = std::min(step_rows, num_ids - start);
    StepContents contents;
    for (int32_t i = 0; i < count; ++i) {
      contents.ids.push_back(ids[start + i]);
      contents.slots.push_back(0);
      contents.positions.push_back(start + i);
      contents.logit_rows.push_back(i);
      contents.sample_slots.push_back(0);
      contents.sample_positions.push_back(start + i + 1);
    }
    contents.add_span({0, 0, start, count});
    contents.plan(sizes_of_plan);
    const StepSizes sizes = contents.sizes();
    const StepLayout layout(sizes);
    std::vector<int32_t> words(layout.total);
    contents.write(words.data(), layout, sizes);
    const DeviceMemory step(layout.total * 4, "a step");
    check(cudaMemcpy(step.as<void>(), words.data(), words.size() * 4, cudaMemcpyHostToDevice), "a step");
    decoder.forward(batch_of(step.as<int32_t>(), sizes, contents), out.as<float>(), nullptr);
    check(cudaMemcpy(logits + int64_t{start} * vocab, out.as<void>(), int64_t{count} * vocab * 4,
                     cudaMemcpyDeviceToHost),
          "logits");
  }
}

}  // namespace ion::cuda
