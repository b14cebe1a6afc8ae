// The second tier of the KV cache: which sealed blocks have a copy in host memory or a file, and the copies
// under way. Knows block numbers and tickets; the bytes are the runner's.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/block_manager.h"
#include "core/runner.h"

namespace ion {

// Blocks on their way back to the first tier for one sequence.
struct Fetch {
  bool is_over = false;   // every copy has ended: the blocks may be used
  int32_t num_whole = 0;  // how many of them, from the first on, hold what they should
};

struct TierCounters {
  int64_t copies_out = 0;
  int64_t copies_in = 0;
  int64_t copies_failed = 0;  // of both
};

// A sealed block never changes, so it is copied out at once, and taking it away from the first tier is then
// forgetting. The tier's books are those of the first (BlockManager over host blocks: free, used, cached,
// prefix tree, token compare, salts, least recently used first):
//
//   device block   used by its sequence | +1 reference while copied    | ... | forgotten
//   host block     free -> used while copied out -> cached (findable) -> used while copied in -> cached
//
// A copy holds one reference to each of its two blocks until it is over, so neither is reused before. A copy
// that fails takes its host block's node with it: a miss, never wrong data.
class KvTier {
 public:
  // `runner` and `device` outlive the tier.
  KvTier(Runner& runner, BlockManager& device, std::string cache_identity);

  // Starts copying out what the tier lacks of a sequence's full blocks. `chain` is the sequence's place in
  // the tier, `blocks` its table; positions [0, num_valid) are valid and sealed.
  void write_back(PrefixChain& chain, std::span<const int32_t> ids, int32_t num_valid,
                  std::span<const BlockId> blocks);
  // The longest run of host blocks that begins `ids`, never all of ids.
  std::vector<HostBlock> match(const std::string& salt, std::span<const int32_t> ids) const;
  // Starts copying `from`, which match has just found, into `to`, block by block.
  std::shared_ptr<const Fetch> fetch(std::span<const HostBlock> from, std::span<const BlockId> to);

  bool is_copying() const { return !batches_.empty(); }
  // Takes in what is over; `wait` sleeps for the oldest, one that somebody waits for before others.
  void poll(bool wait);

  // Adds to num_owners[block] the references that copies hold in the first tier.
  void count_references(std::vector<int32_t>& num_owners) const;
  const BlockManager& blocks() const { return host_; }
  const TierCounters& counters() const { return counters_; }
  // Throws std::logic_error naming the broken rule.
  void check_integrity() const;

 private:
  struct Copy {
    Ticket ticket;
    BlockId block;
    HostBlock host;
    CopyState state = CopyState::kPending;
  };
  // Copies that began together, parents before children, and are over together.
  struct Batch {
    std::vector<Copy> copies;
    PrefixChain chain;             // where they end
    std::shared_ptr<Fetch> fetch;  // copies in; null: copies out
  };

  bool can_make_room(const PrefixChain& chain) const;
  bool try_extend(PrefixChain& chain, std::span<const int32_t> ids, BlockId block, Batch& batch);
  bool is_over(Batch& batch, bool wait);
  void finish(Batch& batch);

  Runner& runner_;
  BlockManager& device_;
  BlockManager host_;
  std::vector<bool> is_whole_;  // by host block: its copy out has succeeded
  std::list<Batch> batches_;    // oldest first
  int32_t num_out_ = 0;         // copies out under way
  TierCounters counters_;
};

}  // namespace ion
