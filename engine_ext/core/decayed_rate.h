// Tokens per second, recent work weighing more. Knows no clock: it is told how long the work took.
#pragma once

#include <cmath>

namespace ion {

// The ratio of two exponentially decayed sums. Decay goes by the seconds of work, so an idle engine keeps its
// rate and a few slow steps count by how long they were, not by how many.
class DecayedRate {
 public:
  explicit DecayedRate(double memory_s = 10.0) : memory_s_(memory_s) {}

  void add(double num_tokens, double seconds) {
    if (!(seconds > 0.0)) return;
    const double keep = std::exp(-seconds / memory_s_);
    num_tokens_ = num_tokens_ * keep + num_tokens;
    seconds_ = seconds_ * keep + seconds;
  }
  // 0 before the first add.
  double per_second() const { return seconds_ > 0.0 ? num_tokens_ / seconds_ : 0.0; }

 private:
  double memory_s_;
  double num_tokens_ = 0.0;
  double seconds_ = 0.0;
};

}  // namespace ion
