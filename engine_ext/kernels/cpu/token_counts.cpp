// Occurrences of token ids in one sequence: open addressing over a dense list. Knows no penalty.
#include "../sampler.h"

namespace ion::kernels {
namespace {

// Fibonacci hashing (Knuth, TAOCP 3, 6.4): ids are dense and small.
std::size_t slot_of(int32_t id, std::size_t size) {
  return static_cast<uint32_t>(id) * 2654435769u & static_cast<uint32_t>(size - 1);
}

}  // namespace

void TokenCounts::clear() {
  entries_.clear();
  slots_.assign(slots_.size(), -1);
}

TokenCount& TokenCounts::entry(int32_t id) {
  if (2 * (entries_.size() + 1) > slots_.size()) grow();
  for (std::size_t slot = slot_of(id, slots_.size());; slot = (slot + 1) & (slots_.size() - 1)) {
    if (slots_[slot] < 0) {
      slots_[slot] = static_cast<int32_t>(entries_.size());
      return entries_.emplace_back(TokenCount{id, 0, 0});
    }
    if (entries_[static_cast<std::size_t>(slots_[slot])].id == id) {
      return entries_[static_cast<std::size_t>(slots_[slot])];
    }
  }
}

void TokenCounts::grow() {
  slots_.assign(slots_.empty() ? 64 : 2 * slots_.size(), -1);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    std::size_t slot = slot_of(entries_[i].id, slots_.size());
    while (slots_[slot] >= 0) slot = (slot + 1) & (slots_.size() - 1);
    slots_[slot] = static_cast<int32_t>(i);
  }
}

}  // namespace ion::kernels
