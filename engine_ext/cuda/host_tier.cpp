#include "cuda/host_tier.h"

#include <stdexcept>
#include <string>

namespace ion::cuda {

HostTier::HostTier(const Decoder& decoder, int32_t num_blocks)
    : decoder_(decoder),
      num_blocks_(num_blocks),
      memory_(num_blocks * decoder.block_bytes(), "the second KV tier") {
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream of copies");
}

HostTier::~HostTier() {
  cudaStreamSynchronize(stream_);
  for (const auto& [ticket, event] : pending_) cudaEventDestroy(event);
  for (const cudaEvent_t event : spare_) cudaEventDestroy(event);
  cudaStreamDestroy(stream_);
}

std::byte* HostTier::host_block(int32_t index) const {
  if (index < 0 || index >= num_blocks_) {
    throw std::logic_error("host block " + std::to_string(index) + " is outside the tier");
  }
  return memory_.as<std::byte>(index * decoder_.block_bytes());
}

uint64_t HostTier::copy_out(int32_t block, int32_t to) {
  check(cudaMemcpyAsync(host_block(to), decoder_.block(block), decoder_.block_bytes(), cudaMemcpyDeviceToHost,
                        stream_),
        "copy of a block to the host");
  return record();
}

uint64_t HostTier::copy_in(int32_t from, int32_t block) {
  check(cudaMemcpyAsync(decoder_.block(block), host_block(from), decoder_.block_bytes(),
                        cudaMemcpyHostToDevice, stream_),
        "copy of a block from the host");
  return record();
}

uint64_t HostTier::record() {
  cudaEvent_t event = nullptr;
  if (spare_.empty()) {
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event of a copy");
  } else {
    event = spare_.back();
    spare_.pop_back();
  }
  pending_.emplace(++last_ticket_, event);
  check(cudaEventRecord(event, stream_), "event of a copy");
  return last_ticket_;
}

bool HostTier::is_done(uint64_t ticket, bool wait) {
  const auto found = pending_.find(ticket);
  if (found == pending_.end()) throw std::logic_error("no such copy");
  const cudaError_t status = wait ? cudaEventSynchronize(found->second) : cudaEventQuery(found->second);
  if (status == cudaErrorNotReady) return false;
  spare_.push_back(found->second);
  pending_.erase(found);
  check(status, "copy of a block");
  return true;
}

}  // namespace ion::cuda
