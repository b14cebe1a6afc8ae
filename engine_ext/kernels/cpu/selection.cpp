#include "selection.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace ion::kernels {
namespace {

constexpr int64_t kRun = 64;
constexpr int64_t kFirstPiece = 64;  // ordered at once; then as many again as are ordered

int64_t align64(int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}
int64_t runs_of(int64_t size) {
  return (size + kRun - 1) / kRun;
}

}  // namespace

float largest_of(const float* values, int64_t size) {
  float lanes[16];
  std::fill(lanes, lanes + 16, -INFINITY);
  int64_t i = 0;
  for (; i + 16 <= size; i += 16) {
    for (int j = 0; j < 16; ++j) lanes[j] = values[i + j] > lanes[j] ? values[i + j] : lanes[j];
  }
  for (; i < size; ++i) lanes[0] = values[i] > lanes[0] ? values[i] : lanes[0];
  return *std::max_element(lanes, lanes + 16);
}

int64_t Selection::scratch_bytes(int64_t size) {
  return 2 * align64(runs_of(size) * 4) + align64(size * static_cast<int64_t>(sizeof(Candidate)));
}

Selection::Selection(const float* values, int64_t size, float floor, void* scratch)
    : values_(values), size_(size), floor_(floor), num_runs_(runs_of(size)) {
  char* at = static_cast<char*>(scratch);
  maxima_ = reinterpret_cast<float*>(at);
  order_of_runs_ = reinterpret_cast<float*>(at + align64(num_runs_ * 4));
  candidates_ = reinterpret_cast<Candidate*>(at + 2 * align64(num_runs_ * 4));
  for (int64_t r = 0; r < num_runs_; ++r) {
    maxima_[r] = largest_of(values + r * kRun, std::min(kRun, size - r * kRun));
  }
}

// A value that at least `wanted` values reach, or the floor.
float Selection::threshold(int64_t wanted) {
  if (wanted > num_runs_) return floor_;
  std::copy(maxima_, maxima_ + num_runs_, order_of_runs_);
  float* kth = order_of_runs_ + (wanted - 1);
  std::nth_element(order_of_runs_, kth, order_of_runs_ + num_runs_, std::greater<>());
  return std::max(*kth, floor_);
}

void Selection::collect(int64_t wanted) {
  const float least = threshold(wanted);
  has_all_ = least <= floor_;
  num_collected_ = num_ordered_ = 0;
  for (int64_t r = 0; r < num_runs_; ++r) {
    if (!(maxima_[r] >= least)) continue;
    for (int64_t i = r * kRun; i < std::min(size_, (r + 1) * kRun); ++i) {
      if (values_[i] >= least) candidates_[num_collected_++] = {values_[i], static_cast<int32_t>(i)};
    }
  }
}

int64_t Selection::order(int64_t count) {
  if (count > num_collected_ && !has_all_) collect(count);
  const int64_t target = std::min(count, num_collected_);
  while (num_ordered_ < target) order_piece();
  return target;
}

bool Selection::reaches(int64_t i) {
  if (i >= num_collected_ && !has_all_) collect(std::max(kFirstPiece, 4 * i));
  return order(i + 1) > i;
}

// The next candidates, as many as are ordered already.
void Selection::order_piece() {
  const int64_t piece = std::min(std::max(kFirstPiece, num_ordered_), num_collected_ - num_ordered_);
  Candidate* first = candidates_ + num_ordered_;
  Candidate* last = candidates_ + num_collected_;
  if (first + piece < last) std::nth_element(first, first + piece, last, comes_before);
  std::sort(first, first + piece, comes_before);
  num_ordered_ += piece;
}

}  // namespace ion::kernels
