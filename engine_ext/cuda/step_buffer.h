// A step as the device reads it: one piece of memory, filled on the host and copied whole. Offsets follow
// from sizes alone, so that a CUDA graph made for a number of rows finds everything where it was.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/cuda/kernels.h"

namespace ion::cuda {

struct StepSizes {
  int64_t rows = 0, spans = 0, samples = 0, appends = 0;
  int64_t decode_pieces = 0, prefill_pieces = 0;
  int64_t decode_launches = 1;  // of attention, for the decode pieces
  int64_t unpacked = 0;         // spans
};

// Offsets in int32.
struct StepLayout {
  int64_t counts, ids, slots, positions, logit_rows, sample_slots, sample_positions, spans, unpacked, appends;
  int64_t decode_pieces, prefill_pieces, total;

  explicit StepLayout(const StepSizes& sizes) {
    int64_t at = 0;
    const auto take = [&](int64_t size) {
      const int64_t begin = at;
      at += (size + 3) / 4 * 4;  // 16 bytes
      return begin;
    };
    // Of each launch: decode pieces, prefill pieces, appended blocks, tokens of a decode piece. The middle
    // two are the first one's to say.
    counts = take(4 * sizes.decode_launches);
    ids = take(sizes.rows);
    slots = take(sizes.rows);
    positions = take(sizes.rows);
    logit_rows = take(sizes.samples);
    sample_slots = take(sizes.samples);
    sample_positions = take(sizes.samples);
    spans = take(4 * sizes.spans);
    unpacked = take(4 * sizes.unpacked);
    appends = take(3 * sizes.appends);
    decode_pieces = take(2 * sizes.decode_pieces);
    prefill_pieces = take(2 * sizes.prefill_pieces);
    total = at;
  }
};

// What a model and a device ask of a plan.
struct PlanSizes {
  int32_t packed_heads = 1;             // query heads that share a packed row's token: kernels.h, Piece
  int32_t prefill_rows = kPrefillRows;  // packed rows of a piece
  int32_t prefill_units = 1;
  std::array<int32_t, kMostCuts + 1> prefill_room{};  // by cuts, from 2 on; 0: pieces are not cut
  int32_t window = 0;                                 // the widest of the layers', 0 where one sees all
  int32_t decode_units = 1;                           // attention_decode_units
  int32_t num_sms = 1;
  bool has_ring = false;             // DecodeWidth::ring
  bool is_large = false;             // few rows without a prompt beside them: DecodeWidth::eight
  std::optional<DecodeWidth> width;  // of any plan
  int64_t most_pieces = 0;           // of decode rows that may be cut; 0: as many as keep the device busy
  // Every token is a decode row of its own, cut every kSplitTokens: how it is computed follows from its
  // position alone.
  bool is_deterministic = false;
  int64_t pieces_a_launch = 0;  // then: room for the partial sums of so many, and of one row at least
  // Of a cache of codes: the context of so many blocks is unpacked for prompts at a time, one span's at
  // least; 0: none is.
  int32_t unpacked_blocks = 0;
};

// A launch of attention for prompts: whole spans, how often their pieces are cut, and what is unpacked for
// them.
struct PrefillLaunch {
  int32_t pieces = 0, cuts = 1, unpacked = 0, blocks = 0;  // unpacked: spans
  int32_t longest = 0;                                     // tokens that one of the spans may see
  // The first pieces, all that hold a row whose logits are wanted: behind the last layer's attention nobody
  // reads the others. How often they are cut alone.
  int32_t wanted = 0, wanted_cuts = 1;
};

// Rows [first, end) of a pass.
struct RowRun {
  int32_t first = 0, end = 0;
};

// What the host collects for a step before it is laid out.
struct StepContents {
  std::vector<int32_t> ids, slots, positions;
  std::vector<int32_t> logit_rows, sample_slots, sample_positions;
  std::vector<Span> spans;
  std::vector<int32_t> appends;  // (slot, index, block)
  std::vector<Piece> decode_pieces, prefill_pieces;
  std::vector<int32_t> decode_launches;  // pieces of each launch of attention, whole rows; empty: one of all
  std::vector<UnpackSpan> unpacked;
  std::vector<PrefillLaunch> prefill_launches;  // empty: there are no prompts
  // Runs that hold all rows whose logits are wanted, where those are few: nobody needs the last layer's q of
  // others.
  std::optional<std::vector<RowRun>> wanted;
  int32_t part_tokens = kSplitTokens;
  DecodeWidth width = DecodeWidth::four;
  // Rows that are rotated, and their K and V written, before attention: all of a step that holds a prompt, or
  // its prompts' alone where the ring takes the decode rows; none of a step without. The attention of decode
  // rows rotates the others, which are all of its own or none.
  int64_t first_rotated = 0, num_rotated = 0;
  bool has_chunks = false;  // decode rows that see others of this step: plans that are deterministic alone

  StepSizes sizes() const {
    return {static_cast<int64_t>(ids.size()),
            static_cast<int64_t>(spans.size()),
            static_cast<int64_t>(logit_rows.size()),
            static_cast<int64_t>(appends.size() / 3),
            static_cast<int64_t>(decode_pieces.size()),
            static_cast<int64_t>(prefill_pieces.size()),
            std::max<int64_t>(1, static_cast<int64_t>(decode_launches.size())),
            static_cast<int64_t>(unpacked.size())};
  }
  void add_span(const Span& span) { spans.push_back(span); }
  // Cuts the spans into pieces. Decode pieces are as long as lets the device's blocks end together, in whole
  // blocks of the cache, and no shorter than kSplitTokens: a short one costs as much as a long one. Where the
  // plan is deterministic their length is fixed, and spans become one for each token.
  void plan(const PlanSizes& sizes);
  // Writes everything to `to`, rows and samples padded with -1 slots up to the layout's sizes.
  void write(int32_t* to, const StepLayout& layout, const StepSizes& padded) const;

 private:
  void add_pieces(const PlanSizes& sizes, int32_t index);
  void add_prompt(const PlanSizes& sizes, int32_t index);
  void find_wanted();
  void put_wanted_first(const PlanSizes& sizes);
  void cut_prompts(const PlanSizes& sizes);
  void find_rotated();
  void plan_tokens(const PlanSizes& sizes);
};

}  // namespace ion::cuda
