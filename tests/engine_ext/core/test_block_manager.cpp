// BlockManager: accounts, reuse of prefixes, eviction, and the invariant under random use.
#include <map>
#include <random>

#include "check.h"
#include "core/block_manager.h"

using ion::BlockId;
using ion::BlockManager;
using ion::PrefixChain;

namespace {

std::vector<int32_t> iota(int32_t length, int32_t first = 0) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < length; ++i) ids.push_back(first + i);
  return ids;
}

struct Holder {
  std::vector<int32_t> ids;
  std::vector<BlockId> blocks;
  PrefixChain chain;
};

// What the scheduler does: take what is cached, allocate the rest; the caller seals.
Holder hold(BlockManager& manager, std::vector<int32_t> ids, const std::string& salt = "") {
  Holder holder;
  holder.blocks = manager.match(salt, ids);
  holder.chain = manager.acquire(salt, holder.blocks);
  const int32_t num_needed = manager.num_needed(static_cast<int32_t>(ids.size()));
  while (static_cast<int32_t>(holder.blocks.size()) < num_needed) holder.blocks.push_back(manager.allocate());
  holder.ids = std::move(ids);
  return holder;
}

void seal(BlockManager& manager, Holder& holder) {
  manager.seal(holder.chain, holder.ids, static_cast<int32_t>(holder.ids.size()), holder.blocks);
  manager.check_integrity();
}

}  // namespace

TEST(blocks_are_given_out_once_and_come_back) {
  BlockManager manager(4, 16);
  std::vector<BlockId> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(manager.allocate());
  std::vector<BlockId> sorted = blocks;
  std::sort(sorted.begin(), sorted.end());
  CHECK_EQ(sorted, (std::vector<BlockId>{0, 1, 2, 3}));
  CHECK_THROWS(std::logic_error, manager.allocate(), "no block");
  manager.release(blocks);
  CHECK_EQ(manager.num_free(), 4);
  CHECK_THROWS(std::logic_error, manager.release(blocks), "no owner");
}

TEST(full_blocks_are_found_again_but_never_the_whole_prompt) {
  BlockManager manager(8, 4);
  Holder first = hold(manager, iota(12));
  seal(manager, first);
  CHECK_EQ(manager.match("", iota(12)).size(), size_t{2});
  CHECK_EQ(manager.match("", iota(13)).size(), size_t{3});
  CHECK_EQ(manager.match("", iota(4)).size(), size_t{0});
  CHECK_EQ(manager.match("", iota(13, 1)).size(), size_t{0});
}

TEST(shared_blocks_have_an_owner_until_the_last_lets_go) {
  BlockManager manager(8, 4);
  Holder first = hold(manager, iota(9));
  seal(manager, first);
  Holder second = hold(manager, iota(9));
  CHECK_EQ(second.chain.num_sealed, 2);
  CHECK_EQ(second.blocks[0], first.blocks[0]);
  CHECK_EQ(manager.num_used(), 4);
  manager.release(first.blocks);
  CHECK_EQ(manager.num_used(), 3);
  manager.release(second.blocks);
  CHECK_EQ(manager.num_used(), 0);
  CHECK_EQ(manager.num_cached(), 2);
  CHECK_EQ(manager.num_free(), 6);
  manager.check_integrity();
}

TEST(prefixes_are_kept_apart_by_salt_and_by_identity) {
  BlockManager manager(16, 4, "model a");
  Holder first = hold(manager, iota(9), "tenant");
  seal(manager, first);
  CHECK_EQ(manager.match("tenant", iota(9)).size(), size_t{2});
  CHECK_EQ(manager.match("", iota(9)).size(), size_t{0});
  CHECK_EQ(manager.match("tenant2", iota(9)).size(), size_t{0});
}

TEST(the_same_tokens_after_another_prefix_are_another_block) {
  BlockManager manager(16, 4);
  Holder first = hold(manager, {1, 1, 1, 1, 2, 2, 2, 2, 9});
  seal(manager, first);
  CHECK_EQ(manager.match("", std::vector<int32_t>{3, 3, 3, 3, 2, 2, 2, 2, 9}).size(), size_t{0});
  CHECK_EQ(manager.match("", std::vector<int32_t>{2, 2, 2, 2, 9}).size(), size_t{0});
  Holder second = hold(manager, {3, 3, 3, 3, 2, 2, 2, 2, 9});
  seal(manager, second);
  CHECK_EQ(manager.match("", second.ids), (std::vector<BlockId>{second.blocks[0], second.blocks[1]}));
}

TEST(the_block_unused_for_longest_is_evicted_first_and_a_tail_before_its_head) {
  BlockManager manager(4, 4);
  Holder old = hold(manager, iota(8));
  seal(manager, old);
  Holder young = hold(manager, iota(8, 100));
  seal(manager, young);
  manager.release(old.blocks);
  manager.release(young.blocks);
  CHECK_EQ(manager.num_cached(), 4);
  CHECK_EQ(manager.allocate(), old.blocks[1]);
  manager.check_integrity();
  CHECK_EQ(manager.match("", iota(9)).size(), size_t{1});
  CHECK_EQ(manager.allocate(), old.blocks[0]);
  CHECK_EQ(manager.match("", iota(9)).size(), size_t{0});
  CHECK_EQ(manager.match("", iota(9, 100)).size(), size_t{2});
}

