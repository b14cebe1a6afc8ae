#include "cuda/step_buffer.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

namespace ion::cuda {
namespace {

template <typename T>
void put(int32_t* to, const std::vector<T>& from) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size() * sizeof(T));
}

void put_padded(int32_t* to, const std::vector<int32_t>& from, int64_t size, int32_t padding) {
  put(to, from);
  std::fill(to + from.size(), to + size, padding);
}

// Of a span's first token.
int32_t first_seen(const PlanSizes& sizes, const Span& span) {
  return sizes.window > 0 ? std::max(0, span.start - sizes.window + 1) : 0;
}

int32_t first_part(const PlanSizes& sizes, const Span& span, int32_t part_tokens) {
  return first_seen(sizes, span) / part_tokens;
}

// The decode rows of a step, by the length of their pieces.
class DecodeRows {
 public:
  DecodeRows(const PlanSizes& sizes, const std::vector<Span>& spans) : sizes_(sizes) {
    for (const Span& span : spans) {
      if (span.count > 1) {
        is_alone_ = false;
      } else {
        rows_.push_back(span);
        longest_ = std::max(longest_, span.start + 1);
      }
    }
    width_ = best_width();
  }

  DecodeWidth width() const { return width_; }

  // Pieces of all rows may be resident in so many rounds of the device's blocks, one behind the other: the
  // length that takes the least time, which is each round's piece and what it costs to begin it.
  int32_t best_length() const {
    if (longest_ <= kWholeTokens) return kWholeTokens;
    if (sizes_.most_pieces > 0) return least_length(sizes_.most_pieces);
    const int64_t rows = std::ssize(rows_);
    const int64_t resident =
        std::max<int64_t>(1, resident_pieces(width_, sizes_.num_sms) / sizes_.decode_units);
    const int32_t begin = width_ == DecodeWidth::ring ? kRingBeginTokens : kBeginTokens;
    const int64_t fewest = (rows + resident - 1) / resident;
    int32_t best = 0;
    int64_t least = 0;
    for (int64_t rounds = fewest; rounds < fewest + kMostRounds; ++rounds) {
      const int32_t length = least_length(rounds * resident);
      const int64_t cost = rounds * (length + begin);
      if (best == 0 || cost < least) best = length, least = cost;
    }
    return best;
  }

 private:
  static constexpr int64_t kMostRounds = 4;
  static constexpr int64_t kLargeRows = 16;  // up to so many are few for DecodeWidth::eight
  // What it costs to begin a piece and to bring it together with the others, in tokens read meanwhile
  // (measured: docs/decisions/0050-long-rows-in-even-pieces.md).
  static constexpr int32_t kBeginTokens = 384, kRingBeginTokens = 256;

  const PlanSizes& sizes_;
  std::vector<Span> rows_;
  int32_t longest_ = 0;
  bool is_alone_ = true;  // no prompt beside them
  DecodeWidth width_ = DecodeWidth::four;

  DecodeWidth best_width() const {
    if (sizes_.width.has_value()) return *sizes_.width;
    const int64_t rows = std::ssize(rows_);
    int64_t tokens = 0;
    for (const Span& row : rows_) tokens += row.start + 1 - first_seen(sizes_, row);
    const DecodeWidth width = decode_width(rows * sizes_.decode_units, tokens * sizes_.decode_units,
                                           sizes_.num_sms, sizes_.has_ring);
    // The products of a large layer leave attention time to be short rather than resident beside them.
    const bool is_few = sizes_.is_large && is_alone_ && rows <= kLargeRows;
    return is_few && width != DecodeWidth::ring ? DecodeWidth::eight : width;
  }

  int64_t pieces_of(int32_t length) const {
    int64_t count = 0;
    for (const Span& row : rows_) count += row.start / length - first_part(sizes_, row, length) + 1;
    return count;
  }

  // The least one, in blocks of the cache, that makes no more pieces than `most`, which is a row's at least.
  int32_t least_length(int64_t most) const {
    int32_t low = kSplitTokens / kKvBlock, high = (longest_ + kKvBlock - 1) / kKvBlock;
    while (low < high) {
      const int32_t middle = (low + high) / 2;
      if (pieces_of(middle * kKvBlock) <= most) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low * kKvBlock;
  }
};

}  // namespace

