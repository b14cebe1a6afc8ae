// Mapped files: pages that are gone are told and end nobody.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "models/file_map.h"
#include "models/weight_error.h"

namespace ion {
namespace {

constexpr size_t kBytes = size_t{1} << 20;

struct File {
  File() {
    path = "/tmp/ion-map-XXXXXX";
    const int fd = mkstemp(path.data());
    const std::vector<char> ones(kBytes, 1);
    CHECK(write(fd, ones.data(), kBytes) == static_cast<ssize_t>(kBytes));
    close(fd);
  }
  ~File() { unlink(path.c_str()); }
  std::string path;
};

size_t sum(const FileMap& map) {
  size_t total = 0;
  for (std::byte byte : map.bytes()) total += static_cast<size_t>(byte);
  return total;
}

bool is_whole(const FileMap& map) {
  try {
    map.require_whole();
    return true;
  } catch (const WeightError& error) {
    CHECK(std::string(error.what()).find("gone while it was read") != std::string::npos);
    return false;
  }
}

TEST(a_file_that_is_cut_off_reads_as_zeros_and_is_told) {
  const File cut, other;
  FileMap opened(cut.path), whole(other.path);
  FileMap map(std::move(opened));
  CHECK(sum(map) == kBytes && is_whole(map));
  CHECK(truncate(cut.path.c_str(), kBytes / 2) == 0);
  CHECK(sum(map) == kBytes / 2);
  CHECK(!is_whole(map));
  CHECK(sum(whole) == kBytes && is_whole(whole));
  CHECK(sum(map) == kBytes / 2);
}

TEST(places_are_used_again_and_too_many_files_are_still_read) {
  const File file;
  for (int round = 0; round < 3; ++round) {
    std::vector<FileMap> maps;
    for (int i = 0; i < 300; ++i) maps.emplace_back(file.path);
    CHECK(is_whole(maps.front()) && is_whole(maps.back()));
  }
  const File cut;
  const FileMap map(cut.path);
  CHECK(truncate(cut.path.c_str(), 0) == 0);
  CHECK(sum(map) == 0 && !is_whole(map));
}

TEST(bus_errors_elsewhere_end_the_process_as_ever) {
  const File guarded, file;
  const FileMap map(guarded.path);
  const int fd = open(file.path.c_str(), O_RDONLY);
  auto* bytes = static_cast<volatile char*>(mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE, fd, 0));
  CHECK(truncate(file.path.c_str(), 0) == 0);
  const pid_t child = fork();
  if (child == 0) _exit(bytes[kBytes / 2]);
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(!WIFEXITED(status) || WEXITSTATUS(status) != 0);
  close(fd);
}

}  // namespace
}  // namespace ion

int main(int argc, char** argv) {
  return check::main(argc, argv);
}
