// How the engine asks whoever keeps the grammars for masks: what was sampled goes out, masks come back
// through Engine::give_masks. Knows no grammar, no scheduler, no runner.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace ion {

struct MaskRequest {
  uint64_t sequence = 0;
  int32_t token = -1;      // the id just sampled; -1: the sequence has just begun
  int32_t index = 0;       // generated tokens so far: the mask is wanted for the one after them
  bool has_ended = false;  // nothing is wanted: the sequence is over and its grammar can go
};

struct MaskAnswer {
  uint64_t sequence = 0;
  int32_t index = 0;            // of the request
  std::vector<uint32_t> words;  // as in Mask
  std::string error;            // not empty: the sequence ends with it
};

// One queue for all sequences of an engine; several threads may wait on it.
class MaskRequests {
 public:
  void push(std::vector<MaskRequest> requests) {
    if (requests.empty()) return;
    {
      const std::lock_guard lock(mutex_);
      for (MaskRequest& request : requests) waiting_.push_back(request);
    }
    changed_.notify_one();
  }

  // Takes everything, waiting at most `timeout` for something; empty after the timeout and once closed.
  std::vector<MaskRequest> take(std::chrono::duration<double> timeout) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, timeout, [this] { return is_closed_ || !waiting_.empty(); });
    return std::exchange(waiting_, {});
  }

  // Whoever waits, now or later, returns at once.
  void close() {
    {
      const std::lock_guard lock(mutex_);
      is_closed_ = true;
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<MaskRequest> waiting_;
  bool is_closed_ = false;
};

}  // namespace ion
