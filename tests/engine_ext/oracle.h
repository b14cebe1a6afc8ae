// What must come out, worked out the slow and obvious way and sharing no code with the engine: whole text
// first, then characters, then stop strings.
#pragma once

#include <ostream>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "check.h"
#include "core/engine.h"
#include "fake_runner.h"

namespace oracle {

inline std::string encode(uint32_t point) {
  std::string out;
  if (point < 0x80) return std::string(1, static_cast<char>(point));
  const int num_more = point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
  const unsigned lead = num_more == 1 ? 0xC0 : num_more == 2 ? 0xE0 : 0xF0;
  out.push_back(static_cast<char>(lead | (point >> (6 * num_more))));
  for (int i = num_more - 1; i >= 0; --i)
    out.push_back(static_cast<char>(0x80 | ((point >> (6 * i)) & 0x3F)));
  return out;
}

// By enumerating the encodings of all scalar values: what begins a character, and of that what lacks one
// byte.
struct Beginnings {
  std::set<std::string> all;
  std::set<std::string> lacking_one;
};

inline const Beginnings& beginnings() {
  static const Beginnings found = [] {
    Beginnings found;
    for (uint32_t point = 0x80; point <= 0x10FFFF; ++point) {
      if (point >= 0xD800 && point <= 0xDFFF) continue;
      // The last byte runs through all of [80, BF] while the bytes before it stay.
      if ((point & 0x3F) != 0) continue;
      const std::string whole = encode(point);
      for (size_t n = 1; n < whole.size(); ++n) found.all.insert(whole.substr(0, n));
      found.lacking_one.insert(whole.substr(0, whole.size() - 1));
    }
    return found;
  }();
  return found;
}

inline bool is_character(std::string_view bytes) {
  const auto last = static_cast<unsigned char>(bytes.back());
  if (bytes.size() == 1) return last < 0x80;
  return last >= 0x80 && last <= 0xBF &&
         beginnings().lacking_one.count(std::string(bytes.substr(0, bytes.size() - 1))) > 0;
}

// `is_end`: an incomplete tail is replaced; else it is left out, and the rest of the text is final.
inline std::string decode(std::string_view bytes, bool is_end) {
  std::string out;
  for (size_t i = 0; i < bytes.size();) {
    size_t num_taken = 0;
    for (size_t n = 1; n <= 4 && i + n <= bytes.size(); ++n) {
      if (is_character(bytes.substr(i, n))) num_taken = n;
    }
    if (num_taken > 0) {
      out += bytes.substr(i, num_taken);
      i += num_taken;
      continue;
    }
    size_t longest = 0;
    while (i + longest < bytes.size() && beginnings().all.count(std::string(bytes.substr(i, longest + 1))))
      ++longest;
    if (longest > 0 && i + longest == bytes.size() && !is_end) return out;
    out += "\xEF\xBF\xBD";
    i += longest > 0 ? longest : 1;
  }
  return out;
}

struct Cut {
  bool is_found = false;
  size_t length = 0;  // of the text that remains
};

// The stop string that ends first, not before `from`, the longest of those that end together.
inline Cut find_stop(const std::string& text, const std::vector<std::string>& stops, size_t from) {
  for (size_t end = from; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      const bool is_here = stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0;
      if (is_here && stop.size() > longest) longest = stop.size();
    }
    if (longest > 0) return {true, end - longest};
  }
  return {};
}

// The longest suffix of the text that begins a stop string without being one.
inline size_t num_to_hold(const std::string& text, const std::vector<std::string>& stops) {
  size_t most = 0;
  for (const std::string& stop : stops) {
    for (size_t n = 1; n < stop.size() && n <= text.size(); ++n) {
      if (text.compare(text.size() - n, n, stop, 0, n) == 0) most = n > most ? n : most;
    }
  }
  return most;
}

struct Output {
  std::string text;
  int num_tokens = 0;
  ion::Finish finish = ion::kRunning;
  bool operator==(const Output&) const = default;
};

inline std::ostream& operator<<(std::ostream& out, const Output& output) {
  return out << check::show(output.text) << " in " << output.num_tokens << " tokens, finish "
             << int{output.finish};
}

