// See kv_store.h.
#include "models/kv_store.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "models/weight_error.h"

namespace ion {
namespace {

std::string reason() {
  return std::strerror(errno);
}

// Without a name from the start where the file system can do that, else without one right after.
int open_unnamed(const std::string& folder) {
#ifdef O_TMPFILE
  const int file = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0) return file;
#endif
  std::string name = folder + "/ionrouter-kv-XXXXXX";
  const int named = mkostemp(name.data(), O_CLOEXEC);
  if (named < 0) throw WeightError("kv_tier: no file can be made in " + quoted(folder) + ": " + reason());
  unlink(name.c_str());
  return named;
}

void require_disk(const std::string& folder, int64_t num_bytes) {
  struct statvfs disk = {};
  if (statvfs(folder.c_str(), &disk) != 0) {
    throw WeightError("kv_tier: " + quoted(folder) + " cannot be looked at: " + reason());
  }
  const auto free_bytes = static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
  if (num_bytes > free_bytes) {
    throw WeightError("kv_tier: too little space in " + quoted(folder) + ": " + std::to_string(num_bytes) +
                      " bytes needed, " + std::to_string(free_bytes) + " free");
  }
}

// Four independent lanes of multiply and shift (the constants are SplitMix64's), so that it runs at the speed
// of memory. Against decay, not against people.
uint64_t checksum(const std::byte* bytes, int64_t num_bytes) {
  constexpr uint64_t kMultipliers[] = {0xBF58476D1CE4E5B9ull, 0x94D049BB133111EBull};
  uint64_t lanes[4] = {1, 2, 3, 4};
  for (int64_t at = 0; at < num_bytes; at += 32) {
    uint64_t words[4] = {};
    std::memcpy(words, bytes + at, static_cast<size_t>(std::min<int64_t>(32, num_bytes - at)));
    for (int i = 0; i < 4; ++i) {
      lanes[i] = (lanes[i] ^ words[i]) * kMultipliers[0];
      lanes[i] ^= lanes[i] >> 31;
    }
  }
  uint64_t sum = static_cast<uint64_t>(num_bytes);
  for (uint64_t lane : lanes) sum = (sum ^ lane ^ (lane >> 29)) * kMultipliers[1];
  return sum ^ (sum >> 32);
}

// Whole, whatever signals and short transfers do.
template <typename Transfer, typename Byte>
bool move_all(Transfer transfer, int file, Byte* bytes, int64_t num_bytes, int64_t at) {
  while (num_bytes > 0) {
    const ssize_t moved = transfer(file, bytes, static_cast<size_t>(num_bytes), at);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return false;
    bytes += moved, at += moved, num_bytes -= moved;
  }
  return true;
}

}  // namespace

KvStore::KvStore(KvStoreOptions options, KvBlocks blocks)
    : options_(std::move(options)), blocks_(std::move(blocks)) {
  const int64_t num_bytes = options_.num_blocks * options_.block_bytes;
  if (options_.folder.empty()) {
    memory_ = Memory(num_bytes, "the second KV tier");
  } else {
    require_disk(options_.folder, num_bytes);
    memory_ = Memory(options_.block_bytes, "the second KV tier");
    checksums_.resize(static_cast<size_t>(options_.num_blocks));
    file_ = open_unnamed(options_.folder);
  }
  thread_ = std::thread([this] { work(); });
}

KvStore::~KvStore() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  has_work_.notify_one();
  thread_.join();
  if (file_ >= 0) close(file_);
}

Ticket KvStore::copy_out(BlockId block, HostBlock host) {
  return add({false, block, host});
}

Ticket KvStore::copy_in(HostBlock host, BlockId block) {
  return add({true, block, host});
}

Ticket KvStore::add(Job job) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back(job);
  has_work_.notify_one();
  return ++newest_;
}

CopyState KvStore::done(Ticket ticket, bool wait) {
  std::unique_lock lock(mutex_);
  if (wait) has_result_.wait(lock, [&] { return newest_over_ >= ticket; });
  if (newest_over_ < ticket) return CopyState::kPending;
  return failed_.erase(ticket) > 0 ? CopyState::kFailed : CopyState::kDone;
}

void KvStore::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    has_work_.wait(lock, [this] { return is_stopping_ || !waiting_.empty(); });
    if (is_stopping_) return;
    const Job job = waiting_.front();
    waiting_.pop_front();
    lock.unlock();
    const bool is_whole = copy(job);
    lock.lock();
    ++newest_over_;
    if (!is_whole) failed_.insert(newest_over_);
    has_result_.notify_one();
  }
}

bool KvStore::copy(const Job& job) {
  if (file_ >= 0) return job.is_in ? read_file(job) : write_file(job);
  std::byte* bytes = memory_.data() + job.host * options_.block_bytes;
  job.is_in ? blocks_.write(job.block, bytes) : blocks_.read(job.block, bytes);
  return true;
}

bool KvStore::write_file(const Job& job) {
  blocks_.read(job.block, memory_.data());
  checksums_[static_cast<size_t>(job.host)] = checksum(memory_.data(), options_.block_bytes);
  return move_all(pwrite, file_, memory_.data(), options_.block_bytes, job.host * options_.block_bytes);
}

bool KvStore::read_file(const Job& job) {
  if (!move_all(pread, file_, memory_.data(), options_.block_bytes, job.host * options_.block_bytes))
    return false;
  if (checksum(memory_.data(), options_.block_bytes) != checksums_[static_cast<size_t>(job.host)])
    return false;
  blocks_.write(job.block, memory_.data());
  return true;
}

}  // namespace ion
