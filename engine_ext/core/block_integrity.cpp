// The rules of BlockManager, checked one by one. Apart from the manager so that it reads without them.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "core/block_manager.h"

namespace ion {
namespace {

void require(bool holds, const char* rule, BlockId block) {
  if (!holds) throw std::logic_error("block " + std::to_string(block) + ": " + rule);
}

}  // namespace

void BlockManager::check_integrity() const {
  std::vector<int32_t> num_seen(blocks_.size(), 0);
  for (BlockId block : free_) {
    ++num_seen[block];
    require(blocks_[block].uid == 0, "is free but has a prefix node", block);
    require(blocks_[block].num_refs == 0, "is free but has an owner", block);
  }
  for (const auto& [released_at, block] : lru_) {
    ++num_seen[block];
    require(blocks_[block].uid != 0, "is cached but has no prefix node", block);
    require(blocks_[block].num_refs == 0, "is cached but has an owner", block);
    require(blocks_[block].released_at == released_at, "is cached under another time", block);
  }
  for (BlockId id = 0; id < num_total(); ++id) {
    const Block& block = blocks_[id];
    require(block.num_refs >= 0, "has fewer than no owners", id);
    require(num_seen[id] == (block.num_refs == 0 ? 1 : 0), "is not in exactly one of free, cached, used", id);
    if (block.uid == 0) continue;
    auto [it, end] = nodes_.equal_range(block.hash);
    require(std::any_of(it, end, [&](const auto& entry) { return entry.second == id; }), "is not indexed",
            id);
    require(block.tokens.size() == static_cast<size_t>(block_size_), "is cached but not full", id);
    if (block.parent_uid == 0) continue;
    const Block& parent = blocks_[block.parent];
    require(parent.uid == block.parent_uid, "outlived its parent", id);
    require(std::ranges::count(parent.children, id) == 1, "is not its parent's child", id);
  }
  const auto num_nodes = std::ranges::count_if(blocks_, [](const Block& block) { return block.uid != 0; });
  require(static_cast<size_t>(num_nodes) == nodes_.size(), "index and nodes differ in number", -1);
}

}  // namespace ion
