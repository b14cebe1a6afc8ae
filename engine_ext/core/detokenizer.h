// Bytes in, whole UTF-8 characters out. Knows no tokens: the caller looks the bytes of a token up.
// Malformed input follows the WHATWG Encoding Standard's UTF-8 decoder (Unicode 15, 3.9, "U+FFFD Substitution
// of Maximal Subparts"): one U+FFFD for each longest piece that could have begun a character.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ion {

class Detokenizer {
 public:
  // Appends to `out` every character completed by `bytes`; holds at most 3 bytes back.
  void push(std::string_view bytes, std::string& out);
  // The end of the text: an incomplete tail becomes exactly one U+FFFD.
  void finish(std::string& out);
  int32_t num_held() const { return num_held_; }

 private:
  void begin(uint8_t byte, std::string& out);

  char held_[3] = {};     // the first bytes of a character that is not complete, valid so far
  int32_t num_held_ = 0;  // held_[0, num_held_)
  int32_t num_left_ = 0;  // continuation bytes still missing
  // Bounds of the next continuation byte. Only the second byte's are narrower than [80, BF]: they exclude
  // overlong forms, surrogates and code points above U+10FFFF.
  uint8_t lower_ = 0x80;
  uint8_t upper_ = 0xBF;
};

bool is_valid_utf8(std::string_view text);

}  // namespace ion
