// What steps cost, learned from those that ran, and how much prefill fits beside decode rows without slowing
// them too much. Knows no sequences and no clock: it is told how long a step took.
#pragma once

#include <cstdint>
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

// A typical value of the last few: one outlier among them (a graph being captured, a busy machine) has no
// say, and what is long ago none either.
class RecentValues {
 public:
  void add(double value);
  double lower_median() const { return at((num_ - 1) / 2); }
  // The second largest of all that are kept, for those who had rather expect too much.
  double high() const { return num_ == kKept ? at(kKept - 2) : lower_median(); }

 private:
  static constexpr int kKept = 5;
  double at(int place) const;  // in ascending order
  double values_[kKept] = {};
  int num_ = 0, next_ = 0;
};

// Two tables:
//
//   alone   seconds of decode-only steps, by (rows, context)
//   extra   seconds that prefill tokens add to such a step: for each (rows, context of a prefill token) a
//           curve over the number of tokens
//
// Numbers are looked up by size class: four to an octave for rows, decode context and tokens, one for the
// rest. An unknown cell takes its value from its neighbours: `alone` from the costliest one that cannot cost
// more; a new curve from the nearest curve, scaled by its first measurement; a point of a curve from those
// beside it, and beyond the longest measured chunk from the line through the last two, but only up to twice
// that chunk. Thus a table that knows nothing begins with the least chunk and doubles it.
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
  struct Point {
    RecentValues seconds;
    double prior = 0.0;    // taken over from another curve, until the first measurement
    bool is_prior = true;  // holds the prior alone
    int64_t seen_at = 0;   // mixed steps of the curve before it
    double value() const { return is_prior ? prior : seconds.high(); }
  };
  struct Curve {
    std::map<int, Point> points;  // by size class of the tokens, in blocks of `least`
    int64_t num_learned = 0;
  };
  struct Alone {
    RecentValues seconds;
    int64_t seen_at = 0;
  };
  using Key = std::pair<int, int>;

  // A decode-only cell is measured anew after so many steps, at most one step in so many is spent on that,
  // and a point that the scheduler avoids since it looked costly is tried again after so many mixed steps.
  static constexpr int64_t kFresh = 64, kBetweenProbes = 16, kForgotten = 256;

  static Key alone_key(const StepLoad& load);
  static Key curve_key(int32_t decode_rows, int64_t context);
  std::optional<double> alone(const StepLoad& load) const;
  bool wants_probe(const StepLoad& load) const;
  static bool is_known(const Curve& curve, const Point& point);
  const Curve* nearest_curve(Key key) const;
  Curve curve_like_nearest(Key key, int32_t tokens, double measured) const;
  double extra(const Curve& curve, int32_t tokens) const;
  int32_t longest_known(const Curve& curve) const;
  int32_t tokens_of(int size_class) const;
  int class_of(int32_t tokens) const;
  void learn_extra(const StepLoad& load, double seconds);

  const Options options_;
  std::map<Key, Alone> alone_;
  std::map<Key, Curve> extra_;
  int64_t num_learned_ = 0;
  int64_t num_chosen_ = 0;
  int64_t probed_at_ = -kBetweenProbes;  // the choice that was none
};

}  // namespace ion
