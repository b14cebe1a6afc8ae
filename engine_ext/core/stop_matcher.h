// Stop strings over a stream of bytes: says how much text may go out and where it ends.
// Knows no tokens and no characters; stop strings that are valid UTF-8 keep characters whole.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ion {

// An Aho-Corasick automaton (Aho and Corasick, "Efficient string matching", CACM 1975). Its state after any
// text is the longest suffix of the text that begins a stop string, which is exactly what has to be held
// back:
//
//   text so far   [0 ........ released) [released ........ end)
//                  out, for good         held: the state's own string
//
// The match that ends first wins; of those that end together, the longest. Both depend on the text alone,
// never on how it was cut into pieces.
class StopMatcher {
 public:
  // Throws std::invalid_argument for an empty stop string.
  explicit StopMatcher(const std::vector<std::string>& stops = {});

  // Appends to `out` what may be released after `bytes`. Returns true when a stop string is complete: then
  // the text ends before it and the matcher takes no more. With may_end false complete ones are ordinary
  // text.
  bool push(std::string_view bytes, bool may_end, std::string& out);
  // The end of the text without a match: releases what was held.
  void finish(std::string& out);
  // The stop string that push found complete; empty while there is none.
  const std::string& matched() const { return matched_; }
  size_t num_held() const { return held_.size(); }

 private:
  struct Node {
    std::vector<std::pair<uint8_t, int32_t>> children;
    int32_t fail = 0;         // the longest proper suffix that is a node
    int32_t depth = 0;        // bytes
    int32_t match_bytes = 0;  // length of the longest stop string that ends here, 0: none
  };

  int32_t child(int32_t node, uint8_t byte) const;
  int32_t advance(int32_t node, uint8_t byte) const;
  void add(std::string_view stop);
  void link();

  std::vector<Node> nodes_;
  int32_t state_ = 0;
  std::string held_;  // the last nodes_[state_].depth bytes of the text
  std::string matched_;
};

}  // namespace ion
