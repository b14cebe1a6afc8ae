// The bytes of the second KV tier, in memory and in a file: what goes out comes back, or the copy fails.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "check.h"
#include "models/kv_store.h"
#include "models/weight_error.h"

namespace ion {
namespace {

constexpr int32_t kNumBlocks = 8;
constexpr int64_t kBytes = 40000;  // no multiple of a page or of the checksum's stride

struct Folder {
  Folder() {
    std::string name = "/tmp/ion-kv-XXXXXX";
    path = mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path;
};

// A first tier of kNumBlocks blocks beside a store.
struct Rig {
  explicit Rig(const std::string& folder)
      : first(static_cast<size_t>(kNumBlocks * kBytes)),
        store({kNumBlocks, kBytes, folder},
              {[this](BlockId block, std::byte* bytes) { std::memcpy(bytes, at(block), kBytes); },
               [this](BlockId block, const std::byte* bytes) { std::memcpy(at(block), bytes, kBytes); }}) {}

  std::byte* at(BlockId block) { return first.data() + block * kBytes; }
  void fill(BlockId block, int value) { std::memset(at(block), value, static_cast<size_t>(kBytes)); }
  bool holds(BlockId block, int value) {
    return std::all_of(at(block), at(block) + kBytes, [&](std::byte b) { return b == std::byte(value); });
  }

  std::vector<std::byte> first;
  KvStore store;
};

void check_round_trips(const std::string& folder) {
  Rig rig(folder);
  for (BlockId i = 0; i < kNumBlocks; ++i) rig.fill(i, 10 + i);
  Ticket last = 0;
  for (BlockId i = 0; i < kNumBlocks; ++i) last = rig.store.copy_out(i, kNumBlocks - 1 - i);
  CHECK_EQ(rig.store.done(last, true), CopyState::kDone);
  for (BlockId i = 0; i < kNumBlocks; ++i) rig.fill(i, 0);
  std::vector<Ticket> tickets;
  for (BlockId i = 0; i < kNumBlocks; ++i) tickets.push_back(rig.store.copy_in(i, i));
  for (Ticket ticket : tickets) CHECK_EQ(rig.store.done(ticket, true), CopyState::kDone);
  for (BlockId i = 0; i < kNumBlocks; ++i) CHECK(rig.holds(i, 10 + kNumBlocks - 1 - i));
}

// Of the open files of this process, the one in `folder`, which has no name any more.
std::string unnamed_file(const std::string& folder) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry, gone).string().find(folder) == 0) return entry.path();
  }
  return {};
}

TEST(what_goes_out_to_memory_comes_back) {
  check_round_trips("");
}

TEST(what_goes_out_to_a_file_comes_back_and_leaves_no_name) {
  const Folder folder;
  check_round_trips(folder.path);
  CHECK(std::filesystem::is_empty(folder.path));
}

TEST(a_block_that_changed_on_disk_fails_alone) {
  const Folder folder;
  Rig rig(folder.path);
  rig.fill(0, 1), rig.fill(1, 2);
  rig.store.copy_out(0, 0);
  CHECK_EQ(rig.store.done(rig.store.copy_out(1, 1), true), CopyState::kDone);
  const int file = open(unnamed_file(folder.path).c_str(), O_RDWR);
  CHECK(file >= 0);
  const char flipped = 3;
  CHECK_EQ(pwrite(file, &flipped, 1, kBytes - 1), ssize_t{1});
  close(file);
  CHECK_EQ(rig.store.done(rig.store.copy_in(0, 2), true), CopyState::kFailed);
  CHECK_EQ(rig.store.done(rig.store.copy_in(1, 2), true), CopyState::kDone);
  CHECK(rig.holds(2, 2));
}

TEST(a_file_cut_short_fails) {
  const Folder folder;
  Rig rig(folder.path);
  CHECK_EQ(rig.store.done(rig.store.copy_out(0, 0), true), CopyState::kDone);
  CHECK_EQ(truncate(unnamed_file(folder.path).c_str(), kBytes / 2), 0);
  CHECK_EQ(rig.store.done(rig.store.copy_in(0, 0), true), CopyState::kFailed);
}

TEST(a_disk_that_takes_no_more_fails_the_copy) {
  const Folder folder;
  Rig rig(folder.path);
  signal(SIGXFSZ, SIG_IGN);
  rlimit old = {};
  getrlimit(RLIMIT_FSIZE, &old);
  const rlimit small = {static_cast<rlim_t>(kBytes + kBytes / 2), old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const CopyState fits = rig.store.done(rig.store.copy_out(0, 0), true);
  const CopyState does_not = rig.store.done(rig.store.copy_out(1, 1), true);
  setrlimit(RLIMIT_FSIZE, &old);
  CHECK_EQ(fits, CopyState::kDone);
  CHECK_EQ(does_not, CopyState::kFailed);
}

TEST(a_folder_that_cannot_be_used_is_named) {
  CHECK_THROWS(WeightError, Rig("/nowhere/at/all"), "kv_tier", "/nowhere/at/all");
  const Folder folder;
  CHECK_THROWS(WeightError, KvStore({INT32_MAX, int64_t{1} << 30, folder.path}, {}), "kv_tier",
               "bytes needed", "free");
}

TEST(a_store_with_copies_to_do_can_be_destroyed) {
  Rig rig("");
  for (BlockId i = 0; i < kNumBlocks; ++i) rig.store.copy_out(i, i);
}

}  // namespace
}  // namespace ion

int main(int argc, char** argv) {
  return check::main(argc, argv);
}
