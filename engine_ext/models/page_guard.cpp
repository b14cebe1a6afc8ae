// The handler of SIGBUS and the table that it reads: atomics alone, since it may interrupt anything.
#include "models/page_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <mutex>
#include <utility>

namespace ion {
namespace {

struct Guarded {
  std::atomic<bool> is_taken = false, has_lost = false;
  std::atomic<uintptr_t> begin = 0;  // 0: none yet, or no longer
  std::atomic<size_t> size = 0;
};

std::array<Guarded, 256> table;
uintptr_t page_bytes = 0;
struct sigaction former;

// Puts zeros in the place of what cannot be read; false if the address is nobody's.
bool replace(uintptr_t address) {
  for (Guarded& guarded : table) {
    const uintptr_t begin = guarded.begin.load();
    const size_t size = guarded.size.load();
    if (begin == 0 || address < begin || address - begin >= size) continue;
    guarded.has_lost.store(true);
    const uintptr_t page = address / page_bytes * page_bytes;
    void* mapped = mmap(reinterpret_cast<void*>(page), begin + size - page, PROT_READ,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    return mapped != MAP_FAILED;
  }
  return false;
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
  const int code = errno;
  // A positive code is the kernel's; else somebody sent the signal, and there is no address.
  const bool is_replaced = info->si_code > 0 && replace(reinterpret_cast<uintptr_t>(info->si_addr));
  errno = code;
  if (is_replaced) return;
  if ((former.sa_flags & SA_SIGINFO) != 0) {
    former.sa_sigaction(signal, info, context);
  } else if (former.sa_handler != SIG_DFL && former.sa_handler != SIG_IGN) {
    former.sa_handler(signal);
  } else {
    sigaction(signal, &former, nullptr);
    raise(signal);  // once this handler has returned
  }
}

void install() {
  page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  struct sigaction ours{};
  ours.sa_sigaction = on_bus_error;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  sigaction(SIGBUS, nullptr, &former);  // known before ours can run
  sigaction(SIGBUS, &ours, nullptr);
}

}  // namespace

PageGuard::PageGuard(const void* begin, size_t size) {
  static std::once_flag once;
  std::call_once(once, install);
  for (size_t place = 0; place < table.size(); ++place) {
    Guarded& guarded = table[place];
    if (guarded.is_taken.exchange(true)) continue;
    guarded.has_lost.store(false);
    guarded.size.store(size);
    guarded.begin.store(reinterpret_cast<uintptr_t>(begin));
    place_ = static_cast<int>(place);
    return;
  }
}

PageGuard::PageGuard(PageGuard&& other) noexcept : place_(std::exchange(other.place_, -1)) {}

bool PageGuard::has_lost() const {
  return place_ >= 0 && table[place_].has_lost.load();
}

void PageGuard::release() {
  if (place_ < 0) return;
  table[place_].begin.store(0);
  table[place_].is_taken.store(false);
  place_ = -1;
}

}  // namespace ion
