// Stop strings. See stop_matcher.h.
#include "core/stop_matcher.h"

#include <algorithm>
#include <stdexcept>

namespace ion {

StopMatcher::StopMatcher(const std::vector<std::string>& stops) : nodes_(1) {
  for (const std::string& stop : stops) add(stop);
  link();
}

void StopMatcher::add(std::string_view stop) {
  if (stop.empty()) throw std::invalid_argument("stop: a stop string is empty");
  int32_t node = 0;
  for (char c : stop) {
    const auto byte = static_cast<uint8_t>(c);
    int32_t next = child(node, byte);
    if (next < 0) {
      next = static_cast<int32_t>(nodes_.size());
      nodes_[node].children.emplace_back(byte, next);
      nodes_.push_back({.children = {}, .depth = nodes_[node].depth + 1});
    }
    node = next;
  }
  nodes_[node].match_bytes = nodes_[node].depth;
}

void StopMatcher::link() {
  // Breadth first, so that a node's fail link, which is shorter, is final before the node's own.
  std::vector<int32_t> queue = {0};
  for (size_t i = 0; i < queue.size(); ++i) {
    const int32_t parent = queue[i];
    for (auto [byte, node] : nodes_[parent].children) {
      nodes_[node].fail = parent == 0 ? 0 : advance(nodes_[parent].fail, byte);
      nodes_[node].match_bytes = std::max(nodes_[node].match_bytes, nodes_[nodes_[node].fail].match_bytes);
      queue.push_back(node);
    }
  }
}

int32_t StopMatcher::child(int32_t node, uint8_t byte) const {
  for (auto [label, next] : nodes_[node].children) {
    if (label == byte) return next;
  }
  return -1;
}

int32_t StopMatcher::advance(int32_t node, uint8_t byte) const {
  for (;; node = nodes_[node].fail) {
    const int32_t next = child(node, byte);
    if (next >= 0) return next;
    if (node == 0) return 0;
  }
}

bool StopMatcher::push(std::string_view bytes, bool may_end, std::string& out) {
  if (nodes_.size() == 1) {
    out += bytes;
    return false;
  }
  for (char c : bytes) {
    // held_ is the state's string; one byte on it is that plus the byte, of which the new state is a suffix.
    held_.push_back(c);
    state_ = advance(state_, static_cast<uint8_t>(c));
    if (may_end && nodes_[state_].match_bytes > 0) {
      const size_t num_out = held_.size() - static_cast<size_t>(nodes_[state_].match_bytes);
      out.append(held_, 0, num_out);
      matched_ = held_.substr(num_out);
      held_.clear();
      return true;
    }
    // A complete stop string that may not end the text is held only as far as it begins a longer one.
    while (state_ != 0 && nodes_[state_].children.empty()) state_ = nodes_[state_].fail;
    const size_t num_out = held_.size() - static_cast<size_t>(nodes_[state_].depth);
    out.append(held_, 0, num_out);
    held_.erase(0, num_out);
  }
  return false;
}

void StopMatcher::finish(std::string& out) {
  out += held_;
  held_.clear();
  state_ = 0;
}

}  // namespace ion
