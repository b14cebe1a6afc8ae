// The bytes of the second KV tier, in memory or in a file, and the thread that copies. Knows blocks of equal
// size and no model.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/runner.h"
#include "models/memory.h"

namespace ion {

// Where a block lies in the first tier, as the copying thread sees it: into or out of `bytes`.
struct KvBlocks {
  std::function<void(BlockId, std::byte* bytes)> read;
  std::function<void(BlockId, const std::byte* bytes)> write;
};

struct KvStoreOptions {
  int32_t num_blocks = 0;
  int64_t block_bytes = 0;
  std::string folder;  // empty: memory; else an unnamed file there, gone with the process
};

// Copies one by one, in the order asked for. A file's blocks carry a checksum: what comes back changed, or
// cannot be written or read, is a failed copy. Reads and writes instead of a mapping, because a full or
// broken disk then is an error of one copy and not the end of the process.
class KvStore {
 public:
  // Throws WeightError where memory or the disk is too small, naming the bytes needed and free.
  KvStore(KvStoreOptions options, KvBlocks blocks);
  ~KvStore();  // copies not begun are dropped

  Ticket copy_out(BlockId block, HostBlock host);
  Ticket copy_in(HostBlock host, BlockId block);
  CopyState done(Ticket ticket, bool wait);

 private:
  struct Job {
    bool is_in;
    BlockId block;
    HostBlock host;
  };

  Ticket add(Job job);
  void work();
  bool copy(const Job& job);
  bool write_file(const Job& job);
  bool read_file(const Job& job);

  const KvStoreOptions options_;
  const KvBlocks blocks_;
  Memory memory_;                    // [num_blocks] blocks; with a file one block, the thread's own
  std::vector<uint64_t> checksums_;  // by host block, of a file's; the thread's own
  int file_ = -1;

  std::mutex mutex_;  // guards all below
  std::condition_variable has_work_, has_result_;
  std::deque<Job> waiting_;
  Ticket newest_ = 0;        // given out
  Ticket newest_over_ = 0;   // and over
  std::set<Ticket> failed_;  // over and not asked about yet
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace ion
