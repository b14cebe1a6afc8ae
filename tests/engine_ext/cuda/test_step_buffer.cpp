// Plans of steps: which pieces attention gets, and what the device reads of them. No GPU.
#include <array>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "check.h"
#include "cuda/step_buffer.h"

namespace ion::cuda {

// Of a device with room for eight pieces, and for sixteen in its ring, which is worth it from 100,000 tokens
// on.
int32_t resident_pieces(DecodeWidth width, int32_t) {
  return width == DecodeWidth::ring ? 16 : 8;
}
DecodeWidth decode_width(int64_t num_pieces, int64_t num_tokens, int32_t, bool has_ring) {
  return has_ring && (num_pieces > 8 || num_tokens >= 100000) ? DecodeWidth::ring : DecodeWidth::four;
}

namespace {

PlanSizes deterministic(int64_t pieces_a_launch = 1 << 20) {
  PlanSizes sizes;
  sizes.is_deterministic = true;
  sizes.pieces_a_launch = pieces_a_launch;
  return sizes;
}

// Spans after each other in the step's rows: (slot, start, count).
StepContents planned(const PlanSizes& sizes, const std::vector<std::array<int32_t, 3>>& spans,
                     const std::vector<int32_t>& logit_rows = {}) {
  StepContents contents;
  contents.logit_rows = logit_rows;
  for (const auto& [slot, start, count] : spans) {
    contents.add_span({slot, static_cast<int32_t>(contents.ids.size()), start, count});
    for (int32_t i = 0; i < count; ++i) {
      contents.ids.push_back(7);
      contents.slots.push_back(slot);
      contents.positions.push_back(start + i);
    }
  }
  contents.plan(sizes);
  return contents;
}

// The parts of each token, by slot and position, and the size of a part.
using Cuts = std::map<std::pair<int32_t, int32_t>, std::vector<int32_t>>;
Cuts cuts_of(const StepContents& contents) {
  Cuts cuts;
  for (const Piece& piece : contents.decode_pieces) {
    const Span& span = contents.spans[piece.span];
    CHECK_EQ(span.count, 1);
    CHECK_EQ(contents.slots[span.first_row], span.slot);
    CHECK_EQ(contents.positions[span.first_row], span.start);
    cuts[{span.slot, span.start}].push_back(piece.part);
  }
  return cuts;
}

TEST(every_token_is_a_row_of_its_own) {
  const StepContents contents = planned(deterministic(), {{3, 510, 5}, {1, 0, 1}});
  CHECK_EQ(contents.spans.size(), size_t{6});
  CHECK(contents.prefill_pieces.empty());
  CHECK(contents.has_chunks);
  CHECK_EQ(contents.part_tokens, kSplitTokens);
  const Cuts wanted = {{{1, 0}, {0}},         {{3, 510}, {0, 1}},    {{3, 511}, {0, 1}},
                       {{3, 512}, {0, 1, 2}}, {{3, 513}, {0, 1, 2}}, {{3, 514}, {0, 1, 2}}};
  CHECK(cuts_of(contents) == wanted);
  CHECK(!planned(deterministic(), {{3, 510, 1}, {1, 0, 1}}).has_chunks);
}

TEST(a_token_is_cut_alike_whatever_the_step_holds) {
  std::vector<std::array<int32_t, 3>> crowd;
  for (int32_t slot = 10; slot < 300; ++slot) crowd.push_back({slot, slot * 13, 1 + slot % 5});
  crowd.push_back({0, 1000, 300});
  const StepContents beside = planned(deterministic(), crowd);
  const Cuts together = cuts_of(beside);
  for (int32_t position = 1000; position < 1300; ++position) {
    const StepContents alone = planned(deterministic(), {{0, position, 1}});
    CHECK_EQ(alone.part_tokens, beside.part_tokens);
    CHECK(cuts_of(alone).at({0, position}) == together.at({0, position}));
  }
}

TEST(parts_outside_every_window_are_left_out) {
  PlanSizes sizes = deterministic();
  sizes.window = 300;
  CHECK(cuts_of(planned(sizes, {{0, 1000, 1}})).at({0, 1000}) == (std::vector<int32_t>{2, 3}));
}

TEST(launches_hold_whole_rows_and_what_there_is_room_for) {
  const StepContents contents = planned(deterministic(8), {{0, 500, 20}, {1, 5000, 2}});
  CHECK(contents.decode_launches.size() > 2);
  size_t at = 0;
  for (const int32_t pieces : contents.decode_launches) {
    const int32_t first = contents.decode_pieces[at].span;
    CHECK(at == 0 || contents.decode_pieces[at - 1].span != first);
    at += pieces;
    CHECK(pieces <= 8 || contents.decode_pieces[at - 1].span == first);  // a row alone may be longer
  }
  CHECK_EQ(at, contents.decode_pieces.size());
  CHECK(planned(deterministic(), {{0, 500, 20}}).decode_launches.empty());
}

TEST(each_launch_finds_its_counts) {
  StepContents contents = planned(deterministic(8), {{0, 500, 20}});
  contents.appends = {0, 31, 5};
  const StepSizes sizes = contents.sizes();
  CHECK_EQ(sizes.decode_launches, static_cast<int64_t>(contents.decode_launches.size()));
  const StepLayout layout(sizes);
  std::vector<int32_t> words(layout.total, -9);
  contents.write(words.data(), layout, sizes);
  for (size_t i = 0; i < contents.decode_launches.size(); ++i) {
    CHECK_EQ(words[layout.counts + 4 * i], contents.decode_launches[i]);
    CHECK_EQ(words[layout.counts + 4 * i + 3], kSplitTokens);
  }
  CHECK_EQ(words[layout.counts + 1], 0);
  CHECK_EQ(words[layout.counts + 2], 1);
}

// What the plan made of rows, each the position of its newest token.
struct Cut {
  int32_t part_tokens;
  int64_t pieces;
};
Cut cut(const PlanSizes& sizes, const std::vector<int32_t>& rows) {
  std::vector<std::array<int32_t, 3>> spans;
  for (size_t i = 0; i < rows.size(); ++i) spans.push_back({static_cast<int32_t>(i), rows[i], 1});
  const StepContents contents = planned(sizes, spans);
  return {contents.part_tokens, std::ssize(contents.decode_pieces)};
}

TEST(without_the_mode_a_step_s_rows_decide_the_cuts) {
  const PlanSizes sizes;
  const StepContents few = planned(sizes, {{0, 4000, 1}, {1, 0, 70}});
  CHECK_EQ(few.part_tokens, 512);  // eight pieces keep the device busy
  CHECK_EQ(few.prefill_pieces.size(), size_t{2});
  CHECK(!few.has_chunks && few.decode_launches.empty());
  CHECK_EQ(few.sizes().decode_launches, int64_t{1});
  CHECK_EQ(cut(sizes, {511}).part_tokens, kWholeTokens);
}

TEST(pieces_are_as_even_as_blocks_of_the_cache_allow) {
  const PlanSizes sizes;
  CHECK_EQ(cut(sizes, {4800}).part_tokens, 608);  // 4,801 tokens, eight pieces
  CHECK_EQ(cut(sizes, {4800}).pieces, int64_t{8});
  CHECK_EQ(cut(sizes, {2999, 5999}).part_tokens, 1200);  // three pieces and five
  CHECK_EQ(cut(sizes, {2999, 5999}).pieces, int64_t{8});
}

TEST(more_rounds_where_they_are_shorter_than_one_long_one) {
  // Five rows in eight places: a whole row each takes 8,001 tokens, halves in two rounds as long, thirds in
  // two 2 x 2,672, and more rounds begin more pieces.
  const Cut five = cut({}, {8000, 8000, 8000, 8000, 8000});
  CHECK_EQ(five.part_tokens, 2672);
  CHECK_EQ(five.pieces, int64_t{15});
  // Where no number of rounds is better, one.
  CHECK_EQ(cut({}, std::vector<int32_t>(8, 8000)).part_tokens, 8016);
}

TEST(the_ring_holds_more_pieces) {
  PlanSizes sizes;
  sizes.has_ring = true;
  const std::vector<int32_t> twelve(12, 8000);
  CHECK_EQ(cut({}, twelve).part_tokens, 4016);     // 24 pieces in three rounds of eight
  CHECK_EQ(cut(sizes, twelve).part_tokens, 2016);  // 48 in three of sixteen
  std::vector<std::array<int32_t, 3>> beside_prompt(12, {0, 8000, 1});
  beside_prompt.push_back({99, 0, 5});
  CHECK_EQ(planned(sizes, beside_prompt).part_tokens, 2016);
}

TEST(a_step_s_rows_say_how_wide_attention_is) {
  PlanSizes sizes;
  sizes.has_ring = sizes.is_large = true;
  const auto width = [&](int32_t rows, int32_t start, int32_t prompt) {
    std::vector<std::array<int32_t, 3>> spans(rows, {0, start, 1});
    if (prompt > 0) spans.push_back({99, 0, prompt});
    return planned(sizes, spans).width;
  };
  CHECK(width(2, 500, 0) == DecodeWidth::eight);
  CHECK(width(2, 500, 30) == DecodeWidth::four);  // a prompt's products leave no such gaps
  CHECK(width(17, 500, 0) == DecodeWidth::ring);
  CHECK(width(9, 500, 30) == DecodeWidth::ring);
  CHECK(width(2, 49998, 30) == DecodeWidth::four && width(2, 49999, 30) == DecodeWidth::ring);
  sizes.window = 300;  // of which layers see no more
  CHECK(width(2, 49999, 30) == DecodeWidth::four);
  sizes.width = DecodeWidth::two;
  CHECK(width(17, 500, 0) == DecodeWidth::two && width(2, 500, 30) == DecodeWidth::two);
  sizes.is_deterministic = true;
  CHECK(width(17, 500, 30) == DecodeWidth::two);
}

// Rows that are rotated before attention: beside the ring prompts' own, where these lie together.
TEST(rows_are_rotated_by_their_attention_or_before) {
  const auto rotated = [](const PlanSizes& sizes, const std::vector<std::array<int32_t, 3>>& spans) {
    const StepContents contents = planned(sizes, spans);
    return std::pair(contents.first_rotated, contents.num_rotated);
  };
  using Rows = std::pair<int64_t, int64_t>;
  PlanSizes ring;
  ring.width = DecodeWidth::ring;
  CHECK(rotated({}, {{0, 70, 1}, {1, 800, 1}}) == Rows(0, 0));
  CHECK(rotated(ring, {{0, 70, 1}, {1, 800, 1}, {2, 0, 30}, {3, 5, 2}}) == Rows(2, 32));
  CHECK(rotated(ring, {{2, 0, 30}, {0, 70, 1}}) == Rows(0, 30));
  CHECK(rotated(ring, {{2, 0, 30}, {0, 70, 1}, {3, 5, 2}}) == Rows(0, 33));  // else a row between would be
  CHECK(rotated({}, {{0, 70, 1}, {1, 800, 1}, {2, 0, 30}, {3, 5, 2}}) == Rows(0, 34));
  CHECK(rotated(deterministic(), {{0, 70, 1}, {2, 0, 30}}) == Rows(0, 31));
  CHECK(rotated(deterministic(), {{0, 70, 1}}) == Rows(0, 0));
}

TEST(few_pieces_of_prompts_are_cut) {
  PlanSizes sizes;
  sizes.prefill_units = 4;
  sizes.prefill_rows = kWidePrefillRows;
  sizes.packed_heads = 7;
  const auto cuts = [&](const std::vector<std::array<int32_t, 3>>& spans) {
    return planned(sizes, spans).prefill_launches.at(0).cuts;
  };
  CHECK_EQ(cuts({{0, 8000, 96}}), 1);
  sizes.prefill_room = {0, 0, 66, 40, 32, 24, 16, 16, 15};  // clusters that are resident together
  CHECK_EQ(cuts({{0, 8000, 96}}), 5);                       // 6 pieces, 24 blocks
  CHECK_EQ(cuts({{0, 8000, 96}, {1, 8000, 96}}), 2);        // 48
  CHECK_EQ(cuts({{0, 8000, 192}, {1, 8000, 96}}), 1);       // 68: there is a block for each multiprocessor
  CHECK_EQ(cuts({{0, 8000, 16}}), 8);
  CHECK_EQ(cuts({{0, 8000, 70}}), 7);  // 16
  CHECK_EQ(cuts({{0, 600, 16}}), 2);   // 4 tiles: 2 a cut at least
  CHECK_EQ(cuts({{0, 300, 16}}), 1);
  sizes.window = 700;
  CHECK_EQ(cuts({{0, 8000, 16}}), 2);
}

// Packed rows of seven heads: a piece of 128 is 18 tokens and a part of the next.
TEST(pieces_with_wanted_rows_come_first) {
  PlanSizes sizes;
  sizes.prefill_rows = kWidePrefillRows;
  sizes.packed_heads = 7;
  sizes.prefill_units = 4;
  sizes.prefill_room = {0, 0, 66, 40, 32, 24, 16, 16, 15};
  using Pieces = std::vector<std::pair<int32_t, int32_t>>;
  const auto pieces = [](const StepContents& contents) {
    Pieces found;
    for (const Piece& piece : contents.prefill_pieces) found.push_back({piece.span, piece.part});
    return found;
  };
  const std::vector<std::array<int32_t, 3>> spans = {{0, 8000, 60}, {1, 900, 1}, {2, 0, 40}};
  const StepContents last = planned(sizes, spans, {60, 100});  // the decode row and the second prompt's end
  CHECK(pieces(last) == Pieces({{2, 2}, {0, 3}, {0, 2}, {0, 1}, {0, 0}, {2, 1}, {2, 0}}));
  CHECK_EQ(last.prefill_launches.at(0).wanted, 1);
  CHECK_EQ(last.prefill_launches.at(0).cuts, 4);
  CHECK_EQ(last.prefill_launches.at(0).wanted_cuts, 8);  // one piece alone
  // Token 18 of the first prompt: its heads lie in two pieces.
  const StepContents middle = planned(sizes, spans, {18});
  CHECK(pieces(middle) == Pieces({{0, 1}, {0, 0}, {0, 3}, {0, 2}, {2, 2}, {2, 1}, {2, 0}}));
  CHECK_EQ(middle.prefill_launches.at(0).wanted, 2);
  CHECK_EQ(planned(sizes, spans).prefill_launches.at(0).wanted, 0);  // none: the prompts go on later
  std::vector<int32_t> all;
  for (int32_t row = 0; row < 101; ++row) all.push_back(row);
  CHECK_EQ(planned(sizes, spans, all).prefill_launches.at(0).wanted, 7);
}

// Runs of 128 rows, if they are few and no more than half of all.
TEST(few_wanted_rows_are_runs) {
  using Runs = std::vector<std::pair<int32_t, int32_t>>;
  const auto runs = [](int32_t rows, const std::vector<int32_t>& wanted) {
    Runs found;
    const StepContents contents = planned({}, {{0, 0, rows}}, wanted);
    if (!contents.wanted.has_value()) return Runs({{-1, -1}});
    for (const RowRun& run : *contents.wanted) found.push_back({run.first, run.end});
    return found;
  };
  const Runs none = {{-1, -1}};
  CHECK(runs(2000, {1999}) == Runs({{1920, 2000}}));
  CHECK(runs(2000, {1999, 5, 300, 6}) == Runs({{0, 128}, {256, 384}, {1920, 2000}}));
  CHECK(runs(2000, {127, 128}) == Runs({{0, 256}}));
  CHECK(runs(2000, {}) == Runs());  // of none
  CHECK(runs(256, {0}) == Runs({{0, 128}}));
  CHECK(runs(255, {0}) == none);
  CHECK(runs(4000, {0, 300, 600, 900}).size() == 4);
  CHECK(runs(4000, {0, 300, 600, 900, 1200}) == none);
}

TEST(a_window_s_rows_are_cut_by_what_they_see) {
  PlanSizes sizes;
  sizes.window = 1024;
  const Cut windowed = cut(sizes, {50000});
  CHECK(windowed.part_tokens == kSplitTokens && windowed.pieces <= 5);
}

TEST(prompts_over_bf16_are_one_launch) {
  const StepContents contents = planned({}, {{0, 0, 100}, {1, 700, 1}, {2, 16, 70}});
  CHECK(contents.unpacked.empty());
  CHECK_EQ(contents.prefill_launches.size(), size_t{1});
  CHECK_EQ(contents.prefill_launches[0].pieces, 4);  // of 64 rows
  CHECK_EQ(contents.prefill_launches[0].blocks, 0);
  CHECK_EQ(contents.prefill_pieces.size(), size_t{4});
  CHECK(planned({}, {{1, 700, 1}}).prefill_launches.empty());
}

// Of a cache of codes: whole contexts, as many as there is room for.
TEST(prompts_over_codes_are_unpacked_by_launches) {
  PlanSizes sizes;
  sizes.unpacked_blocks = 10;
  const StepContents contents =
      planned(sizes, {{4, 0, 100}, {1, 700, 1}, {2, 16, 31}, {3, 0, 2}, {0, 150, 10}});
  CHECK_EQ(contents.prefill_launches.size(), size_t{3});
  CHECK_EQ(contents.unpacked.size(), size_t{4});  // decode rows read codes
  const int32_t spans[] = {2, 1, 1}, blocks[] = {10, 1, 10}, pieces[] = {3, 1, 1};
  for (size_t i = 0; i < 3; ++i) {
    CHECK_EQ(contents.prefill_launches[i].unpacked, spans[i]);
    CHECK_EQ(contents.prefill_launches[i].blocks, blocks[i]);
    CHECK_EQ(contents.prefill_launches[i].pieces, pieces[i]);
  }
  const UnpackSpan wanted[] = {{4, 0, 0, 100}, {2, 7, 16, 47}, {3, 0, 0, 2}, {0, 0, 150, 160}};
  const StepSizes of_step = contents.sizes();
  const StepLayout at(of_step);
  std::vector<int32_t> words(at.total);
  contents.write(words.data(), at, of_step);
  for (int i = 0; i < 4; ++i) {
    const int32_t* found = words.data() + at.unpacked + 4 * i;
    CHECK_EQ(found[0], wanted[i].slot);
    CHECK_EQ(found[1], wanted[i].first);
    CHECK_EQ(found[2], wanted[i].start);
    CHECK_EQ(found[3], wanted[i].end);
  }
}

}  // namespace
}  // namespace ion::cuda

int main(int argc, char** argv) {
  return check::main(argc, argv);
}
