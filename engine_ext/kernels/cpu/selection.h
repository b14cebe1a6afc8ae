// The largest few of a row without sorting it. Knows no probabilities.
//
// A row is seen in runs of 64. Where the k-th largest of the runs' maxima is t, at least k values are >= t,
// and in a row of logits hardly more than that: one pass finds the maxima, one collects, and only the
// collected are ordered, piece by piece, as far as somebody asks.
#pragma once

#include <cstdint>

namespace ion::kernels {

struct Candidate {
  float value;
  int32_t id;
};

// Larger values first, equal ones by lower id: a total order, so that ties never depend on the algorithm.
inline bool comes_before(const Candidate& a, const Candidate& b) {
  return a.value > b.value || (a.value == b.value && a.id < b.id);
}

class Selection {
 public:
  static int64_t scratch_bytes(int64_t size);

  // `values` stay with the caller and may not change; values below `floor` are left out.
  Selection(const float* values, int64_t size, float floor, void* scratch);

  // Makes the first `count` in order available, or all there are; returns how many are.
  int64_t order(int64_t count);

  // Whether there is an i-th (from 0) in order; makes it available. For asking one after the other.
  bool reaches(int64_t i);

  const Candidate& operator[](int64_t i) const { return candidates_[i]; }

 private:
  void collect(int64_t wanted);
  float threshold(int64_t wanted);
  void order_piece();

  const float* values_;
  int64_t size_;
  float floor_;
  int64_t num_runs_;
  float* maxima_;          // [num_runs]
  float* order_of_runs_;   // [num_runs] scratch
  Candidate* candidates_;  // [size]
  int64_t num_collected_ = 0;
  int64_t num_ordered_ = 0;
  bool has_all_ = false;  // whether every value >= floor is collected
};

float largest_of(const float* values, int64_t size);  // -infinity if empty; values hold no NaN

}  // namespace ion::kernels
