// Lets a process outlive pages of a mapped file that cannot be read: cut off by whoever writes the file, or
// on a disk that fails. Knows addresses only.
#pragma once

#include <cstddef>

namespace ion {

// Guards a mapping until it is released, which must come before its end. A page of it that cannot be read
// (SIGBUS, else the end of the process) reads as zeros from then on, and so do all behind it; `has_lost` says
// so. Bus errors elsewhere go where they went before. Move-only.
class PageGuard {
 public:
  PageGuard() = default;
  PageGuard(const void* begin, size_t size);  // with very many guards alive a further one guards nothing
  ~PageGuard() { release(); }
  PageGuard(PageGuard&& other) noexcept;
  PageGuard(const PageGuard&) = delete;
  PageGuard& operator=(const PageGuard&) = delete;
  PageGuard& operator=(PageGuard&&) = delete;

  bool has_lost() const;
  void release();

 private:
  int place_ = -1;
};

}  // namespace ion
