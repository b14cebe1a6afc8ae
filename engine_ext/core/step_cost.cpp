// See step_cost.h.
#include "core/step_cost.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>

namespace ion {
namespace {

// Size classes, four to an octave: 1 2 3 4 5 6 7 8 10 12 14 16 20 ...
int64_t size_of(int size_class) {
  if (size_class < 3) return size_class + 1;
  return int64_t{4 + (size_class - 3) % 4} << ((size_class - 3) / 4);
}

// The least class that holds `n`.
int class_for(int64_t n) {
  int found = 0;
  while (size_of(found) < n) ++found;
  return found;
}

constexpr int64_t kContext = 1024;  // contexts below it are one class
constexpr double kAim = 0.95;       // of the bound: steps of one load vary by some percent
constexpr double kWhole = 0.75;     // of a size class's tokens, for a step to tell of it

// One to an octave.
int coarse(int64_t n) {
  return std::bit_width(static_cast<uint64_t>(n));
}

}  // namespace

void RecentValues::add(double value) {
  values_[next_] = value;
  next_ = (next_ + 1) % kKept;
  num_ = std::min(num_ + 1, kKept);
}

double RecentValues::at(int place) const {
  double sorted[kKept];
  std::copy(values_, values_ + num_, sorted);
  std::sort(sorted, sorted + num_);
  return num_ > 0 ? sorted[place] : 0.0;
}

StepCost::Key StepCost::alone_key(const StepLoad& load) {
  return {class_for(load.decode_rows), class_for(load.decode_context / kContext)};
}

StepCost::Key StepCost::curve_key(int32_t decode_rows, int64_t context) {
  return {coarse(decode_rows), coarse(context / kContext)};
}

int32_t StepCost::tokens_of(int size_class) const {
  return static_cast<int32_t>(std::min<int64_t>(size_of(size_class) * options_.least, INT32_MAX));
}

int StepCost::class_of(int32_t tokens) const {
  return class_for((int64_t{tokens} + options_.least - 1) / options_.least);
}

// More rows and more context never cost less, so any cell with at most as much of both is a lower bound.
std::optional<double> StepCost::alone(const StepLoad& load) const {
  const Key key = alone_key(load);
  if (const auto found = alone_.find(key); found != alone_.end()) return found->second.seconds.lower_median();
  std::optional<double> most_below, least_of_all;
  for (const auto& [other, cell] : alone_) {
    const double seconds = cell.seconds.lower_median();
    if (other.first <= key.first && other.second <= key.second)
      most_below = std::max(seconds, most_below.value_or(seconds));
    least_of_all = std::min(seconds, least_of_all.value_or(seconds));
  }
  return most_below ? most_below : least_of_all;
}

bool StepCost::wants_probe(const StepLoad& load) const {
  if (num_chosen_ - probed_at_ < kBetweenProbes) return false;
  const auto found = alone_.find(alone_key(load));
  return found == alone_.end() || num_learned_ - found->second.seen_at > kFresh;
}

const StepCost::Curve* StepCost::nearest_curve(Key key) const {
  const Curve* nearest = nullptr;
  int least = 0;
  for (const auto& [other, curve] : extra_) {
    const int distance = std::abs(other.first - key.first) + std::abs(other.second - key.second);
    if (nearest == nullptr || distance < least) nearest = &curve, least = distance;
  }
  return nearest;
}

// False: it was left alone for long, and may have looked costlier than it is.
bool StepCost::is_known(const Curve& curve, const Point& point) {
  return curve.num_learned - point.seen_at <= kForgotten;
}

// 0: nothing is known.
int32_t StepCost::longest_known(const Curve& curve) const {
  int32_t longest = 0;
  for (const auto& [size_class, point] : curve.points) {
    if (is_known(curve, point)) longest = tokens_of(size_class);
  }
  return longest;
}

// The line through the known points; never falling, since more tokens never take less time.
double StepCost::extra(const Curve& curve, int32_t tokens) const {
  double before_tokens = 0.0, before_s = 0.0, slope = 0.0;
  bool is_first = true;
  for (const auto& [size_class, point] : curve.points) {
    if (!is_known(curve, point)) continue;
    const double at = tokens_of(size_class), seconds = std::max(point.value(), before_s);
    slope = (seconds - before_s) / (at - before_tokens);
    if (tokens <= at) return is_first ? seconds : before_s + slope * (tokens - before_tokens);
    before_tokens = at, before_s = seconds;
    is_first = false;
  }
  return before_s + slope * (tokens - before_tokens);
}

StepCost::Choice StepCost::choose(const StepLoad& load, int64_t context, int32_t most) {
  if (options_.ratio <= 0.0 || load.decode_rows == 0) return {most, alone(load).value_or(0.0)};
  ++num_chosen_;
  Choice choice{std::min(options_.least, most), alone(load).value_or(0.0)};
  if (wants_probe(load)) {
    probed_at_ = num_chosen_;
    choice.tokens = 0;
    return choice;
  }
  const Key key = curve_key(load.decode_rows, context);
  const auto own = extra_.find(key);
  const Curve* curve = own != extra_.end() ? &own->second : nearest_curve(key);
  if (curve == nullptr || choice.alone_s <= 0.0) return choice;
  const double allowed = (kAim * options_.ratio - 1.0) * choice.alone_s;
  const int32_t reach = std::min(most, 2 * std::max(longest_known(*curve), options_.least));
  for (int size_class = 0; choice.tokens < reach; ++size_class) {
    const int32_t tokens = std::min(tokens_of(size_class), reach);
    if (tokens > options_.least && extra(*curve, tokens) > allowed) break;
    choice.tokens = std::max(choice.tokens, tokens);
  }
  return choice;
}

double StepCost::predict(const StepLoad& load) const {
  const std::optional<double> alone_s = alone(load);
  const Curve* curve =
      nearest_curve(curve_key(load.decode_rows, load.prefill_context / std::max(load.prefill_tokens, 1)));
  if (!alone_s || curve == nullptr) return 0.0;
  return *alone_s + extra(*curve, load.prefill_tokens);
}

void StepCost::learn(const StepLoad& load, double seconds) {
  if (load.decode_rows == 0 || !(seconds > 0.0)) return;
  ++num_learned_;
  if (load.prefill_tokens > 0) return learn_extra(load, seconds);
  Alone& cell = alone_[alone_key(load)];
  cell.seconds.add(seconds);
  cell.seen_at = num_learned_;
}

void StepCost::learn_extra(const StepLoad& load, double seconds) {
  const int size_class = class_of(load.prefill_tokens);
  const double whole = tokens_of(size_class), part = load.prefill_tokens / whole;
  const std::optional<double> alone_s = alone(load);
  // Much less than the class's number of tokens says little of it.
  if (!alone_s || part < kWhole) return;
  const double measured = std::max(seconds - *alone_s, 0.0) / part;
  const Key key = curve_key(load.decode_rows, load.prefill_context / load.prefill_tokens);
  if (!extra_.contains(key)) extra_.emplace(key, curve_like_nearest(key, tokens_of(size_class), measured));
  Curve& curve = extra_.at(key);
  Point& point = curve.points[size_class];
  point.seconds.add(measured);
  point.is_prior = false;
  point.seen_at = ++curve.num_learned;
}

StepCost::Curve StepCost::curve_like_nearest(Key key, int32_t tokens, double measured) const {
  const Curve* nearest = nearest_curve(key);
  if (nearest == nullptr) return {};
  Curve curve;
  const double expected = extra(*nearest, tokens);
  const double scale = expected > 0.0 ? measured / expected : 1.0;
  for (const auto& [size_class, point] : nearest->points) {
    if (is_known(*nearest, point)) curve.points[size_class].prior = scale * point.value();
  }
  return curve;
}

}  // namespace ion
