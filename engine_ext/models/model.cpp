// Loading of a model from either container, and its teacher-forced logits.
#include "models/model.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <stdexcept>

#include "models/control_group.h"
#include "models/cpu_decoder.h"
#include "models/model_files.h"
#include "models/weight_error.h"

namespace ion {
namespace {

constexpr int32_t kMaxChunk = 512;  // rows of one pass of `logits`; bounds its activations

}  // namespace

std::shared_ptr<kernels::ThreadPool> shared_pool(int threads) {
  if (threads <= 0) threads = usable_cpus();
  static std::mutex mutex;
  static std::map<int, std::weak_ptr<kernels::ThreadPool>> pools;
  const std::lock_guard lock(mutex);
  std::weak_ptr<kernels::ThreadPool>& known = pools[threads];
  std::shared_ptr<kernels::ThreadPool> pool = known.lock();
  if (pool == nullptr) known = pool = std::make_shared<kernels::ThreadPool>(threads);
  return pool;
}

void check_tokens(std::span<const int32_t> tokens, int32_t vocab_size) {
  if (tokens.empty()) throw std::invalid_argument("tokens: empty");
  for (int32_t id : tokens) {
    if (id < 0 || id >= vocab_size) {
      throw std::invalid_argument("tokens: id " + std::to_string(id) + " outside the vocabulary of " +
                                  std::to_string(vocab_size));
    }
  }
}

kernels::Numerics parse_numerics(const std::string& name) {
  if (name == "fast") return kernels::Numerics::fast;
  if (name == "deterministic") return kernels::Numerics::fast;  // on the CPU that always is
  if (name == "exact") return kernels::Numerics::exact;
  throw std::invalid_argument("numerics: " + quoted(name) + " is none of 'fast', 'deterministic', 'exact'");
}

int64_t Model::kv_block_bytes() const {
  return CpuDecoder::kv_block_bytes(weights_);
}

int64_t Model::streamed_bytes() const {
  const int64_t row =
      weights_.embedding == nullptr ? 0 : kernels::row_bytes(weights_.embedding_dtype, config().hidden_size);
  return weights_.num_bytes() - row * config().vocab_size;
}

std::shared_ptr<const Model> Model::load_gguf(const std::string& path, kernels::Numerics numerics,
                                              int threads) {
  return load(ModelFiles::open_gguf(path), numerics, threads);
}

std::shared_ptr<const Model> Model::load_safetensors(std::span<const std::string> paths,
                                                     const std::string& config_json,
                                                     kernels::Numerics numerics, int threads) {
  return load(ModelFiles::open_safetensors(paths, config_json), numerics, threads);
}

std::shared_ptr<const Model> Model::random(const std::string& config_json, uint64_t seed,
                                           kernels::Numerics numerics, int threads) {
  const auto pool = shared_pool(threads);
  return load(ModelFiles::random(config_json, seed, pool.get()), numerics, threads);
}

std::shared_ptr<const Model> Model::load(ModelFiles files, kernels::Numerics numerics, int threads) {
  auto pool = shared_pool(threads);
  Weights weights = load_weights(std::move(files.config), files.tensors, numerics, *pool);
  files.require_whole();
  return std::shared_ptr<const Model>(new Model(std::move(pool), std::move(weights)));
}

std::vector<float> Model::logits(std::span<const int32_t> tokens, int32_t chunk) const {
  check_tokens(tokens, config().vocab_size);
  const auto num_tokens = static_cast<int32_t>(tokens.size());
  const int32_t step = std::clamp(chunk > 0 ? chunk : kMaxChunk, 1, std::min(kMaxChunk, num_tokens));
  const auto num_blocks = static_cast<int32_t>((num_tokens + kernels::kKvBlock - 1) / kernels::kKvBlock);
  CpuDecoder decoder(weights_, *pool_, {step, step, num_blocks});
  std::vector<int32_t> positions(num_tokens), rows(step), blocks(num_blocks);
  for (auto* counted : {&positions, &rows, &blocks}) std::iota(counted->begin(), counted->end(), 0);
  std::vector<float> out(static_cast<size_t>(num_tokens) * config().vocab_size);
  for (int32_t start = 0; start < num_tokens; start += step) {
    const int32_t count = std::min(step, num_tokens - start);
    const kernels::AttentionSpan span{blocks.data(), 0, start, count};
    const auto all = std::span(rows).first(count);
    decoder.forward(
        {tokens.subspan(start, count), std::span(positions).subspan(start, count), {&span, 1}, all});
    decoder.head(all, out.data() + static_cast<size_t>(start) * config().vocab_size);
  }
  return out;
}

}  // namespace ion
