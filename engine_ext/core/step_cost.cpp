// See step_cost.h.
#include "core/step_cost.h"

#include <algorithm>
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

constexpr int64_t kContext = 1024;  // contexts of all decode rows below it are one class
constexpr double kRidge = 1e-3;     // keeps the fit defined while steps are few or alike
constexpr double kAim = 0.95;       // of the bound: steps of one load vary by some percent
constexpr double kFar = 0.25;       // of what is allowed: up to there chunks double
constexpr double kNearly = 1.25;    // of the least chunk's time, where that breaks the bound

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

PrefillFit::Terms PrefillFit::terms(double tokens, double context) {
  const double t = tokens / 256.0, c = context / 4096.0;  // all of about one size
  return {1.0, t, c, t * c};
}

double PrefillFit::seconds(double tokens, double context) const {
  const Terms x = terms(tokens, context);
  double sum = 0.0;
  for (int i = 0; i < kTerms; ++i) sum += factors_[i] * x[i];
  return sum;
}

// The normal equations, solved by coordinate descent: each factor in turn is the best one beside the others.
void PrefillFit::fit(const std::vector<PrefillSample>& samples) {
  constexpr int kSweeps = 30;
  std::array<Terms, kTerms> products{};
  Terms sums{};
  for (const PrefillSample& sample : samples) {
    const Terms x = terms(sample.tokens, sample.context);
    for (int i = 0; i < kTerms; ++i) {
      for (int j = 0; j < kTerms; ++j) products[i][j] += x[i] * x[j];
      sums[i] += x[i] * sample.seconds;
    }
  }
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (int i = 0; i < kTerms; ++i) {
      double rest = sums[i];
      for (int j = 0; j < kTerms; ++j) rest -= j == i ? 0.0 : products[i][j] * factors_[j];
      const double best = rest / (products[i][i] + kRidge);
      factors_[i] = i == 0 ? best : std::max(best, 0.0);
    }
  }
}

StepCost::Key StepCost::alone_key(const StepLoad& load) {
  return {class_for(load.decode_rows), class_for(load.decode_context / kContext)};
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

double StepCost::error(const Prefill& prefill) const {
  RecentValues errors;
  for (const PrefillSample& sample : prefill.samples)
    errors.add(sample.seconds - fit_.seconds(sample.tokens, sample.context));
  return errors.high();
}

// Null: nothing is known of any.
const StepCost::Prefill* StepCost::nearest(int size_class) const {
  const Prefill* found = nullptr;
  int least = 0;
  for (const auto& [other, prefill] : prefill_) {
    const int distance = std::abs(other - size_class);
    if (prefill.samples.empty() || (found != nullptr && distance >= least)) continue;
    found = &prefill;
    least = distance;
  }
  return found;
}

// -1: none.
int StepCost::longest_known() const {
  int longest = -1;
  for (const auto& [size_class, prefill] : prefill_) {
    if (!prefill.samples.empty()) longest = size_class;
  }
  return longest;
}

double StepCost::extra(int32_t tokens, int64_t context) const {
  const Prefill* prefill = nearest(class_of(tokens));
  const double error_s = prefill != nullptr ? error(*prefill) : 0.0;
  return std::max(fit_.seconds(tokens, static_cast<double>(context)) + error_s, 0.0);
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
  const int longest = longest_known();
  if (longest < 0 || choice.alone_s <= 0.0) return choice;
  const auto least = prefill_.find(0);
  const bool is_least_known = least != prefill_.end() && !least->second.samples.empty();
  const double least_s = is_least_known ? extra(options_.least, context) : 0.0;
  const double bound_s = (kAim * options_.ratio - 1.0) * choice.alone_s;
  const double allowed = least_s > bound_s ? kNearly * least_s : bound_s;
  const bool is_far = extra(tokens_of(longest), context) <= kFar * allowed;
  const int32_t reach = std::min(most, is_far ? 2 * tokens_of(longest) : tokens_of(longest + 1));
  for (int size_class = 0; tokens_of(size_class) < 2 * reach; ++size_class) {
    const int32_t tokens = std::min(tokens_of(size_class), reach);
    if (extra(tokens, context + tokens / 2) <= allowed) choice.tokens = std::max(choice.tokens, tokens);
  }
  return choice;
}

double StepCost::predict(const StepLoad& load) const {
  const std::optional<double> alone_s = alone(load);
  if (!alone_s || longest_known() < 0 || load.prefill_tokens == 0) return 0.0;
  return *alone_s + extra(load.prefill_tokens, load.prefill_context / load.prefill_tokens);
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
  const std::optional<double> alone_s = alone(load);
  if (!alone_s) return;
  ++num_mixed_;
  std::erase_if(prefill_, [&](const auto& entry) { return num_mixed_ - entry.second.seen_at > kForgotten; });
  const auto [it, is_new] = prefill_.try_emplace(class_of(load.prefill_tokens));
  Prefill& prefill = it->second;
  prefill.seen_at = num_mixed_;
  if (is_new) return;
  const double tokens = load.prefill_tokens, context = static_cast<double>(load.prefill_context) / tokens;
  prefill.samples.push_back({tokens, context, std::max(seconds - *alone_s, 0.0)});
  if (prefill.samples.size() > RecentValues::kKept) prefill.samples.pop_front();
  fit();
}

// Of each number of tokens the longest step is left out: it may have been something else that took the time.
void StepCost::fit() {
  std::vector<PrefillSample> taken;
  for (const auto& [size_class, prefill] : prefill_) {
    const auto longest = std::ranges::max_element(prefill.samples, {}, &PrefillSample::seconds);
    for (auto it = prefill.samples.begin(); it != prefill.samples.end(); ++it) {
      if (it != longest || prefill.samples.size() == 1) taken.push_back(*it);
    }
  }
  fit_.fit(taken);
}

}  // namespace ion
