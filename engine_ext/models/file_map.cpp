// mmap of a whole file.
#include "models/file_map.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "models/weight_error.h"

namespace ion {
namespace {

// Closes on every way out; the mapping outlives the descriptor.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
};

[[noreturn]] void fail(const std::string& path, const char* verb) {
  const int code = errno;
  throw WeightError("cannot " + std::string(verb) + " " + quoted_path(path) + ": " + std::strerror(code));
}

std::span<const std::byte> map_file(const std::string& path) {
  // A FIFO without a writer would be waited for, and a socket cannot be opened at all.
  const Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0 && errno == ENXIO) throw WeightError(quoted_path(path) + " is not a regular file");
  if (file.fd < 0) fail(path, "open");
  struct stat info{};
  if (fstat(file.fd, &info) != 0) fail(path, "stat");
  if (!S_ISREG(info.st_mode)) throw WeightError(quoted_path(path) + " is not a regular file");
  if (info.st_size == 0) return {};  // an empty mapping is an error to mmap, not to us
  const auto size = static_cast<size_t>(info.st_size);
  void* mapped = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (mapped == MAP_FAILED) fail(path, "map");
  return {static_cast<const std::byte*>(mapped), size};
}

}  // namespace

FileMap::FileMap(const std::string& path) : FileMap(path, map_file(path)) {}

FileMap::FileMap(const std::string& path, std::span<const std::byte> mapped)
    : path_(path), data_(mapped.data()), size_(mapped.size()), guard_(mapped.data(), mapped.size()) {}

FileMap::~FileMap() {
  guard_.release();
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

FileMap::FileMap(FileMap&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      guard_(std::move(other.guard_)) {}

void FileMap::require_whole() const {
  if (guard_.has_lost()) {
    throw WeightError("part of " + quoted_path(path_) +
                      " was gone while it was read (cut off, or its disk failed)");
  }
}

}  // namespace ion
