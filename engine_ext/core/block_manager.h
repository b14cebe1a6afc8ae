// Pages of the KV cache: who owns which block, and which unowned blocks hold a prefix worth keeping.
// Knows block numbers and token ids; the memory itself belongs to the runner.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/runner.h"

namespace ion {

// One sequence's way through the prefix tree: its first num_sealed blocks have a node. The node is named by
// uid, which is never reused: a stale name (the block was evicted) is noticed, not followed.
struct PrefixChain {
  std::string salt = {};   // root of its prefixes; sequences share blocks only under equal salts
  int32_t num_sealed = 0;  // blocks [0, num_sealed) of the table were sealed or matched
  BlockId tail_block = -1;
  uint64_t tail_uid = 0;  // 0: the root
};

// Every block is in exactly one of three states:
//
//   free     no owner, contents mean nothing              num_free
//   used     1 or more owners (references)                num_used
//   cached   no owner, contents kept under a prefix node  num_cached; reused by match, taken by allocate
//
// and num_free + num_used + num_cached == num_total, always. A used block may have a node, too: it is full,
// its contents never change again, and anybody with the same prefix may share it.
//
// Prefix tree: a node stands for 16 tokens after its parent's tokens, and owns one block with their KV. It is
// found by hash and believed only after comparing parent and tokens, so equal hashes cost time, not
// correctness.
class BlockManager {
 public:
  // cache_identity: whatever else the KV of given tokens depends on. Tests narrow hash_mask to make hashes
  // collide.
  BlockManager(int32_t num_blocks, int32_t block_size, std::string cache_identity = {},
               uint64_t hash_mask = ~uint64_t{0});

  int32_t block_size() const { return block_size_; }
  int32_t num_total() const { return static_cast<int32_t>(blocks_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  int32_t num_cached() const { return static_cast<int32_t>(lru_.size()); }
  int32_t num_used() const { return num_total() - num_free() - num_cached(); }
  int32_t num_available() const { return num_free() + num_cached(); }  // what allocate can give
  int32_t num_needed(int32_t num_tokens) const { return (num_tokens + block_size_ - 1) / block_size_; }
  int32_t num_refs(BlockId block) const { return blocks_[block].num_refs; }

  // A block with one reference, its contents undefined. Takes a cached block, next_victim(), when none is
  // free. Throws std::logic_error when num_available() == 0.
  BlockId allocate();
  // The cached block that allocate takes next: the one unused for longest, or what is cached below it, since
  // a node without its parent is lost. -1: none is cached.
  BlockId next_victim() const;
  // Gives back one reference to each of a sequence's blocks, the tail first so that it is evicted first.
  void release(std::span<const BlockId> blocks);

  // The longest run of cached or shared blocks that begins `ids` under the chain's salt, never all of ids:
  // one token at least is left to compute. Without side effects; acquire takes what match found.
  std::vector<BlockId> match(const std::string& salt, std::span<const int32_t> ids) const;
  // Adds one reference to each matched block and returns the chain at their end.
  PrefixChain acquire(const std::string& salt, std::span<const BlockId> matched);
  // Of `matched`, how many are cached now, that is how much acquire lowers num_available.
  int32_t num_cached_among(std::span<const BlockId> matched) const;

  // Enters the full blocks of a sequence into the tree. `blocks` is its table, ids[0, num_valid) have valid
  // KV. Where a node for the same prefix exists already, that one stays and the sequence's block stays
  // private. Ends at a kNoBlock that it would need.
  void seal(PrefixChain& chain, std::span<const int32_t> ids, int32_t num_valid,
            std::span<const BlockId> blocks);

  // The two halves of seal, for whoever walks the tree itself (the second tier). `follow` moves the chain on
  // by one block if a node for the next tokens of `ids` exists; `extend` makes `block` that node.
  bool follow(PrefixChain& chain, std::span<const int32_t> ids) const;
  void extend(PrefixChain& chain, std::span<const int32_t> ids, BlockId block);
  // Whether the chain's end still has its node.
  bool is_current(const PrefixChain& chain) const;
  // Counts the chain's cached blocks as used just now, the root last: a parent is younger than its children.
  void touch(const PrefixChain& chain);
  // One more owner for a block that has an owner or is cached.
  void take_reference(BlockId block);
  // Removes the node of a block, if it has one, and all below it; those nobody owns are free.
  void forget(BlockId block);
  bool has_node(BlockId block) const { return blocks_[block].uid != 0; }

  // Throws std::logic_error naming the broken rule.
  void check_integrity() const;

 private:
  struct Block {
    int32_t num_refs = 0;
    uint64_t uid = 0;  // of its node, 0: none
    uint64_t parent_uid = 0;
    BlockId parent = -1;
    uint64_t hash = 0;
    uint64_t released_at = 0;  // place in lru_ while cached
    std::string salt = {};     // only below the root (parent_uid == 0)
    std::vector<int32_t> tokens = {};
    std::vector<BlockId> children = {};
  };

  uint64_t hash_of(uint64_t parent_hash, const std::string& salt, std::span<const int32_t> tokens) const;
  BlockId find(uint64_t parent_uid, uint64_t hash, const std::string& salt,
               std::span<const int32_t> tokens) const;
  // The tokens of the block behind the chain, and the hash of a node for them.
  std::span<const int32_t> next_tokens(const PrefixChain& chain, std::span<const int32_t> ids) const;
  uint64_t next_hash(const PrefixChain& chain, std::span<const int32_t> tokens) const;

  int32_t block_size_;
  uint64_t identity_hash_;
  uint64_t hash_mask_;
  std::vector<Block> blocks_;
  std::vector<BlockId> free_;                   // a stack
  std::set<std::pair<uint64_t, BlockId>> lru_;  // cached blocks by released_at, oldest first
  std::unordered_multimap<uint64_t, BlockId> nodes_;
  uint64_t next_uid_ = 1;
  uint64_t clock_ = 0;  // counts releases
};

}  // namespace ion
