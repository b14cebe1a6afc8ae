// A file's bytes, mapped read-only. Knows no format.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "models/page_guard.h"

namespace ion {

// Owns the mapping; `bytes()` is valid while the object lives. Move-only.
class FileMap {
 public:
  explicit FileMap(const std::string& path);  // throws WeightError when it cannot be opened or is no file
  ~FileMap();
  FileMap(FileMap&& other) noexcept;
  FileMap(const FileMap&) = delete;
  FileMap& operator=(const FileMap&) = delete;
  FileMap& operator=(FileMap&&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }
  // Throws WeightError if some of what was read so far was not there: it read as zeros.
  void require_whole() const;

 private:
  FileMap(const std::string& path, std::span<const std::byte> mapped);

  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  PageGuard guard_;
};

}  // namespace ion
