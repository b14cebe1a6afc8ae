// What is asked of a runner, whatever it computes on, and what follows for its Caps. Knows no weights and no
// device.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "core/runner.h"
#include "models/model_config.h"

namespace ion {

struct RunnerOptions {
  int32_t num_blocks = 0;       // 0: as kv_memory_bytes says
  int64_t kv_memory_bytes = 0;  // 0: the runner chooses by the memory that is free
  int32_t max_slots = 64;
  int32_t max_tokens_per_step = 512;
  int32_t context_length = 0;  // 0: the model's
  int64_t tier_bytes = 0;      // of the second KV tier; 0: none
  std::string tier_folder;     // empty: the second tier is memory; else a file in it (CPU alone)
  bool use_graphs = true;      // CUDA alone: decode steps are replayed as graphs
  // CUDA alone: bits follow from the sequence, as they always do on the CPU.
  bool is_deterministic = false;
};

int64_t blocks_for(int64_t num_tokens);

// All but the blocks. Throws std::invalid_argument naming the option.
Caps base_caps(const ModelConfig& config, const RunnerOptions& options);

// Sets num_blocks and num_host_blocks of caps whose block_bytes are known; `unasked` says how many blocks
// where the options leave it open. Throws std::invalid_argument naming the option.
void set_num_blocks(Caps& caps, const RunnerOptions& options, const std::function<int64_t()>& unasked);

}  // namespace ion