// The pieces of a row, in order.
void StepContents::add_pieces(const PlanSizes& sizes, int32_t index) {
  const Span& row = spans[index];
  for (int32_t part = first_part(sizes, row, part_tokens); part <= row.start / part_tokens; ++part) {
    decode_pieces.push_back({index, part});
  }
}

void StepContents::plan(const PlanSizes& sizes) {
  if (sizes.is_deterministic) return plan_tokens(sizes);
  const DecodeRows rows(sizes, spans);
  part_tokens = rows.best_length();
  width = rows.width();
  for (size_t i = 0; i < spans.size(); ++i) {
    const Span& span = spans[i];
    const auto index = static_cast<int32_t>(i);
    if (span.count == 1) {
      add_pieces(sizes, index);
      continue;
    }
    add_prompt(sizes, index);
  }
  find_wanted();
  put_wanted_first(sizes);
  cut_prompts(sizes);
  find_rotated();
}

void StepContents::find_wanted() {
  constexpr int32_t kWantedRows = 128;  // what a product of many rows computes together
  constexpr size_t kMostRuns = 4;       // a product each, which all are shorter than one of all rows
  const auto num_rows = static_cast<int32_t>(ids.size());
  std::vector<RowRun> runs;
  std::vector<int32_t> rows = logit_rows;
  std::sort(rows.begin(), rows.end());
  int32_t count = 0;
  for (const int32_t row : rows) {
    const int32_t first = row / kWantedRows * kWantedRows, end = std::min(first + kWantedRows, num_rows);
    if (!runs.empty() && end <= runs.back().end) continue;
    count += end - first;
    if (!runs.empty() && first == runs.back().end) {
      runs.back().end = end;
    } else {
      runs.push_back({first, end});
    }
  }
  if (runs.size() <= kMostRuns && 2 * count <= num_rows) wanted = std::move(runs);
}

// Of prompts few rows' logits are wanted, mostly the last one's.
void StepContents::put_wanted_first(const PlanSizes& sizes) {
  std::vector<bool> is_wanted(ids.size());
  for (const int32_t row : logit_rows) is_wanted[row] = true;
  const auto has_wanted = [&](const Piece& piece) {
    const Span& span = spans[piece.span];
    const int32_t heads = sizes.packed_heads, packed = piece.part * sizes.prefill_rows;
    const int32_t end = std::min(span.count, (packed + sizes.prefill_rows - 1) / heads + 1);
    const auto rows = is_wanted.begin() + span.first_row;
    return std::find(rows + packed / heads, rows + end, true) != rows + end;
  };
  auto pieces = prefill_pieces.begin();
  for (PrefillLaunch& launch : prefill_launches) {
    const auto end = pieces + launch.pieces;
    launch.wanted = static_cast<int32_t>(std::stable_partition(pieces, end, has_wanted) - pieces);
    pieces = end;
  }
}

// A block goes through its piece's tokens alone, and is all that its multiprocessor has: where there are few
// pieces, the others take a share.
void StepContents::cut_prompts(const PlanSizes& sizes) {
  constexpr int32_t kLeastTiles = 2;  // of a cut: to bring them together takes about as long
  for (PrefillLaunch& launch : prefill_launches) {
    const auto cuts_of = [&](int32_t pieces) {
      int32_t cuts = std::min(kMostCuts, launch.longest / kWideTileTokens / kLeastTiles);
      while (cuts > 1 && pieces * sizes.prefill_units > sizes.prefill_room[cuts]) --cuts;
      return std::max(1, cuts);
    };
    launch.cuts = cuts_of(launch.pieces);
    launch.wanted_cuts = cuts_of(launch.wanted);
  }
}

