// A loaded model: config, weights, the threads that compute with it. Knows no sequences and no scheduling.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "models/weights.h"

namespace ion {

struct ModelFiles;

// "fast", "deterministic" (here the same) or "exact"; throws std::invalid_argument for anything else.
kernels::Numerics parse_numerics(const std::string& name);

// The process's threads: one pool of each size that is asked for (0: one thread per CPU that the process may
// use), as long as a model uses it. More threads than CPUs would only be in each other's way, so models take
// turns instead of having their own.
std::shared_ptr<kernels::ThreadPool> shared_pool(int threads);

// Throws std::invalid_argument for no tokens and ids outside the vocabulary.
void check_tokens(std::span<const int32_t> tokens, int32_t vocab_size);

class Model {
 public:
  // threads 0: one per available CPU. Models with equal `threads` compute with the same ones, step by step in
  // turns. Throws WeightError.
  static std::shared_ptr<const Model> load_gguf(const std::string& path, kernels::Numerics numerics,
                                                int threads);
  static std::shared_ptr<const Model> load_safetensors(std::span<const std::string> paths,
                                                       const std::string& config_json,
                                                       kernels::Numerics numerics, int threads);

  // Of the sizes that a config.json says, with values from a seed (models/random_model.h).
  static std::shared_ptr<const Model> random(const std::string& config_json, uint64_t seed,
                                             kernels::Numerics numerics, int threads);

  const ModelConfig& config() const { return weights_.config; }
  const Weights& weights() const { return weights_; }
  kernels::ThreadPool& pool() const { return *pool_; }
  int64_t kv_block_bytes() const;  // of 16 tokens, all layers
  int64_t streamed_bytes() const;  // of the weights that every step reads: all but an embedding of its own

  // Teacher-forced logits [tokens.size(), vocab_size], prefilled in pieces of `chunk` tokens (0: the
  // largest). Throws std::invalid_argument for no tokens and ids outside the vocabulary.
  std::vector<float> logits(std::span<const int32_t> tokens, int32_t chunk) const;

 private:
  static std::shared_ptr<const Model> load(ModelFiles files, kernels::Numerics numerics, int threads);
  Model(std::shared_ptr<kernels::ThreadPool> pool, Weights weights)
      : pool_(std::move(pool)), weights_(std::move(weights)) {}

  std::shared_ptr<kernels::ThreadPool> pool_;
  Weights weights_;
};

}  // namespace ion