TEST(use_makes_a_cached_prefix_young_again) {
  BlockManager manager(4, 4);
  Holder one = hold(manager, iota(4)), two = hold(manager, iota(4, 100));
  seal(manager, one);
  seal(manager, two);
  manager.release(one.blocks);
  manager.release(two.blocks);
  Holder again = hold(manager, iota(5));
  manager.release(again.blocks);
  while (manager.num_free() > 0) manager.allocate();
  CHECK_EQ(manager.allocate(), two.blocks[0]);
}

TEST(of_two_who_compute_the_same_prefix_the_first_block_stays_the_known_one) {
  BlockManager manager(8, 4);
  Holder first = hold(manager, iota(9)), second = hold(manager, iota(9));
  seal(manager, first);
  seal(manager, second);
  CHECK_EQ(manager.match("", iota(9)), (std::vector<BlockId>{first.blocks[0], first.blocks[1]}));
  manager.release(second.blocks);
  CHECK_EQ(manager.num_cached(), 0);
  CHECK_EQ(manager.num_free(), 5);
}

TEST(a_chain_whose_tail_was_evicted_is_entered_again_from_own_blocks) {
  BlockManager manager(6, 4);
  Holder first = hold(manager, iota(4)), second = hold(manager, iota(4));
  seal(manager, first);
  seal(manager, second);  // stands on the first one's block
  manager.release(first.blocks);
  std::vector<BlockId> rest;
  while (manager.num_available() > 1) rest.push_back(manager.allocate());
  second.blocks.push_back(manager.allocate());  // evicts it
  for (int32_t id : iota(4, 4)) second.ids.push_back(id);
  seal(manager, second);
  CHECK_EQ(manager.match("", iota(9)), second.blocks);
}

TEST(evicting_a_head_takes_what_hangs_below_out_of_the_tree_but_not_from_its_owner) {
  BlockManager manager(6, 4);
  Holder first = hold(manager, iota(4)), second = hold(manager, iota(4));
  seal(manager, first);
  seal(manager, second);
  second.blocks.push_back(manager.allocate());
  for (int32_t id : iota(4, 4)) second.ids.push_back(id);
  seal(manager, second);  // a child of the first one's block
  manager.release(first.blocks);
  while (manager.num_available() > 0) {
    manager.allocate();
    manager.check_integrity();
  }
  CHECK_EQ(manager.match("", iota(9)).size(), size_t{0});
  CHECK_EQ(manager.num_refs(second.blocks[1]), 1);
  manager.release(second.blocks);
  CHECK_EQ(manager.num_free(), 2);
  manager.check_integrity();
}

TEST(equal_hashes_are_told_apart_by_tokens_parent_and_salt) {
  BlockManager manager(16, 4, "", 0);
  Holder first = hold(manager, {1, 1, 1, 1, 2, 2, 2, 2, 9});
  seal(manager, first);
  CHECK_EQ(manager.match("", first.ids).size(), size_t{2});
  CHECK_EQ(manager.match("", std::vector<int32_t>{1, 1, 1, 3, 9}).size(), size_t{0});
  CHECK_EQ(manager.match("", std::vector<int32_t>{2, 2, 2, 2, 9}).size(), size_t{0});
  CHECK_EQ(manager.match("", std::vector<int32_t>{1, 1, 1, 1, 1, 1, 1, 1, 9}).size(), size_t{1});
  CHECK_EQ(manager.match("tenant", first.ids).size(), size_t{0});
}

TEST(free_used_and_cached_make_up_the_total_under_random_use) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 60; ++round) {
    check::context() = "round " + std::to_string(round);
    BlockManager manager(static_cast<int32_t>(4 + random() % 20), static_cast<int32_t>(1 + random() % 4), "",
                         round % 2 ? 3 : ~uint64_t{0});
    std::vector<Holder> holders;
    // What the blocks hold, by the ids written into them: a match must find exactly its own ids.
    std::map<BlockId, std::vector<int32_t>> contents;
    for (int turn = 0; turn < 200; ++turn) {
      if (random() % 2 == 0 && !holders.empty()) {
        std::swap(holders[random() % holders.size()], holders.back());
        if (random() % 2) seal(manager, holders.back());
        manager.release(holders.back().blocks);
        holders.pop_back();
      } else {
        std::vector<int32_t> ids;
        for (uint64_t n = 1 + random() % 12; n > 0; --n) ids.push_back(static_cast<int32_t>(random() % 2));
        const std::string salt = random() % 4 ? "" : "s";
        const auto matched = manager.match(salt, ids);
        const int32_t num_new =
            manager.num_needed(static_cast<int32_t>(ids.size())) - static_cast<int32_t>(matched.size());
        if (num_new > manager.num_available() - manager.num_cached_among(matched)) continue;
        holders.push_back(hold(manager, ids, salt));
        const size_t size = static_cast<size_t>(manager.block_size());
        for (size_t i = 0; i < holders.back().blocks.size(); ++i) {
          std::vector<int32_t> written(ids.begin() + static_cast<long>(i * size),
                                       ids.begin() + static_cast<long>(std::min(ids.size(), (i + 1) * size)));
          written.push_back(salt.empty() ? -1 : -2);
          auto& content = contents[holders.back().blocks[i]];
          if (i < matched.size()) CHECK_EQ(content, written);
          content = written;
        }
        if (random() % 2) seal(manager, holders.back());
      }
      manager.check_integrity();
      CHECK_EQ(manager.num_free() + manager.num_used() + manager.num_cached(), manager.num_total());
    }
    for (Holder& holder : holders) manager.release(holder.blocks);
    CHECK_EQ(manager.num_used(), 0);
  }
}

int main(int argc, char** argv) {
  return check::main(argc, argv);
}