// Beside prompts, whose rows have to be rotated first, the ring rotates its own rows all the same, where
// those lie together, before or behind the prompts'. The other decode kernels leave them to whoever rotates
// the prompts'.
void StepContents::find_rotated() {
  int64_t first = std::ssize(ids), end = 0, count = 0;
  for (const Span& span : spans) {
    if (span.count == 1) continue;
    first = std::min<int64_t>(first, span.first_row);
    end = std::max<int64_t>(end, span.first_row + span.count);
    count += span.count;
  }
  if (count == 0) return;
  const bool is_whole = width != DecodeWidth::ring || end - first > count;
  first_rotated = is_whole ? 0 : first;
  num_rotated = is_whole ? std::ssize(ids) : count;
}

void StepContents::add_prompt(const PlanSizes& sizes, int32_t index) {
  const Span& span = spans[index];
  const int32_t end = span.start + span.count;
  const int32_t blocks = sizes.unpacked_blocks > 0 ? (end + kKvBlock - 1) / kKvBlock : 0;
  if (prefill_launches.empty() || prefill_launches.back().blocks + blocks > sizes.unpacked_blocks) {
    prefill_launches.emplace_back();
  }
  PrefillLaunch& launch = prefill_launches.back();
  launch.longest = std::max(launch.longest, end - first_seen(sizes, span));
  if (blocks > 0) {
    unpacked.push_back({span.slot, launch.blocks, span.start, end});
    ++launch.unpacked;
    launch.blocks += blocks;
  }
  // The last rows see most: they begin first.
  const int32_t packed = span.count * sizes.packed_heads, parts = (packed - 1) / sizes.prefill_rows + 1;
  for (int32_t part = parts - 1; part >= 0; --part) prefill_pieces.push_back({index, part});
  launch.pieces += parts;
}

void StepContents::plan_tokens(const PlanSizes& sizes) {
  std::vector<Span> tokens;
  for (const Span& span : spans) {
    for (int32_t i = 0; i < span.count; ++i) {
      tokens.push_back({span.slot, span.first_row + i, span.start + i, 1});
    }
  }
  has_chunks = tokens.size() > spans.size();
  num_rotated = has_chunks ? std::ssize(ids) : 0;
  spans = std::move(tokens);
  part_tokens = kSplitTokens;
  width = sizes.width.value_or(width);
  int64_t of_launch = 0;
  for (size_t i = 0; i < spans.size(); ++i) {
    const auto before = std::ssize(decode_pieces);
    add_pieces(sizes, static_cast<int32_t>(i));
    const int64_t count = std::ssize(decode_pieces) - before;
    if (of_launch > 0 && of_launch + count > sizes.pieces_a_launch) {
      decode_launches.push_back(static_cast<int32_t>(of_launch));
      of_launch = 0;
    }
    of_launch += count;
  }
  if (!decode_launches.empty()) decode_launches.push_back(static_cast<int32_t>(of_launch));
}

void StepContents::write(int32_t* to, const StepLayout& at, const StepSizes& padded) const {
  to[at.counts] = static_cast<int32_t>(decode_pieces.size());
  for (size_t i = 0; i < decode_launches.size(); ++i) {
    to[at.counts + 4 * i] = decode_launches[i];
    to[at.counts + 4 * i + 3] = part_tokens;
  }
  to[at.counts + 1] = static_cast<int32_t>(prefill_pieces.size());
  to[at.counts + 2] = static_cast<int32_t>(appends.size() / 3);
  to[at.counts + 3] = part_tokens;
  put_padded(to + at.ids, ids, padded.rows, 0);
  put_padded(to + at.slots, slots, padded.rows, -1);
  put_padded(to + at.positions, positions, padded.rows, 0);
  put_padded(to + at.logit_rows, logit_rows, padded.samples, -1);
  put_padded(to + at.sample_slots, sample_slots, padded.samples, -1);
  put_padded(to + at.sample_positions, sample_positions, padded.samples, 0);
  put(to + at.spans, spans);
  put(to + at.unpacked, unpacked);
  put(to + at.appends, appends);
  put(to + at.decode_pieces, decode_pieces);
  put(to + at.prefill_pieces, prefill_pieces);
}

}  // namespace ion::cuda
