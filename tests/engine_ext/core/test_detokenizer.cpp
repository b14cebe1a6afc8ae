// Detokenizer: any cut of any bytes gives the same text, whole characters only, at most 3 bytes held.
#include <random>

#include "check.h"
#include "core/detokenizer.h"
#include "oracle.h"

namespace {

const std::string kReplacement = "\xEF\xBF\xBD";

std::string decode_whole(const std::string& bytes) {
  ion::Detokenizer detokenizer;
  std::string out;
  detokenizer.push(bytes, out);
  detokenizer.finish(out);
  return out;
}

// Bytes that are likely to be nearly right: whole characters, cut ones, strays and noise.
std::string random_bytes(std::mt19937_64& random) {
  static const std::string kinds[] = {"a",        "\xC3\xA9",     "\xE2\x82\xAC", "\xF0\x9F\x98\x80",
                                      "\xE0\x80", "\xED\xA0\x80", "\xF4\x90",     "\xC0",
                                      "\xFF",     "\x80",         "\xF0\x9F",     "\xEF\xBF\xBD"};
  std::string bytes;
  for (int n = static_cast<int>(random() % 12); n > 0; --n) {
    if (random() % 4 == 0) {
      bytes.push_back(static_cast<char>(random()));
    } else {
      const std::string& kind = kinds[random() % std::size(kinds)];
      bytes += kind.substr(0, 1 + random() % kind.size());
    }
  }
  return bytes;
}

}  // namespace

TEST(malformed_bytes_become_one_replacement_for_each_maximal_subpart) {
  // Unicode 15, 3.9, tables 3-8 to 3-11.
  CHECK_EQ(decode_whole("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
           kReplacement + kReplacement + kReplacement + kReplacement + kReplacement + kReplacement +
               kReplacement + kReplacement + "A");
  CHECK_EQ(decode_whole("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"),
           kReplacement + kReplacement + kReplacement + kReplacement + kReplacement + kReplacement +
               kReplacement + kReplacement + "A");
  CHECK_EQ(decode_whole("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), kReplacement + kReplacement + kReplacement +
                                                                     kReplacement + kReplacement + "A" +
                                                                     kReplacement + kReplacement + "B");
  CHECK_EQ(decode_whole("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"),
           kReplacement + kReplacement + kReplacement + kReplacement + "A");
}

TEST(an_incomplete_tail_becomes_exactly_one_replacement_at_the_end) {
  CHECK_EQ(decode_whole("ab\xF0\x9F\x98"), "ab" + kReplacement);
  CHECK_EQ(decode_whole("\xC4"), kReplacement);
  CHECK_EQ(decode_whole(""), std::string());
}

TEST(a_character_cut_over_two_tokens_comes_out_whole) {
  ion::Detokenizer detokenizer;
  std::string out;
  detokenizer.push("\xC4", out);
  CHECK_EQ(out, std::string());
  CHECK_EQ(detokenizer.num_held(), 1);
  detokenizer.push(
      "\x8F"
      "b",
      out);
  CHECK_EQ(out, std::string("\xC4\x8F"
                            "b"));
}

TEST(every_scalar_value_passes_unchanged) {
  std::string all;
  for (uint32_t point = 0; point <= 0x10FFFF; ++point) {
    if (point < 0xD800 || point > 0xDFFF) all += oracle::encode(point);
  }
  CHECK(decode_whole(all) == all);
  CHECK(ion::is_valid_utf8(all));
}

TEST(any_cut_of_any_bytes_gives_the_text_of_the_whole) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 20000; ++i) {
    const std::string bytes = random_bytes(random);
    check::context() = check::show(bytes);
    const std::string want = oracle::decode(bytes, true);
    CHECK_EQ(decode_whole(bytes), want);
    CHECK_EQ(ion::is_valid_utf8(bytes), want == bytes);
    ion::Detokenizer detokenizer;
    std::string out;
    for (size_t at = 0; at < bytes.size();) {
      const size_t num = 1 + random() % 3;
      detokenizer.push(std::string_view(bytes).substr(at, num), out);
      at += num;
      CHECK(detokenizer.num_held() <= 3);
      CHECK_EQ(out, oracle::decode(std::string_view(bytes).substr(0, at), false));
    }
    detokenizer.finish(out);
    CHECK_EQ(out, want);
  }
}

int main(int argc, char** argv) {
  return check::main(argc, argv);
}