// Allowed ids of the token after these generated ones, as in ion::Mask; no words: any.
using Grammar = std::vector<uint32_t> (*)(const std::vector<int32_t>& generated);

struct Setting {
  fake::Model model;
  std::vector<std::string> token_bytes;
  std::vector<int32_t> stop_ids;
  int32_t context_length = 0;
  int32_t window = 0;
  Grammar grammar = nullptr;  // of sequences that have one
};

// Of every prompt token but the first; nothing where a history gives non-finite logits.
inline std::vector<ion::PromptToken> expected_scores(const Setting& setting,
                                                     const ion::SubmitParams& params) {
  std::vector<ion::PromptToken> out;
  if (params.sampling.num_prompt_logprobs < 0) return out;
  uint64_t before = 0;
  fake::History history(setting.window);
  for (size_t i = 0; i + 1 < params.prompt.size(); ++i) {
    before = fake::position_digest(before, params.prompt[i]);
    history.add(before, i);
    if (fake::is_nan(setting.model, history.sum())) return {};
    out.push_back(fake::foreseen(setting.model, history.sum(), params.prompt[i + 1],
                                 params.sampling.num_prompt_logprobs));
  }
  return out;
}

inline Output expected(const Setting& setting, const ion::SubmitParams& params) {
  ion::SamplingParams sampling = params.sampling;
  const std::set<int32_t> own(sampling.stop_ids.begin(), sampling.stop_ids.end());
  std::set<int32_t> ending = own;
  if (!params.ignore_eos) ending.insert(setting.stop_ids.begin(), setting.stop_ids.end());
  sampling.stop_ids.insert(sampling.stop_ids.end(), setting.stop_ids.begin(), setting.stop_ids.end());

  std::vector<int32_t> ids = params.prompt;
  std::string bytes;
  const bool is_scored = params.sampling.num_prompt_logprobs >= 0;
  if (is_scored && expected_scores(setting, params).size() + 1 != ids.size()) return {"", 0, ion::kError};
  size_t from = 1;  // stop strings may end at this length of text or later
  for (int n = 1;; ++n) {
    uint64_t before = 0;
    fake::History attended(setting.window);
    for (size_t i = 0; i < ids.size(); ++i) {
      before = fake::position_digest(before, ids[i]);
      attended.add(before, i);
    }
    const uint64_t history = attended.sum();
    if (fake::is_nan(setting.model, history)) {
      // What is held for a stop string never comes out: the sequence has no end that could release it.
      const std::string text = decode(bytes, false);
      return {text.substr(0, text.size() - num_to_hold(text, params.stop)), n - 1, ion::kError};
    }
    if (params.max_tokens == 0) return {"", 0, ion::kLength};
    std::vector<uint32_t> mask;
    if (params.has_grammar) {
      mask = setting.grammar({ids.begin() + static_cast<std::ptrdiff_t>(params.prompt.size()), ids.end()});
    }
    const int32_t id = fake::next_token(setting.model, history, sampling, n - 1, mask);
    if (id == -1) {
      const std::string text = decode(bytes, false);
      return {text.substr(0, text.size() - num_to_hold(text, params.stop)), n - 1, ion::kError};
    }
    if (ending.count(id) && n - 1 >= sampling.min_tokens) {
      const std::string text = decode(bytes, true);
      const Cut cut = find_stop(text, params.stop, from);
      return {cut.is_found ? text.substr(0, cut.length) : text, n, ion::kStop};
    }
    if (n == sampling.min_tokens) from = decode(bytes, false).size() + 1;
    if (n < sampling.min_tokens) from = std::string::npos;
    ids.push_back(id);
    bytes += setting.token_bytes[static_cast<size_t>(id)];
    const bool is_last = n == params.max_tokens || static_cast<int32_t>(ids.size()) == setting.context_length;
    const std::string text = decode(bytes, is_last);
    if (from != std::string::npos) {
      const Cut cut = find_stop(text, params.stop, from);
      if (cut.is_found) return {text.substr(0, cut.length), n, ion::kStop};
    }
    if (is_last) return {text, n, ion::kLength};
  }
}

}  // namespace oracle
