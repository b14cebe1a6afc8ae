// StopMatcher and TextStream: no character of a stop string ever goes out, nothing else is held back, and how
// the text was cut into tokens does not matter.
#include <algorithm>
#include <random>

#include "check.h"
#include "core/stop_matcher.h"
#include "core/text_stream.h"
#include "oracle.h"

namespace {

std::string random_text(std::mt19937_64& random, size_t most, const char* letters = "ab") {
  std::string text;
  const size_t num_letters = std::string_view(letters).size();
  for (size_t n = random() % (most + 1); n > 0; --n) text.push_back(letters[random() % num_letters]);
  return text;
}

std::vector<std::string> random_stops(std::mt19937_64& random) {
  std::vector<std::string> stops;
  for (size_t n = random() % 4; n > 0; --n)
    stops.push_back(random_text(random, 3) + (random() % 2 ? "a" : "b"));
  return stops;
}

}  // namespace

TEST(a_stop_string_over_several_tokens_sends_none_of_its_characters) {
  ion::StopMatcher matcher({"DEFGHIJ"});
  std::string out;
  for (const char* token : {"AB", "C", "DEF", "G", "HI"}) CHECK(!matcher.push(token, true, out));
  CHECK_EQ(out, std::string("ABC"));
  CHECK(matcher.push("J and more", true, out));
  CHECK_EQ(out, std::string("ABC"));
}

TEST(only_what_begins_a_stop_string_is_held) {
  ion::StopMatcher matcher({"</answer>"});
  std::string out;
  matcher.push("x</think>", true, out);
  CHECK_EQ(out, std::string("x</think>"));
  matcher.push("</a", true, out);
  CHECK_EQ(matcher.num_held(), size_t{3});
  matcher.finish(out);
  CHECK_EQ(out, std::string("x</think></a"));
}

TEST(the_match_that_ends_first_wins_and_of_those_the_longest) {
  std::string out;
  CHECK(ion::StopMatcher({"abcd", "bc"}).push("xabcd", true, out));
  CHECK_EQ(out, std::string("xa"));
  out.clear();
  CHECK(ion::StopMatcher({"bc", "abc"}).push("xabcd", true, out));
  CHECK_EQ(out, std::string("x"));
}

TEST(the_stop_string_that_ended_the_text_is_named) {
  const std::vector<std::string> stops = {"abcd", "bc", "abc", "zz"};
  std::string out;
  ion::StopMatcher matcher(stops);
  CHECK(!matcher.push("xab", true, out));
  CHECK(matcher.matched().empty());
  CHECK(matcher.push("cd", true, out));
  CHECK_EQ(matcher.matched(), std::string("abc"));
  ion::TextStream text(stops);
  CHECK(text.push("yzz", true, std::nullopt, out));
  CHECK_EQ(text.stop(), std::string("zz"));
  ion::TextStream other(stops);
  CHECK(!other.push("yz", true, std::nullopt, out));
  CHECK(!other.finish(true, out));
  CHECK(other.stop().empty());
}

TEST(a_named_stop_string_is_one_of_the_callers_and_stands_where_the_text_ends) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 2000; ++round) {
    const std::vector<std::string> stops = random_stops(random);
    const std::string text = random_text(random, 12);
    ion::StopMatcher matcher(stops);
    std::string out;
    bool has_stopped = false;
    for (size_t i = 0; i < text.size() && !has_stopped; ++i)
      has_stopped = matcher.push(text.substr(i, 1), true, out);
    CHECK_EQ(has_stopped, !matcher.matched().empty());
    if (!has_stopped) continue;
    CHECK(std::ranges::find(stops, matcher.matched()) != stops.end());
    CHECK_EQ(text.substr(out.size(), matcher.matched().size()), matcher.matched());
  }
}

TEST(an_empty_stop_string_is_refused) {
  CHECK_THROWS(std::invalid_argument, ion::StopMatcher({"a", ""}), "stop");
}

TEST(any_cut_of_the_text_gives_the_same_output) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 30000; ++i) {
    const std::string text = random_text(random, 14);
    const std::vector<std::string> stops = random_stops(random);
    const size_t from = random() % 3 == 0 ? random() % 8 : 0;  // stop strings may end beyond this length
    check::context() = check::show(text) + " stops " + check::show(stops) + " from " + std::to_string(from);
    const oracle::Cut cut = oracle::find_stop(text, stops, from + 1);
    ion::StopMatcher matcher(stops);
    std::string out;
    bool has_stopped = false;
    for (size_t at = 0; at < text.size() && !has_stopped;) {
      // Cuts fall on `from`, as they fall on token boundaries.
      size_t end = std::min(text.size(), at + 1 + random() % 4);
      if (at < from) end = std::min(end, from);
      has_stopped = matcher.push(text.substr(at, end - at), at >= from, out);
      at = end;
      if (!has_stopped) CHECK_EQ(out, text.substr(0, at - oracle::num_to_hold(text.substr(0, at), stops)));
    }
    if (!has_stopped) matcher.finish(out);
    CHECK_EQ(has_stopped, cut.is_found);
    CHECK_EQ(out, cut.is_found ? text.substr(0, cut.length) : text);
  }
}

