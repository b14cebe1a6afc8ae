// What steps cost, learned from those that ran, and how much prefill fits beside decode rows without slowing
// them too much. Knows no sequences and no clock: it is told how long a step took.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace ion {

// What a step's duration depends on.
struct StepLoad {
  int32_t decode_rows = 0;
  int64_t decode_context = 0;  // positions that the decode rows attend to, together
  int32_t prefill_tokens = 0;
  int64_t prefill_context = 0;  // positions that the prefill tokens attend to, together
  bool is_mixed() const { return decode_rows > 0 && prefill_tokens > 0; }
};

// A typical value of the last five: one outlier among them (a graph being captured, a busy machine) has no
// say, and what is long ago none either.
class RecentValues {
 public:
  static constexpr int kKept = 5;
  void add(double value);
  double lower_median() const { return at((num_ - 1) / 2); }
  // The second largest of five, for those who had rather expect too much.
  double high() const { return num_ == kKept ? at(kKept - 2) : lower_median(); }

 private:
  double at(int place) const;  // in ascending order
  double values_[kKept] = {};
  int num_ = 0, next_ = 0;
};

// What `tokens` of prefill, each attending to `context` positions, added to a step.
struct PrefillSample {
  double tokens, context, seconds;
};

// Those seconds as
//
//   a + b tokens + c context + d tokens context,   b, c, d >= 0
//
// by least squares. `a` is negative where the first tokens are free beside the weights that a step reads
// anyway. `c` is attention whose few blocks go through a long context one after the other; it can be most of
// it.
class PrefillFit {
 public:
  double seconds(double tokens, double context) const;
  void fit(const std::vector<PrefillSample>& samples);

 private:
  static constexpr int kTerms = 4;
  using Terms = std::array<double, kTerms>;
  static Terms terms(double tokens, double context);
  Terms factors_{};
};

// The table:
//
//   alone     seconds of decode-only steps, by (rows, context)
//   prefill   the last steps with about so many prefill tokens. PrefillFit goes through all of them, and
//             where it is off for a number of tokens (another kernel takes over, and cost jumps), by so much
//             is what it says corrected. The first such step does not count: libraries prepare for a shape
//             in it.
//
// Numbers are looked up by size class, four to an octave. An unknown cell of `alone` takes its value from the
// costliest that cannot cost more, of `prefill` from the nearest. What was never measured is
// approached: a table that knows nothing begins with the least chunk, doubles it while that costs little, and
// then goes up a class at a time.
//
// Where the least chunk breaks the bound, the chunk is the longest that takes a quarter more than that: time
// that goes by context and not by tokens is no reason to compute few.
class StepCost {
 public:
  struct Options {
    double ratio = 0.0;  // a mixed step takes at most so many times as long as without prefill; 0: no bound
    int32_t least = 16;  // tokens, so that prompts always get on
  };
  struct Choice {
    int32_t tokens = 0;
    double alone_s = 0.0;  // of these decode rows by themselves; 0: unknown
  };

  explicit StepCost(Options options) : options_(options) {}

  // How many prefill tokens, of `most`, go beside the decode rows of `load`; `context` is where the first of
  // them is in its sequence. 0, for one step, measures those rows alone: now and then, or nothing is known.
  Choice choose(const StepLoad& load, int64_t context, int32_t most);
  // Expected seconds of a mixed step; 0: unknown.
  double predict(const StepLoad& load) const;
  // A step with this load took so long. Steps without decode rows teach nothing.
  void learn(const StepLoad& load, double seconds);

 private:
  struct Alone {
    RecentValues seconds;
    int64_t seen_at = 0;  // steps learned before it
  };
  struct Prefill {
    std::deque<PrefillSample> samples;  // the last RecentValues::kKept, but for the first
    int64_t seen_at = 0;                // mixed steps before it
  };
  using Key = std::pair<int, int>;

  // A decode-only cell is measured anew after so many steps, at most one step in so many is spent on that,
  // and what was last seen so many mixed steps ago is forgotten: a chunk that looked too costly is tried
  // again.
  static constexpr int64_t kFresh = 64, kBetweenProbes = 16, kForgotten = 256;

  static Key alone_key(const StepLoad& load);
  std::optional<double> alone(const StepLoad& load) const;
  bool wants_probe(const StepLoad& load) const;
  int32_t tokens_of(int size_class) const;
  int class_of(int32_t tokens) const;
  double error(const Prefill& prefill) const;
  const Prefill* nearest(int size_class) const;
  int longest_known() const;
  double extra(int32_t tokens, int64_t context) const;
  void learn_extra(const StepLoad& load, double seconds);
  void fit();

  const Options options_;
  std::map<Key, Alone> alone_;
  PrefillFit fit_;
  std::map<int, Prefill> prefill_;  // by size class of the tokens, in blocks of `least`
  int64_t num_learned_ = 0, num_mixed_ = 0;
  int64_t num_chosen_ = 0;
  int64_t probed_at_ = -kBetweenProbes;  // the choice that was none
};

}  // namespace ion
