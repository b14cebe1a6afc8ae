// Quoting of untrusted names for error messages.
#include "models/weight_error.h"

#include <algorithm>

namespace ion {
namespace {

constexpr size_t kMaxShown = 96;

}  // namespace

std::string quoted(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out = "'";
  for (unsigned char c : text.substr(0, kMaxShown)) {
    if (c >= 0x20 && c < 0x7f) {
      out += static_cast<char>(c);
    } else {
      out += "\\x";
      out += kHex[c >> 4];
      out += kHex[c & 15];
    }
  }
  return out + (text.size() > kMaxShown ? "'..." : "'");
}

std::string quoted_path(std::string_view path) {
  if (path.size() <= kMaxShown) return quoted(path);
  return "..." + quoted(path.substr(path.size() - kMaxShown));
}

}  // namespace ion
