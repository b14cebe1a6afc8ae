// See kv_tier.h.
#include "core/kv_tier.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace ion {

KvTier::KvTier(Runner& runner, BlockManager& device, std::string cache_identity)
    : runner_(runner),
      device_(device),
      host_(runner.caps().num_host_blocks, runner.caps().block_size, std::move(cache_identity)),
      is_whole_(static_cast<size_t>(runner.caps().num_host_blocks), false) {}

void KvTier::write_back(PrefixChain& chain, std::span<const int32_t> ids, int32_t num_valid,
                        std::span<const BlockId> blocks) {
  const auto has_more = [&] { return (chain.num_sealed + 1) * host_.block_size() <= num_valid; };
  if (!has_more()) return;
  if (!host_.is_current(chain)) chain = PrefixChain{.salt = chain.salt};
  // Its prefix is in use: other prefixes give way first.
  host_.touch(chain);
  Batch batch;
  while (has_more()) {
    if (host_.follow(chain, ids)) continue;
    // What finds no room now is tried again with the next seal.
    if (!try_extend(chain, ids, blocks[static_cast<size_t>(chain.num_sealed)], batch)) break;
  }
  if (batch.copies.empty()) return;
  batch.chain = chain;
  batches_.push_back(std::move(batch));
}

// A slow disk must not come to own the first tier, nor keep fetches waiting behind a long queue. And room
// made by forgetting the prefix's own end would be no gain.
bool KvTier::can_make_room(const PrefixChain& chain) const {
  if (num_out_ >= std::max(1, device_.num_total() / 2)) return false;
  if (host_.num_free() > 0) return true;
  return host_.num_cached() > 0 && host_.next_victim() != chain.tail_block;
}

bool KvTier::try_extend(PrefixChain& chain, std::span<const int32_t> ids, BlockId block, Batch& batch) {
  if (!can_make_room(chain)) return false;
  const HostBlock host = host_.allocate();
  if (!host_.is_current(chain)) {  // the victim lay above the chain's end
    host_.release({&host, 1});
    return false;
  }
  host_.extend(chain, ids, host);
  is_whole_[static_cast<size_t>(host)] = false;
  device_.take_reference(block);
  batch.copies.push_back({runner_.copy_out(block, host), block, host});
  ++num_out_;
  return true;
}

std::vector<HostBlock> KvTier::match(const std::string& salt, std::span<const int32_t> ids) const {
  std::vector<HostBlock> found = host_.match(salt, ids);
  const auto is_unfinished = [&](HostBlock host) { return !is_whole_[static_cast<size_t>(host)]; };
  found.erase(std::ranges::find_if(found, is_unfinished), found.end());
  return found;
}

std::shared_ptr<const Fetch> KvTier::fetch(std::span<const HostBlock> from, std::span<const BlockId> to) {
  Batch batch;
  batch.fetch = std::make_shared<Fetch>();
  batch.chain = host_.acquire({}, from);
  for (size_t i = 0; i < from.size(); ++i) {
    device_.take_reference(to[i]);
    batch.copies.push_back({runner_.copy_in(from[i], to[i]), to[i], from[i]});
  }
  batches_.push_back(std::move(batch));
  return batches_.back().fetch;
}

void KvTier::poll(bool wait) {
  if (wait) {
    const auto fetch =
        std::ranges::find_if(batches_, [](const Batch& batch) { return batch.fetch != nullptr; });
    if (fetch != batches_.end()) batches_.splice(batches_.begin(), batches_, fetch);
  }
  for (auto batch = batches_.begin(); batch != batches_.end();) {
    if (!is_over(*batch, std::exchange(wait, false))) {
      ++batch;
      continue;
    }
    finish(*batch);
    batch = batches_.erase(batch);
  }
}

bool KvTier::is_over(Batch& batch, bool wait) {
  for (Copy& copy : batch.copies) {
    if (copy.state == CopyState::kPending) copy.state = runner_.done(copy.ticket, wait);
    if (copy.state == CopyState::kPending) return false;
  }
  return true;
}

void KvTier::finish(Batch& batch) {
  const bool is_fetch = batch.fetch != nullptr;
  (is_fetch ? counters_.copies_in : counters_.copies_out) += static_cast<int64_t>(batch.copies.size());
  std::vector<BlockId> blocks, hosts;
  bool is_whole_so_far = true;
  for (const Copy& copy : batch.copies) {
    blocks.push_back(copy.block);
    hosts.push_back(copy.host);
    const bool has_failed = copy.state == CopyState::kFailed;
    is_whole_so_far = is_whole_so_far && !has_failed;
    if (has_failed) {
      ++counters_.copies_failed;
      host_.forget(copy.host);
    }
    if (is_fetch) {
      batch.fetch->num_whole += is_whole_so_far ? 1 : 0;
    } else {
      --num_out_;
      is_whole_[static_cast<size_t>(copy.host)] = !has_failed;
    }
  }
  device_.release(blocks);
  host_.release(hosts);
  host_.touch(batch.chain);
  if (is_fetch) batch.fetch->is_over = true;
}

void KvTier::count_references(std::vector<int32_t>& num_owners) const {
  for (const Batch& batch : batches_) {
    for (const Copy& copy : batch.copies) ++num_owners[static_cast<size_t>(copy.block)];
  }
}

void KvTier::check_integrity() const {
  host_.check_integrity();
  std::vector<int32_t> num_owners(is_whole_.size(), 0);
  for (const Batch& batch : batches_) {
    for (const Copy& copy : batch.copies) ++num_owners[static_cast<size_t>(copy.host)];
  }
  for (HostBlock host = 0; host < host_.num_total(); ++host) {
    if (num_owners[static_cast<size_t>(host)] != host_.num_refs(host)) {
      throw std::logic_error("host block " + std::to_string(host) +
                             ": copies and references differ in number");
    }
  }
}

}  // namespace ion
