#include "cuda/host_tier.h"

#include <stdexcept>
#include <string>

namespace ion::cuda {
namespace {

constexpr int kOut = 0, kIn = 1;

}  // namespace

HostTier::HostTier(const Decoder& decoder, int32_t num_blocks)
    : decoder_(decoder),
      num_blocks_(num_blocks),
      memory_(num_blocks * decoder.block_bytes(), "the second KV tier", false) {
  for (Lane& lane : lanes_) {
    check(cudaStreamCreateWithFlags(&lane.stream, cudaStreamNonBlocking), "stream of copies");
  }
}

HostTier::~HostTier() {
  for (Lane& lane : lanes_) {
    cudaStreamSynchronize(lane.stream);
    for (const auto& [last, event] : lane.marks) cudaEventDestroy(event);
    cudaStreamDestroy(lane.stream);
  }
  for (const cudaEvent_t event : spare_) cudaEventDestroy(event);
}

std::byte* HostTier::host_block(int32_t index) const {
  if (index < 0 || index >= num_blocks_) {
    throw std::logic_error("host block " + std::to_string(index) + " is outside the tier");
  }
  return memory_.as<std::byte>(index * decoder_.block_bytes());
}

uint64_t HostTier::copy_out(int32_t block, int32_t to) {
  return begin(kOut, host_block(to), decoder_.block(block), cudaMemcpyDeviceToHost);
}

uint64_t HostTier::copy_in(int32_t from, int32_t block) {
  return begin(kIn, decoder_.block(block), host_block(from), cudaMemcpyHostToDevice);
}

// A lane's tickets: 2 n + lane for its n-th copy, from 1 on.
uint64_t HostTier::begin(int lane, void* to, const void* from, cudaMemcpyKind kind) {
  check(cudaMemcpyAsync(to, from, decoder_.block_bytes(), kind, lanes_[lane].stream),
        "copy of a block between the tiers");
  return 2 * ++lanes_[lane].begun + lane;
}

void HostTier::mark(Lane& lane) {
  cudaEvent_t event = nullptr;
  if (spare_.empty()) {
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event of copies");
  } else {
    event = spare_.back();
    spare_.pop_back();
  }
  lane.marks.emplace_back(lane.begun, event);
  lane.marked = lane.begun;
  check(cudaEventRecord(event, lane.stream), "event of copies");
}

bool HostTier::is_done(uint64_t ticket, bool wait) {
  Lane& lane = lanes_[ticket % 2];
  const uint64_t number = ticket / 2;
  if (number == 0 || number > lane.begun) throw std::logic_error("no such copy");
  if (number > lane.marked) mark(lane);
  while (lane.over < number) {
    const auto [last, event] = lane.marks.front();
    const cudaError_t status = wait ? cudaEventSynchronize(event) : cudaEventQuery(event);
    if (status == cudaErrorNotReady) return false;
    check(status, "copy of a block");
    lane.over = last;
    lane.marks.pop_front();
    spare_.push_back(event);
  }
  return true;
}

}  // namespace ion::cuda
