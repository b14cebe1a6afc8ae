// The second KV tier: blocks in pinned host memory, copied beside the steps, each way on a stream of its own:
// what comes back must not queue behind what is written out.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <utility>
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

  // Start a copy; a ticket, never 0. The caller names neither end again before the copy is over.
  uint64_t copy_out(int32_t block, int32_t host_block);
  uint64_t copy_in(int32_t host_block, int32_t block);
  // Whether it is over. Throws where it failed. A ticket is asked about until it is over, and never again.
  bool is_done(uint64_t ticket, bool wait);

 private:
  // Copies of one direction end in the order they began. An event marks the end of all that began before it;
  // it is recorded when somebody asks, so that copies begun together have one.
  struct Lane {
    cudaStream_t stream = nullptr;
    uint64_t begun = 0, marked = 0, over = 0;  // copies
    std::deque<std::pair<uint64_t, cudaEvent_t>> marks;
  };

  std::byte* host_block(int32_t index) const;
  uint64_t begin(int lane, void* to, const void* from, cudaMemcpyKind kind);
  void mark(Lane& lane);

  const Decoder& decoder_;
  int32_t num_blocks_;
  PinnedMemory memory_;
  std::array<Lane, 2> lanes_;  // out, in
  std::vector<cudaEvent_t> spare_;
};

}  // namespace ion::cuda
