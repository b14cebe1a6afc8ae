// Text of one sequence. See text_stream.h.
#include "core/text_stream.h"

#include <utility>

namespace ion {

bool TextStream::push(std::string_view bytes, bool may_end, std::optional<TokenLogprobs> logprobs,
                      std::string& out) {
  if (logprobs) held_.push_back({num_decoded_, std::move(*logprobs)});
  if (drops_space_ && !bytes.empty()) {
    if (bytes.front() == ' ') bytes.remove_prefix(1);
    drops_space_ = false;
  }
  std::string decoded;
  detokenizer_.push(bytes, decoded);
  num_decoded_ += static_cast<int64_t>(decoded.size());
  const size_t before = out.size();
  const bool has_stopped = matcher_.push(decoded, may_end, out);
  num_released_ += static_cast<int64_t>(out.size() - before);
  return has_stopped;
}

bool TextStream::finish(bool may_end, std::string& out) {
  std::string tail;
  detokenizer_.finish(tail);
  const size_t before = out.size();
  const bool has_stopped = matcher_.push(tail, may_end, out);
  if (!has_stopped) matcher_.finish(out);
  num_released_ += static_cast<int64_t>(out.size() - before);
  has_finished_ = !has_stopped;
  return has_stopped;
}

void TextStream::take_logprobs(std::vector<TokenLogprobs>& out) {
  while (!held_.empty() && (has_finished_ || held_.front().begin < num_released_)) {
    out.push_back(std::move(held_.front().logprobs));
    held_.pop_front();
  }
}

}  // namespace ion
