// Recursive descent over RFC 8259. Memory stays a small multiple of the text: values come one by one.
#include "models/json.h"

#include <charconv>

#include "models/weight_error.h"

namespace ion {
namespace {

constexpr int kMaxDepth = 64;

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Json document() {
    Json out = value(0);
    skip_space();
    if (at_ != text_.size()) fail("text after the end of the document");
    return out;
  }

 private:
  [[noreturn]] void fail(const std::string& fault) const {
    throw WeightError("JSON at byte " + std::to_string(at_) + ": " + fault);
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void skip_space() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos)
      ++at_;
  }

  bool try_take(char c) {
    skip_space();
    if (peek() != c || at_ >= text_.size()) return false;
    ++at_;
    return true;
  }

  void expect(char c) {
    if (!try_take(c)) fail(std::string("expected '") + c + "'");
  }

  Json value(int depth) {
    if (depth > kMaxDepth) fail("nested too deeply");
    skip_space();
    switch (peek()) {
      case '{':
        return {object(depth)};
      case '[':
        return {array(depth)};
      case '"':
        return {string()};
      case 't':
        return literal("true", {true});
      case 'f':
        return literal("false", {false});
      case 'n':
        return literal("null", {nullptr});
      default:
        return number();
    }
  }

  Json literal(std::string_view word, Json out) {
    if (text_.substr(at_, word.size()) != word) fail("unknown word");
    at_ += word.size();
    return out;
  }

  JsonObject object(int depth) {
    JsonObject out;
    expect('{');
    if (try_take('}')) return out;
    do {
      skip_space();
      std::string key = string();
      expect(':');
      if (!out.emplace(key, value(depth + 1)).second) fail("key " + quoted(key) + " appears twice");
    } while (try_take(','));
    expect('}');
    return out;
  }

  JsonArray array(int depth) {
    JsonArray out;
    expect('[');
    if (try_take(']')) return out;
    do out.push_back(value(depth + 1));
    while (try_take(','));
    expect(']');
    return out;
  }

  bool take_digits() {
    const size_t begin = at_;
    while (peek() >= '0' && peek() <= '9') ++at_;
    return at_ > begin;
  }

  Json number() {
    const size_t begin = at_;
    if (peek() == '-') ++at_;
    if (peek() == '0') {
      ++at_;
    } else if (!take_digits()) {
      fail("expected a value");
    }
    bool is_integer = true;
    if (peek() == '.') {
      ++at_, is_integer = false;
      if (!take_digits()) fail("digits expected after '.'");
    }
    if (peek() == 'e' || peek() == 'E') {
      ++at_, is_integer = false;
      if (peek() == '+' || peek() == '-') ++at_;
      if (!take_digits()) fail("digits expected in the exponent");
    }
    const char *first = text_.data() + begin, *last = text_.data() + at_;
    int64_t whole = 0;
    if (is_integer && std::from_chars(first, last, whole).ec == std::errc()) return {whole};
    double real = 0;
    if (std::from_chars(first, last, real).ec != std::errc()) fail("number out of range");
    return {real};
  }

  uint32_t hex4() {
    uint32_t code = 0;
    const std::string_view digits = text_.substr(at_, 4);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (digits.size() != 4 || end != digits.data() + 4 || error != std::errc()) fail("bad \\u escape");
    at_ += 4;
    return code;
  }

  uint32_t code_point() {
    const uint32_t high = hex4();
    if (high < 0xd800 || high > 0xdfff) return high;
    if (high > 0xdbff || text_.substr(at_, 2) != "\\u") fail("lone surrogate");
    at_ += 2;
    const uint32_t low = hex4();
    if (low < 0xdc00 || low > 0xdfff) fail("lone surrogate");
    return 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
  }

  static void append_utf8(std::string& out, uint32_t code) {
    const auto tail = [&](int shift) { out += static_cast<char>(0x80 | ((code >> shift) & 0x3f)); };
    if (code < 0x80) {
      out += static_cast<char>(code);
    } else if (code < 0x800) {
      out += static_cast<char>(0xc0 | (code >> 6)), tail(0);
    } else if (code < 0x10000) {
      out += static_cast<char>(0xe0 | (code >> 12)), tail(6), tail(0);
    } else {
      out += static_cast<char>(0xf0 | (code >> 18)), tail(12), tail(6), tail(0);
    }
  }

  void escape(std::string& out) {
    static constexpr std::string_view kNames = "\"\\/bfnrt", kValues = "\"\\/\b\f\n\r\t";
    const char c = peek();
    ++at_;
    if (c == 'u') return append_utf8(out, code_point());
    const size_t i = kNames.find(c);
    if (i == std::string_view::npos || c == '\0') fail("bad escape");
    out += kValues[i];
  }

  std::string string() {
    if (peek() != '"') fail("expected a string");
    ++at_;
    std::string out;
    while (true) {
      if (at_ >= text_.size()) fail("string without an end");
      const char c = text_[at_++];
      if (c == '"') return out;
      if (static_cast<unsigned char>(c) < 0x20) fail("control character in a string");
      if (c == '\\') {
        escape(out);
      } else {
        out += c;
      }
    }
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

Json parse_json(std::string_view text) {
  return Reader(text).document();
}

}  // namespace ion
