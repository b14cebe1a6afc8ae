#include "cuda/step_buffer.h"

#include <algorithm>
#include <cstring>
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

// One turn of the kernel's blocks.
int64_t wanted_pieces(const PlanSizes& sizes, const std::vector<Span>& spans) {
  const auto is_decode = [](const Span& span) { return span.count == 1; };
  const int64_t rows = std::count_if(spans.begin(), spans.end(), is_decode);
  const DecodeWidth width = decode_width(rows * sizes.decode_units, sizes.num_sms);
  return std::max<int64_t>(1, resident_pieces(width, sizes.num_sms) / sizes.decode_units);
}

// Of a span of one token.
int32_t first_part(const PlanSizes& sizes, const Span& span, int32_t part_tokens) {
  return (sizes.window > 0 ? std::max(0, span.start - sizes.window + 1) : 0) / part_tokens;
}

}  // namespace

void StepContents::plan(const PlanSizes& sizes) {
  if (sizes.is_deterministic) return plan_tokens(sizes);
  const auto count_pieces = [&] {
    int64_t count = 0;
    for (const Span& span : spans) {
      if (span.count == 1) count += span.start / part_tokens - first_part(sizes, span, part_tokens) + 1;
    }
    return count;
  };
  constexpr int32_t kLongest = 1 << 20;
  const int64_t most = sizes.most_pieces > 0 ? sizes.most_pieces : wanted_pieces(sizes, spans);
  const bool is_short = std::all_of(spans.begin(), spans.end(), [](const Span& span) {
    return span.count > 1 || span.start < kWholeTokens;
  });
  part_tokens = is_short ? kWholeTokens : kSplitTokens;
  while (part_tokens < kLongest && count_pieces() > most) part_tokens *= 2;
  for (size_t i = 0; i < spans.size(); ++i) {
    const Span& span = spans[i];
    const auto index = static_cast<int32_t>(i);
    if (span.count == 1) {
      const int32_t last = span.start / part_tokens;
      for (int32_t part = first_part(sizes, span, part_tokens); part <= last; ++part)
        decode_pieces.push_back({index, part});
      continue;
    }
    // The last rows see most: they begin first.
    const int32_t packed = span.count * sizes.packed_heads;
    for (int32_t part = (packed - 1) / sizes.prefill_rows; part >= 0; --part)
      prefill_pieces.push_back({index, part});
  }
}

void StepContents::plan_tokens(const PlanSizes& sizes) {
  std::vector<Span> tokens;
  for (const Span& span : spans) {
    for (int32_t i = 0; i < span.count; ++i) {
      tokens.push_back({span.slot, span.first_row + i, span.start + i, 1});
    }
  }
  has_chunks = tokens.size() > spans.size();
  spans = std::move(tokens);
  part_tokens = kSplitTokens;
  int64_t of_launch = 0;
  for (size_t i = 0; i < spans.size(); ++i) {
    const int32_t first = first_part(sizes, spans[i], part_tokens), last = spans[i].start / part_tokens;
    const int32_t count = last - first + 1;
    if (of_launch > 0 && of_launch + count > sizes.pieces_a_launch) {
      decode_launches.push_back(static_cast<int32_t>(of_launch));
      of_launch = 0;
    }
    of_launch += count;
    for (int32_t part = first; part <= last; ++part) decode_pieces.push_back({static_cast<int32_t>(i), part});
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
  put(to + at.appends, appends);
  put(to + at.decode_pieces, decode_pieces);
  put(to + at.prefill_pieces, prefill_pieces);
}

}  // namespace ion::cuda
