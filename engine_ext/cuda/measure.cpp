// Timed by the device's own events. See measure.h.
#include "cuda/measure.h"

#include <algorithm>
#include <vector>

#include "cuda/device_memory.h"
#include "kernels/cuda/kernels.h"

namespace ion::cuda {
namespace {

constexpr int64_t kBytes = int64_t{2} << 30;
constexpr int kPasses = 9;

class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "event"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record() { check(cudaEventRecord(event_, nullptr), "event"); }
  double seconds_since(const Event& other) const {
    check(cudaEventSynchronize(event_), "plain read");
    float milliseconds = 0.0f;
    check(cudaEventElapsedTime(&milliseconds, other.event_, event_), "event");
    return milliseconds * 1e-3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

double read_bandwidth(int32_t device) {
  check(cudaSetDevice(device), "device");
  const DeviceMemory memory(kBytes, "measuring the memory's speed"), sink(kAlignment, "measuring");
  check(cudaMemset(memory.as<void>(), 1, kBytes), "memory");
  std::vector<double> rates;
  for (int pass = 0; pass < kPasses; ++pass) {
    Event begin, end;
    begin.record();
    read_through(memory.as<void>(), kBytes, sink.as<uint32_t>(), nullptr);
    end.record();
    rates.push_back(static_cast<double>(kBytes) / end.seconds_since(begin));
  }
  std::ranges::nth_element(rates, rates.begin() + kPasses / 2);
  return rates[kPasses / 2];
}

}  // namespace ion::cuda
