// Large zeroed memory for weights and KV, and how much of it there is. Knows nothing of what is put there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace ion {

// Bytes that can still be used without swapping: the machine's, or less where a control group says less. What
// this process has been promised (see Memory) and not touched yet is taken off.
int64_t available_memory_bytes();
// Of all Memory of this process together: its ledger.
int64_t promised_memory_bytes();

// Page-aligned, zeroed, committed page by page when first touched. Move-only.
class Memory {
 public:
  Memory() = default;
  // Throws MemoryShort naming `what`, the bytes needed and the bytes available where they do not fit.
  Memory(int64_t num_bytes, const std::string& what);
  ~Memory();
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::byte* data() const { return data_; }
  int64_t num_bytes() const { return num_bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t num_bytes_ = 0;
};

}  // namespace ion
