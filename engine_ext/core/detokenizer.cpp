// Incremental UTF-8. See detokenizer.h.
#include "core/detokenizer.h"

namespace ion {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

struct Lead {
  uint8_t first, last;   // lead bytes [first, last]
  uint8_t num_more;      // continuation bytes that follow
  uint8_t lower, upper;  // bounds of the first of them
};

// Unicode 15, table 3-7 (well-formed UTF-8 byte sequences). A lead byte that is not here is an error.
constexpr Lead kLeads[] = {
    {0xC2, 0xDF, 1, 0x80, 0xBF}, {0xE0, 0xE0, 2, 0xA0, 0xBF}, {0xE1, 0xEC, 2, 0x80, 0xBF},
    {0xED, 0xED, 2, 0x80, 0x9F}, {0xEE, 0xEF, 2, 0x80, 0xBF}, {0xF0, 0xF0, 3, 0x90, 0xBF},
    {0xF1, 0xF3, 3, 0x80, 0xBF}, {0xF4, 0xF4, 3, 0x80, 0x8F},
};

const Lead* find_lead(uint8_t byte) {
  for (const Lead& lead : kLeads) {
    if (byte >= lead.first && byte <= lead.last) return &lead;
  }
  return nullptr;
}

}  // namespace

void Detokenizer::begin(uint8_t byte, std::string& out) {
  if (byte < 0x80) {
    out.push_back(static_cast<char>(byte));
    return;
  }
  const Lead* lead = find_lead(byte);
  if (lead == nullptr) {
    out += kReplacement;
    return;
  }
  held_[0] = static_cast<char>(byte);
  num_held_ = 1;
  num_left_ = lead->num_more;
  lower_ = lead->lower;
  upper_ = lead->upper;
}

void Detokenizer::push(std::string_view bytes, std::string& out) {
  for (char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    if (num_held_ == 0) {
      begin(byte, out);
      continue;
    }
    if (byte < lower_ || byte > upper_) {
      // The held bytes are a maximal subpart; this byte is not part of it and may begin a character itself.
      out += kReplacement;
      num_held_ = 0;
      begin(byte, out);
      continue;
    }
    lower_ = 0x80;
    upper_ = 0xBF;
    if (--num_left_ > 0) {
      held_[num_held_++] = c;
      continue;
    }
    out.append(held_, static_cast<size_t>(num_held_));
    out.push_back(c);
    num_held_ = 0;
  }
}

void Detokenizer::finish(std::string& out) {
  if (num_held_ > 0) out += kReplacement;
  num_held_ = 0;
}

bool is_valid_utf8(std::string_view text) {
  // Decoding changes malformed text and nothing else: a replacement is three bytes for one to three others
  // that were not a replacement.
  Detokenizer detokenizer;
  std::string decoded;
  detokenizer.push(text, decoded);
  detokenizer.finish(decoded);
  return decoded == text;
}

}  // namespace ion
