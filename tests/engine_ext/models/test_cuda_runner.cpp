// CudaRunner over a test double of the library: what arrives there, field by field, and what comes back.
// ION_TEST_MODEL names a small Llama GGUF file.
#include <dlfcn.h>

#include <cstdlib>

#include "check.h"
#include "cuda_double.h"
#include "models/cuda_runner.h"
#include "models/weight_error.h"

namespace ion {
namespace {

using cuda_double::Log;

constexpr uint8_t kAll = kRowSample | kRowGrammar;

void* symbol(const char* name) {
  static void* const handle = dlopen(CUDA_DOUBLE, RTLD_NOW);
  return dlsym(handle, name);
}

Log& log() {
  return *static_cast<Log*>(reinterpret_cast<void* (*)()>(symbol("cuda_double_log"))());
}

void fail_next(const char* name) {
  reinterpret_cast<void (*)(const char*)>(symbol("cuda_double_fail"))(name);
}

std::shared_ptr<const CudaModel> model(CudaFormat kv_precision = CudaFormat::bf16) {
  setenv("IONROUTER_CUDA_LIBRARY", CUDA_DOUBLE, 1);
  return CudaModel::load_gguf(std::getenv("ION_TEST_MODEL"), {.threads = 2, .kv_precision = kv_precision});
}

struct Rig {
  RunnerOptions options{.num_blocks = 8, .max_slots = 4, .max_tokens_per_step = 64, .tier_bytes = 1 << 20};
  CudaRunner runner{model(), options};

