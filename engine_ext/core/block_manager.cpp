// Paged KV accounts and the prefix tree. See block_manager.h.
#include "core/block_manager.h"

#include <algorithm>
#include <stdexcept>
#include <string_view>

namespace ion {
namespace {

// Every field of a key is hashed behind its own tag and length, so that no two different lists of fields feed
// the same bytes ("ab" + "c" against "a" + "bc", a salt that looks like an identity).
enum Tag : uint64_t { kTagIdentity = 1, kTagSalt, kTagParent, kTagTokens };

// The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): a bijection in which every bit moves half
// the others.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

uint64_t combine(uint64_t hash, uint64_t value) {
  return mix(hash + 0x9E3779B97F4A7C15ull + mix(value));
}

uint64_t hash_bytes(Tag tag, std::string_view bytes) {
  uint64_t hash = combine(tag, bytes.size());
  for (char c : bytes) hash = combine(hash, static_cast<uint8_t>(c));
  return hash;
}

}  // namespace

BlockManager::BlockManager(int32_t num_blocks, int32_t block_size, std::string cache_identity,
                           uint64_t hash_mask)
    : block_size_(block_size),
      identity_hash_(hash_bytes(kTagIdentity, cache_identity)),
      hash_mask_(hash_mask) {
  if (num_blocks < 1) throw std::invalid_argument("num_blocks: the KV pool has no blocks");
  if (block_size < 1) throw std::invalid_argument("block_size: must be at least 1");
  blocks_.resize(static_cast<size_t>(num_blocks));
  for (BlockId block = num_blocks - 1; block >= 0; --block) free_.push_back(block);
}

BlockId BlockManager::allocate() {
  if (free_.empty()) {
    if (lru_.empty()) throw std::logic_error("allocate: no block is available");
    // Forgetting moves the block to free_, and with it whatever hung below it unowned.
    forget(next_victim());
  }
  const BlockId block = free_.back();
  free_.pop_back();
  blocks_[block].num_refs = 1;
  return block;
}

BlockId BlockManager::next_victim() const {
  if (lru_.empty()) return -1;
  const auto is_cached = [&](BlockId child) { return blocks_[child].num_refs == 0; };
  BlockId victim = lru_.begin()->second;
  for (;;) {
    const auto& children = blocks_[victim].children;
    const auto child = std::ranges::find_if(children, is_cached);
    if (child == children.end()) return victim;
    victim = *child;
  }
}

void BlockManager::release(std::span<const BlockId> blocks) {
  for (auto it = blocks.rbegin(); it != blocks.rend(); ++it) {
    Block& block = blocks_[*it];
    if (block.num_refs < 1) throw std::logic_error("release: the block has no owner");
    if (--block.num_refs > 0) continue;
    if (block.uid == 0) {
      free_.push_back(*it);
      continue;
    }
    // Later in this loop is nearer the root and gets the younger stamp: a tail goes before what it stands on.
    block.released_at = ++clock_;
    lru_.emplace(block.released_at, *it);
  }
}

void BlockManager::take_reference(BlockId id) {
  Block& block = blocks_[id];
  if (block.num_refs++ == 0) lru_.erase({block.released_at, id});
}

uint64_t BlockManager::hash_of(uint64_t parent_hash, const std::string& salt,
                               std::span<const int32_t> tokens) const {
  uint64_t hash = identity_hash_;
  // The salt enters at the root and reaches the blocks below through their parents.
  hash = parent_hash == 0 ? combine(hash, hash_bytes(kTagSalt, salt))
                          : combine(combine(hash, kTagParent), parent_hash);
  hash = combine(combine(hash, kTagTokens), tokens.size());
  for (int32_t token : tokens) hash = combine(hash, static_cast<uint32_t>(token));
  hash &= hash_mask_;
  return hash == 0 ? 1 : hash;  // 0 means "no parent"
}

BlockId BlockManager::find(uint64_t parent_uid, uint64_t hash, const std::string& salt,
                           std::span<const int32_t> tokens) const {
  auto [it, end] = nodes_.equal_range(hash);
  for (; it != end; ++it) {
    const Block& node = blocks_[it->second];
    const bool is_same_place = node.parent_uid == parent_uid && (parent_uid != 0 || node.salt == salt);
    if (is_same_place && std::ranges::equal(node.tokens, tokens)) return it->second;
  }
  return -1;
}

std::vector<BlockId> BlockManager::match(const std::string& salt, std::span<const int32_t> ids) const {
  std::vector<BlockId> matched;
  const size_t size = static_cast<size_t>(block_size_);
  uint64_t parent_uid = 0, hash = 0;
  // Strictly less: the last token is always computed, because its logits are wanted.
  for (size_t end = size; end < ids.size(); end += size) {
    const auto tokens = ids.subspan(end - size, size);
    hash = hash_of(hash, salt, tokens);
    const BlockId block = find(parent_uid, hash, salt, tokens);
    if (block < 0) break;
    matched.push_back(block);
    parent_uid = blocks_[block].uid;
  }
  return matched;
}

PrefixChain BlockManager::acquire(const std::string& salt, std::span<const BlockId> matched) {
  for (BlockId block : matched) take_reference(block);
  PrefixChain chain{.salt = salt, .num_sealed = static_cast<int32_t>(matched.size())};
  if (!matched.empty()) {
    chain.tail_block = matched.back();
    chain.tail_uid = blocks_[chain.tail_block].uid;
  }
  return chain;
}

int32_t BlockManager::num_cached_among(std::span<const BlockId> matched) const {
  return static_cast<int32_t>(
      std::ranges::count_if(matched, [&](BlockId block) { return blocks_[block].num_refs == 0; }));
}

bool BlockManager::is_current(const PrefixChain& chain) const {
  return chain.tail_uid == 0 || blocks_[chain.tail_block].uid == chain.tail_uid;
}

void BlockManager::seal(PrefixChain& chain, std::span<const int32_t> ids, int32_t num_valid,
                        std::span<const BlockId> blocks) {
  // The node at the tail may be another sequence's, evicted since: enter the whole prefix again, from own
  // blocks.
  if (!is_current(chain)) chain = PrefixChain{.salt = chain.salt};
  while ((chain.num_sealed + 1) * block_size_ <= num_valid) {
    // Followed: somebody sealed the same prefix first. Theirs is the node; ours stays a private copy, free
    // once we release it, and the chain goes on below theirs.
    if (follow(chain, ids)) continue;
    const BlockId block = blocks[static_cast<size_t>(chain.num_sealed)];
    if (block == kNoBlock) return;  // evicted, and given back before: nothing to enter it from
    extend(chain, ids, block);
  }
}

std::span<const int32_t> BlockManager::next_tokens(const PrefixChain& chain,
                                                   std::span<const int32_t> ids) const {
  const auto size = static_cast<size_t>(block_size_);
  return ids.subspan(static_cast<size_t>(chain.num_sealed) * size, size);
}

uint64_t BlockManager::next_hash(const PrefixChain& chain, std::span<const int32_t> tokens) const {
  return hash_of(chain.tail_uid == 0 ? 0 : blocks_[chain.tail_block].hash, chain.salt, tokens);
}

bool BlockManager::follow(PrefixChain& chain, std::span<const int32_t> ids) const {
  const auto tokens = next_tokens(chain, ids);
  const BlockId node = find(chain.tail_uid, next_hash(chain, tokens), chain.salt, tokens);
  if (node < 0) return false;
  ++chain.num_sealed;
  chain.tail_block = node;
  chain.tail_uid = blocks_[node].uid;
  return true;
}

void BlockManager::extend(PrefixChain& chain, std::span<const int32_t> ids, BlockId id) {
  // A block has one node: one left from an earlier chain gives way.
  forget(id);
  const auto tokens = next_tokens(chain, ids);
  Block& block = blocks_[id];
  block.hash = next_hash(chain, tokens);
  block.uid = next_uid_++;
  block.parent_uid = chain.tail_uid;
  block.parent = chain.tail_block;
  block.tokens.assign(tokens.begin(), tokens.end());
  if (chain.tail_uid == 0) {
    block.salt = chain.salt;
  } else {
    blocks_[chain.tail_block].children.push_back(id);
  }
  nodes_.emplace(block.hash, id);
  ++chain.num_sealed;
  chain.tail_block = id;
  chain.tail_uid = block.uid;
}

void BlockManager::touch(const PrefixChain& chain) {
  if (!is_current(chain)) return;
  uint64_t uid = chain.tail_uid;
  for (BlockId id = chain.tail_block; uid != 0; uid = blocks_[id].parent_uid, id = blocks_[id].parent) {
    Block& block = blocks_[id];
    if (block.num_refs > 0) continue;
    lru_.erase({block.released_at, id});
    block.released_at = ++clock_;
    lru_.emplace(block.released_at, id);
  }
}

void BlockManager::forget(BlockId id) {
  if (!has_node(id)) return;
  if (const Block& block = blocks_[id]; block.parent_uid != 0) std::erase(blocks_[block.parent].children, id);
  // What lies below can no longer be found from the root: its nodes go too. An explicit stack, because a
  // chain is as deep as the context has blocks.
  std::vector<BlockId> stack = {id};
  while (!stack.empty()) {
    const BlockId top = stack.back();
    stack.pop_back();
    Block& block = blocks_[top];
    stack.insert(stack.end(), block.children.begin(), block.children.end());
    auto [it, end] = nodes_.equal_range(block.hash);
    nodes_.erase(std::find_if(it, end, [&](const auto& entry) { return entry.second == top; }));
    if (block.num_refs == 0) {
      lru_.erase({block.released_at, top});
      free_.push_back(top);
    }
    block = Block{.num_refs = block.num_refs};
  }
}

}  // namespace ion