TEST(streamed_text_is_the_whole_text_and_always_whole_characters) {
  std::mt19937_64 random(6);
  const std::string pieces[] = {"a", "b", "\xC3\xA9", "\xC3\xA8", "\xF0\x9F\x98\x80", "\xFF"};
  for (int i = 0; i < 5000; ++i) {
    std::string bytes;
    for (size_t n = random() % 10; n > 0; --n) bytes += pieces[random() % std::size(pieces)];
    std::vector<std::string> stops;
    for (size_t n = random() % 3; n > 0; --n) stops.push_back(pieces[random() % 5] + pieces[random() % 5]);
    check::context() = check::show(bytes) + " stops " + check::show(stops);
    ion::TextStream stream(stops);
    std::string joined;
    bool has_stopped = false;
    for (size_t at = 0; at < bytes.size() && !has_stopped;) {
      const size_t num = 1 + random() % 3;
      std::string chunk;
      has_stopped = stream.push(bytes.substr(at, num), true, std::nullopt, chunk);
      CHECK(ion::is_valid_utf8(chunk));
      joined += chunk;
      at += num;
    }
    if (!has_stopped) stream.finish(true, joined);
    const std::string whole = oracle::decode(bytes, true);
    const oracle::Cut cut = oracle::find_stop(whole, stops, 1);
    CHECK_EQ(joined, cut.is_found ? whole.substr(0, cut.length) : whole);
  }
}

TEST(log_probabilities_come_with_their_text_and_not_for_a_stop_string) {
  ion::TextStream stream({"END"});
  std::string text;
  std::vector<ion::TokenLogprobs> out;
  const auto ids = [&] {
    std::vector<int32_t> ids;
    for (const auto& entry : out) ids.push_back(entry.id);
    return ids;
  };
  stream.push("a", true, ion::TokenLogprobs{1, -0.1f, {}}, text);
  stream.push("bE", true, ion::TokenLogprobs{2, -0.1f, {}}, text);
  stream.push("N", true, ion::TokenLogprobs{3, -0.1f, {}}, text);
  stream.take_logprobs(out);
  CHECK_EQ(ids(), (std::vector<int32_t>{1, 2}));
  CHECK(stream.push("D", true, ion::TokenLogprobs{4, -0.1f, {}}, text));
  stream.take_logprobs(out);
  CHECK_EQ(ids(), (std::vector<int32_t>{1, 2}));
  CHECK_EQ(text, std::string("ab"));
}

TEST(held_log_probabilities_come_out_when_the_text_ends_otherwise) {
  ion::TextStream stream({"END"});
  std::string text;
  std::vector<ion::TokenLogprobs> out;
  stream.push("EN", true, ion::TokenLogprobs{3, -0.1f, {}}, text);
  stream.push("", true, ion::TokenLogprobs{4, -0.1f, {}}, text);
  stream.take_logprobs(out);
  CHECK(out.empty());
  CHECK(!stream.finish(true, text));
  stream.take_logprobs(out);
  CHECK_EQ(out.size(), size_t{2});
  CHECK_EQ(text, std::string("EN"));
}

TEST(one_space_at_the_very_start_is_dropped_where_asked) {
  const auto joined = [](const std::vector<std::string>& tokens, bool drops_space,
                         bool* has_stopped = nullptr) {
    ion::TextStream stream({"the end"}, drops_space);
    std::string text;
    for (const std::string& bytes : tokens) {
      if (stream.push(bytes, true, {}, text)) {
        if (has_stopped != nullptr) *has_stopped = true;
        return text;
      }
    }
    stream.finish(true, text);
    return text;
  };
  CHECK_EQ(joined({" a", " b"}, true), std::string("a b"));
  CHECK_EQ(joined({" a", " b"}, false), std::string(" a b"));
  CHECK_EQ(joined({"  a"}, true), std::string(" a"));
  CHECK_EQ(joined({" ", " a"}, true), std::string(" a"));
  CHECK_EQ(joined({"", "", " a"}, true), std::string("a"));  // tokens without text come first
  CHECK_EQ(joined({"a", " b"}, true), std::string("a b"));
  CHECK_EQ(joined({" "}, true), std::string());
  CHECK_EQ(joined({}, true), std::string());
  bool has_stopped = false;
  CHECK_EQ(joined({" the", " end"}, true, &has_stopped), std::string());
  CHECK(has_stopped);
}

int main(int argc, char** argv) {
  return check::main(argc, argv);
}
