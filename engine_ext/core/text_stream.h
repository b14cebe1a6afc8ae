// One sequence's text on its way out: bytes -> whole characters -> minus stop strings, log-probabilities in
// step. Knows no tokens beyond the bytes it is given, no schedule and no events.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/detokenizer.h"
#include "core/event_queue.h"
#include "core/stop_matcher.h"

namespace ion {

class TextStream {
 public:
  // With `drops_space` one space at the very start is no part of the text: SentencePiece begins a text's
  // first word with one that nobody wrote.
  explicit TextStream(const std::vector<std::string>& stops, bool drops_space = false)
      : matcher_(stops), drops_space_(drops_space) {}

  // Takes one token's bytes and appends the text that may go out. Returns true when a stop string is complete
  // (see StopMatcher::push); the stream is over then.
  bool push(std::string_view bytes, bool may_end, std::optional<TokenLogprobs> logprobs, std::string& out);
  // The end without a stop string so far. Returns true if the last character completes one after all.
  bool finish(bool may_end, std::string& out);
  // The stop string that ended the stream; empty without one.
  const std::string& stop() const { return matcher_.matched(); }
  // Moves to `out` the log-probabilities of tokens of which some text is out. A token whose text lies wholly
  // in a stop string never gets there, so that the tokens joined are the text.
  void take_logprobs(std::vector<TokenLogprobs>& out);

 private:
  struct HeldLogprobs {
    int64_t begin;  // where the token's text begins, in bytes of decoded text
    TokenLogprobs logprobs;
  };

  Detokenizer detokenizer_;
  StopMatcher matcher_;
  bool drops_space_;  // until the first byte
  std::deque<HeldLogprobs> held_;
  int64_t num_decoded_ = 0;    // bytes of text that left the detokenizer
  int64_t num_released_ = 0;   // bytes of text that left the matcher: the text so far, for good
  bool has_finished_ = false;  // without a stop string: every token belongs to the text
};

}  // namespace ion
