// Checks of a runner's options.
#include "models/runner_options.h"

#include <stdexcept>

#include "kernels/kernels.h"
#include "models/weight_error.h"

namespace ion {
namespace {

constexpr auto kBlock = static_cast<int32_t>(kernels::kKvBlock);

int32_t host_blocks(const RunnerOptions& options, int64_t block_bytes) {
  if (options.tier_bytes == 0) return 0;
  const int64_t num_blocks = options.tier_bytes / block_bytes;
  if (num_blocks < 1 || num_blocks > INT32_MAX) {
    throw std::invalid_argument("kv_tier: " + std::to_string(options.tier_bytes) +
                                " bytes do not make a sensible number of blocks of " +
                                std::to_string(block_bytes) + " bytes");
  }
  return static_cast<int32_t>(num_blocks);
}

}  // namespace

int64_t blocks_for(int64_t num_tokens) {
  return (num_tokens + kBlock - 1) / kBlock;
}

Caps base_caps(const ModelConfig& config, const RunnerOptions& options) {
  Caps caps;
  caps.block_size = kBlock;
  caps.vocab_size = config.vocab_size;
  caps.max_slots = options.max_slots;
  caps.max_tokens_per_step = options.max_tokens_per_step;
  caps.context_length = options.context_length > 0 ? options.context_length : config.context_length;
  caps.window = config.widest_window();
  if (caps.max_slots < 1) throw std::invalid_argument("max_slots: must be at least 1");
  if (caps.max_tokens_per_step < 1) throw std::invalid_argument("max_tokens_per_step: must be at least 1");
  if (caps.context_length > config.context_length) {
    throw std::invalid_argument("context_length: " + std::to_string(caps.context_length) +
                                " is above the model's " + std::to_string(config.context_length));
  }
  return caps;
}

void set_num_blocks(Caps& caps, const RunnerOptions& options, const std::function<int64_t()>& unasked) {
  int64_t num_blocks = options.num_blocks;
  if (num_blocks <= 0) {
    num_blocks = options.kv_memory_bytes > 0 ? options.kv_memory_bytes / caps.block_bytes : unasked();
  }
  if (num_blocks < 1) {
    throw std::invalid_argument("kv_memory_bytes: " + std::to_string(options.kv_memory_bytes) +
                                " is less than one block of " + std::to_string(caps.block_bytes) + " bytes");
  }
  if (num_blocks > INT32_MAX) {
    throw MemoryShort("too little memory for the KV cache: " + std::to_string(num_blocks) + " blocks of " +
                      std::to_string(caps.block_bytes) + " bytes needed, " + std::to_string(INT32_MAX) +
                      " blocks available at most");
  }
  caps.num_blocks = static_cast<int32_t>(num_blocks);
  caps.num_host_blocks = host_blocks(options, caps.block_bytes);
}

}  // namespace ion
