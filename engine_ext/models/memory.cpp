// Anonymous mappings, huge pages where the system gives them: a decode step reads every weight once, so page
// walks are a visible part of it.
#include "models/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <mutex>
#include <utility>

#include "models/control_group.h"
#include "models/weight_error.h"

namespace ion {
namespace {

// MemAvailable counts what the page cache would give back; free pages alone would be far too pessimistic.
int64_t machine_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string word; file >> word;) {
    int64_t kib = 0;
    if (word == "MemAvailable:" && file >> kib) return kib * 1024;
  }
  const int64_t pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
  return pages > 0 && page_bytes > 0 ? pages * page_bytes : kNoLimit;
}

// Models load side by side: looking at what is free and taking it is one act.
std::mutex ledger_mutex;
int64_t ledger_bytes = 0;  // of all Memory alive

int64_t resident_bytes() {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    int64_t kib = 0;
    if (word == "RssAnon:" && file >> kib) return kib * 1024;
  }
  return 0;
}

// Pages are committed when first touched, so what the system calls free includes what is promised already.
// Anonymous pages of others in this process count as touched promises, which errs by little.
int64_t available_to(int64_t promised_bytes) {
  const int64_t free_bytes = std::min(machine_bytes(), control_group_bytes());
  const int64_t touched = promised_bytes > 0 ? std::min(resident_bytes(), promised_bytes) : 0;
  return std::max<int64_t>(0, free_bytes - (promised_bytes - touched));
}

}  // namespace

int64_t available_memory_bytes() {
  const std::lock_guard lock(ledger_mutex);
  return available_to(ledger_bytes);
}

int64_t promised_memory_bytes() {
  const std::lock_guard lock(ledger_mutex);
  return ledger_bytes;
}

Memory::Memory(int64_t num_bytes, const std::string& what) : num_bytes_(num_bytes) {
  if (num_bytes == 0) return;
  const std::lock_guard lock(ledger_mutex);
  const int64_t available = available_to(ledger_bytes);
  void* mapped = MAP_FAILED;
  if (num_bytes <= available) {
    mapped = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  if (mapped == MAP_FAILED) {
    throw MemoryShort("too little memory for " + what + ": " + std::to_string(num_bytes) + " bytes needed, " +
                      std::to_string(available) + " available");
  }
#ifdef MADV_HUGEPAGE
  madvise(mapped, num_bytes, MADV_HUGEPAGE);  // a hint; refusal changes nothing but speed
#endif
  data_ = static_cast<std::byte*>(mapped);
  ledger_bytes += num_bytes;
}

Memory::~Memory() {
  if (data_ == nullptr) return;
  munmap(data_, num_bytes_);
  const std::lock_guard lock(ledger_mutex);
  ledger_bytes -= num_bytes_;
}

Memory::Memory(Memory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), num_bytes_(std::exchange(other.num_bytes_, 0)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(num_bytes_, other.num_bytes_);
  return *this;
}

}  // namespace ion