  StepResult run(Step step) {
    runner.submit(std::move(step));
    StepResult result;
    CHECK(runner.poll(result, true));
    return result;
  }
};

Step joining(uint64_t epoch, SeqSlot slot, std::vector<int32_t> ids, SamplingParams sampling) {
  const auto count = static_cast<int32_t>(ids.size());
  Step step{epoch, {{slot, 0, count, kRowSample}}, {}};
  step.delta.joins.push_back({slot, std::move(sampling), std::move(ids), count});
  step.delta.blocks.push_back({slot, 0, 0});
  return step;
}

TEST(every_field_of_a_step_arrives) {
  Rig rig;
  SamplingParams first;
  first.temperature = 0.5f, first.top_k = 40, first.top_p = 0.9f, first.min_p = 0.05f, first.top_a = 0.2f;
  first.repetition_penalty = 1.1f, first.presence_penalty = 0.3f, first.frequency_penalty = 0.4f;
  first.seed = (uint64_t{1} << 60) + 7, first.min_tokens = 3, first.num_logprobs = 5;
  first.stop_ids = {11, 12, 13};
  first.logit_bias = {{21, 1.5f}, {22, -2.5f}};
  SamplingParams second;
  second.logit_bias = {{31, 4.0f}};
  Step step{9, {{2, 0, 4, kRowSample}, {1, 16, 3, 0}}, {}};
  step.delta.leaves = {3, 0};
  step.delta.joins = {{2, first, {1, 2, 3, 4}, 3}, {1, second, {5, 6}, 2}};
  step.delta.blocks = {{2, 0, 5}, {1, 1, 6}};
  step.delta.copies = {{4, 5}, {1, 2}};
  const StepResult result = rig.run(step);
  CHECK_EQ(result.error, "");

  CHECK_EQ(log().steps.size(), size_t{1});
  const cuda_double::Step& got = log().steps.at(0);
  CHECK_EQ(got.epoch, uint64_t{9});
  CHECK_EQ(got.leaves, (std::vector<int32_t>{3, 0}));
  CHECK_EQ(got.rows.size(), size_t{2});
  for (size_t i = 0; i < 2; ++i) {
    const Row& row = step.rows[i];
    CHECK(got.rows[i].slot == row.slot && got.rows[i].start == row.start && got.rows[i].count == row.count);
    CHECK_EQ(got.rows[i].flags, int32_t{row.flags});
    CHECK_EQ(got.blocks[i].slot, step.delta.blocks[i].slot);
    CHECK_EQ(got.blocks[i].index, step.delta.blocks[i].index);
    CHECK_EQ(got.blocks[i].block, step.delta.blocks[i].block);
    CHECK_EQ(got.copies[i].from, step.delta.copies[i].from);
    CHECK_EQ(got.copies[i].to, step.delta.copies[i].to);
  }
  const cuda_double::Join& join = got.joins.at(0);
  CHECK_EQ(join.slot, 2);
  CHECK_EQ(join.ids, (std::vector<int32_t>{1, 2, 3, 4}));
  CHECK_EQ(join.num_prompt, 3);
  CHECK_EQ(join.stop_ids, first.stop_ids);
  CHECK_EQ(join.bias_ids, (std::vector<int32_t>{21, 22}));
  CHECK_EQ(join.biases, (std::vector<float>{1.5f, -2.5f}));
  const IonCudaSampling& sampling = join.sampling;
  CHECK(sampling.temperature == 0.5f && sampling.top_p == 0.9f && sampling.min_p == 0.05f);
  CHECK(sampling.top_a == 0.2f && sampling.repetition_penalty == 1.1f);
  CHECK(sampling.presence_penalty == 0.3f && sampling.frequency_penalty == 0.4f);
  CHECK(sampling.top_k == 40 && sampling.min_tokens == 3 && sampling.num_logprobs == 5);
  CHECK_EQ(sampling.seed, (uint64_t{1} << 60) + 7);
  CHECK_EQ(got.joins.at(1).bias_ids, (std::vector<int32_t>{31}));
  CHECK_EQ(got.joins.at(1).biases, (std::vector<float>{4.0f}));
  CHECK_EQ(got.joins.at(1).sampling.num_logprobs, -1);
}

TEST(samples_come_back_in_row_order_with_their_log_probabilities) {
  Rig rig;
  const int32_t vocab = rig.runner.caps().vocab_size;
  SamplingParams asks;
  asks.num_logprobs = 2;
  CHECK_EQ(rig.run(joining(1, 3, {1, 2, 3}, asks)).error, "");
  Step step{2, {{3, 3, 1, kRowSample}, {1, 0, 2, 0}, {2, 0, 5, kRowSample}}, {}};
  step.delta.joins = {{1, {}, {1, 2, 3}, 3}, {2, {}, {1, 2, 3, 4, 5}, 5}};
  const StepResult result = rig.run(step);
  CHECK_EQ(result.epoch, uint64_t{2});
  CHECK(result.seconds == 0.125);
  CHECK_EQ(result.sampled.size(), size_t{2});
  CHECK_EQ(result.sampled[0].slot, 3);
  CHECK_EQ(result.sampled[0].id, cuda_double::sampled_id(3, 4, vocab));
  CHECK(result.sampled[0].finite && result.sampled[0].logprob == -0.75f);
  CHECK_EQ(result.sampled[0].top.size(), size_t{2});
  CHECK_EQ(result.sampled[0].top[1].id, (result.sampled[0].id + 1) % vocab);
  CHECK(result.sampled[0].top[1].logprob == -0.5f);
  CHECK_EQ(result.sampled[1].slot, 2);
  CHECK_EQ(result.sampled[1].id, cuda_double::sampled_id(2, 5, vocab));
  CHECK(result.sampled[1].top.empty());
}

TEST(more_log_probabilities_than_the_interface_has_are_clamped) {
  Rig rig;
  SamplingParams asks;
  asks.num_logprobs = 100;
  CHECK_EQ(rig.run(joining(1, 0, {1}, asks)).sampled.at(0).top.size(), size_t{ION_CUDA_MAX_LOGPROBS});
  CHECK_EQ(rig.runner.caps().max_logprobs, ION_CUDA_MAX_LOGPROBS);
}

TEST(a_row_that_is_not_finite_says_so) {
  Rig rig;
  fail_next("finite");
  const StepResult result = rig.run(joining(1, 0, {1, 2}, {}));
  CHECK_EQ(result.error, "");
  CHECK(!result.sampled.at(0).finite);
}

TEST(a_failed_step_is_over_and_the_next_goes_on) {
  Rig rig;
  fail_next("poll");
  rig.runner.submit(joining(1, 0, {1, 2}, {}));
  rig.runner.submit(joining(2, 1, {1, 2}, {}));
  StepResult result;
  CHECK(rig.runner.poll(result, true));
  CHECK_EQ(result.epoch, uint64_t{1});
  CHECK_EQ(result.error, "CUDA: poll was told to fail");
  CHECK(rig.runner.poll(result, true));
  CHECK_EQ(result.epoch, uint64_t{2});
  CHECK_EQ(result.error, "");
  CHECK(!rig.runner.poll(result, true));
}

TEST(a_refused_step_is_not_in_flight) {
  Rig rig;
  fail_next("submit");
  CHECK_THROWS(std::runtime_error, rig.runner.submit(joining(1, 0, {1}, {})), "submit was told to fail");
  StepResult result;
  CHECK(!rig.runner.poll(result, true));
}

TEST(a_fifth_step_is_refused) {
  Rig rig;
  for (uint64_t epoch = 1; epoch <= 4; ++epoch) rig.runner.submit({epoch, {}, {}});
  CHECK_THROWS(std::logic_error, rig.runner.submit({5, {}, {}}), "a fifth step");
}

TEST(samples_that_do_not_fit_the_rows_are_an_error_of_the_step) {
  Rig rig;
  fail_next("samples");
  CHECK_EQ(rig.run(joining(1, 0, {1}, {})).error, "CUDA: the samples are not those of the step's rows");
}

TEST(masks_arrive_and_the_step_waits_for_them) {
  Rig rig;
  const auto num_words = static_cast<size_t>(rig.runner.caps().vocab_size + 31) / 32;
  Step step = joining(4, 2, {1, 2}, {});
  step.rows[0].flags = kAll;
  rig.runner.submit(step);
  StepResult result;
  CHECK(!rig.runner.poll(result, false));
  CHECK_THROWS(std::logic_error, rig.runner.upload_masks(4, {{2, {1u}}}), "another vocabulary");
  rig.runner.upload_masks(4, {{2, std::vector<uint32_t>(num_words, 6u)}, {1, {}}});
  CHECK(rig.runner.poll(result, true));
  CHECK_EQ(log().masks.size(), size_t{2});
  CHECK(log().masks[0].epoch == 4 && log().masks[0].slot == 2);
  CHECK_EQ(log().masks[0].words, std::vector<uint32_t>(num_words, 6u));
  CHECK(log().masks[1].words.empty());
}

TEST(what_would_reach_outside_is_refused_before_the_device_sees_it) {
  Rig rig;
  const int32_t vocab = rig.runner.caps().vocab_size, context = rig.runner.caps().context_length;
  const auto refused = [&](Step step) { rig.runner.submit(std::move(step)); };
  CHECK_THROWS(std::logic_error, refused({1, {{4, 0, 1, kRowSample}}, {}}), "no slot 4");
  CHECK_THROWS(std::logic_error, refused(joining(1, 0, {vocab}, {})), "not in the vocabulary");
  CHECK_THROWS(std::logic_error, refused({1, {{0, context, 1, 0}}, {}}), "beyond the context");
  CHECK_THROWS(std::logic_error, refused({1, {{0, 0, 65, 0}}, {}}), "too many tokens");
  CHECK_THROWS(std::logic_error, refused({1, {{0, 0, 1, kRowPromptLogprobs}}, {}}), "flags that CUDA");
  Step step{1, {}, {}};
  step.delta.blocks = {{0, 0, 8}};
  CHECK_THROWS(std::logic_error, refused(step), "block 8 is outside");
  step.delta.blocks = {{0, context / 16, 0}};
  CHECK_THROWS(std::logic_error, refused(step), "beyond the context");
  CHECK(log().steps.empty());
}

TEST(copies_between_the_tiers_have_tickets) {
  Rig rig;
  CHECK_EQ(rig.runner.caps().num_host_blocks,
           static_cast<int32_t>((1 << 20) / rig.runner.caps().block_bytes));
  const Ticket out = rig.runner.copy_out(3, 1), in = rig.runner.copy_in(1, 4);
  CHECK(!log().copies[out - 1].is_in && log().copies[out - 1].block == 3 &&
        log().copies[out - 1].host_block == 1);
  CHECK(log().copies[in - 1].is_in && log().copies[in - 1].block == 4 &&
        log().copies[in - 1].host_block == 1);
  CHECK_EQ(rig.runner.done(out, false), CopyState::kPending);
  CHECK_EQ(rig.runner.done(out, false), CopyState::kDone);
  fail_next("copy_state");
  CHECK_EQ(rig.runner.done(in, true), CopyState::kFailed);
  fail_next("copy_in");
  CHECK_THROWS(std::runtime_error, rig.runner.copy_in(0, 0), "copy_in was told to fail");
}

TEST(the_options_and_caps_are_those_asked_for) {
  Rig rig;
  const Caps& caps = rig.runner.caps();
  const IonCudaOptions& got = log().options;
  CHECK(got.max_slots == 4 && got.max_tokens_per_step == 64 && got.num_blocks == 8);
  CHECK_EQ(got.context_length, caps.context_length);
  CHECK_EQ(got.num_host_blocks, caps.num_host_blocks);
  CHECK_EQ(got.use_graphs, 1);
  CHECK_EQ(got.is_deterministic, 0);
  const CudaRunner other(model(), {.num_blocks = 8, .use_graphs = false, .is_deterministic = true});
  CHECK_EQ(log().options.use_graphs, 0);
  CHECK_EQ(log().options.is_deterministic, 1);
}

TEST(unasked_a_runner_takes_nine_tenths_of_what_is_free_or_what_all_slots_can_fill) {
  const auto caps_with = [](const char* free_bytes, int32_t max_tokens) {
    setenv("CUDA_DOUBLE_FREE_BYTES", free_bytes, 1);
    return CudaRunner(model(), {.max_slots = 4, .max_tokens_per_step = max_tokens}).caps();
  };
  const Caps all = caps_with("4294967296", 64);
  CHECK_EQ(all.num_blocks, 4 * all.context_length / 16);
  const int64_t kv_bytes = caps_with("400000", 64).num_blocks * all.block_bytes;
  CHECK(kv_bytes <= 360000 && kv_bytes > 200000);  // some of the free bytes are for a step's activations
  CHECK_THROWS(MemoryShort, caps_with("400000", 4096), "KV cache on Double GPU", "400000 available");
  unsetenv("CUDA_DOUBLE_FREE_BYTES");
}

TEST(blocks_of_fp8_kv_are_counted_as_small_as_they_are) {
  const RunnerOptions options{.kv_memory_bytes = 1 << 20, .tier_bytes = 1 << 20};
  const CudaRunner wide(model(), options), narrow(model(CudaFormat::fp8), options);
  const int64_t head_dim = log().config.head_dim;
  CHECK_EQ(log().config.kv_type, static_cast<int32_t>(ION_CUDA_E4M3));
  CHECK_EQ(narrow.caps().block_bytes * 2 * head_dim, wide.caps().block_bytes * (head_dim + 4));
  CHECK_EQ(log().options.num_blocks, static_cast<int32_t>((1 << 20) / narrow.caps().block_bytes));
  CHECK_EQ(log().options.num_host_blocks, log().options.num_blocks);
  CHECK(narrow.caps().num_blocks > wide.caps().num_blocks);
}

TEST(a_tier_in_a_file_is_refused) {
  const RunnerOptions options{.num_blocks = 8, .tier_bytes = 1 << 20, .tier_folder = "/tmp"};
  CHECK_THROWS(std::invalid_argument, CudaRunner(model(), options), "kv_tier", "file");
}

TEST(nothing_stays_on_the_device) {
  {
    const Rig rig;
  }
  CHECK_EQ(log().num_runners, 0);
  CHECK_EQ(log().num_models, 0);
  fail_next("runner_create");
  CHECK_THROWS(std::runtime_error, CudaRunner(model(), {.num_blocks = 8}), "runner_create was told to fail");
  fail_next("model_write");
  CHECK_THROWS(std::runtime_error, model(), "model_write was told to fail");
  CHECK_EQ(log().num_models, 0);
}

}  // namespace
}  // namespace ion

int main(int argc, char** argv) {
  return check::main(argc, argv);
}
