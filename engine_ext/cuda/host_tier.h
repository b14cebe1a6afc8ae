// The second KV tier: blocks in pinned host memory, copied on a stream of their own beside the steps.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "cuda/decoder.h"
#include "cuda/device_memory.h"

namespace ion::cuda {

class HostTier {
 public:
  HostTier(const Decoder& decoder, int32_t num_blocks);
  ~HostTier();
  HostTier(const HostTier&) = delete;
  HostTier& operator=(const HostTier&) = delete;

  // Start a copy; a ticket. The caller names neither end again before the copy is over.
  uint64_t copy_out(int32_t block, int32_t host_block);
  uint64_t copy_in(int32_t host_block, int32_t block);
  // Whether it is over. Throws where it failed. A ticket is asked about until it is over, and never again.
  bool is_done(uint64_t ticket, bool wait);

 private:
  std::byte* host_block(int32_t index) const;
  uint64_t record();

  const Decoder& decoder_;
  int32_t num_blocks_;
  PinnedMemory memory_;
  cudaStream_t stream_ = nullptr;
  std::map<uint64_t, cudaEvent_t> pending_;
  std::vector<cudaEvent_t> spare_;
  uint64_t last_ticket_ = 0;
};

}  // namespace ion::cuda
