// Who gives masks in tests: a thread that takes its time, as the real one does.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "core/engine.h"
#include "fake_runner.h"
#include "oracle.h"

namespace rig {

// Allows a third of the ids, which third depending on everything generated before.
inline std::vector<uint32_t> every_third(const std::vector<int32_t>& generated) {
  uint64_t digest = 7;
  for (const int32_t id : generated) digest = fake::mix(digest * 31 + static_cast<uint64_t>(id));
  std::vector<uint32_t> words(2, 0);
  for (uint32_t id = 0; id < 64; ++id) {
    if (id % 3 == digest % 3) words[id / 32] |= 1u << id % 32;
  }
  return words;
}

class Keeper {
 public:
  Keeper(ion::Engine& engine, oracle::Grammar grammar, int max_delay_us, uint64_t refuse_one_in = 0)
      : engine_(engine), grammar_(grammar), max_delay_us_(max_delay_us), refuse_one_in_(refuse_one_in) {
    thread_ = std::thread([this] { keep(); });
  }
  ~Keeper() { stop(); }
  void stop() {
    is_stopping_ = true;
    if (thread_.joinable()) thread_.join();
  }
  size_t num_kept() const { return generated_.size(); }  // after stop
  bool was_out_of_turn() const { return out_of_turn_; }

 private:
  void keep() {
    std::mt19937_64 random(5);
    while (!is_stopping_) {
      for (const ion::MaskRequest& request : engine_.take_mask_requests(std::chrono::milliseconds(20))) {
        if (max_delay_us_ > 0) {
          const auto delay = random() % static_cast<uint64_t>(max_delay_us_);
          std::this_thread::sleep_for(std::chrono::microseconds(delay));
        }
        if (request.has_ended) {
          generated_.erase(request.sequence);
        } else {
          answer(request, random());
        }
      }
    }
  }

  void answer(const ion::MaskRequest& request, uint64_t chance) {
    auto& generated = generated_[request.sequence];
    if (request.token >= 0) generated.push_back(request.token);
    if (static_cast<int32_t>(generated.size()) != request.index) out_of_turn_ = true;
    ion::MaskAnswer answer{request.sequence, request.index, grammar_(generated), {}};
    if (refuse_one_in_ > 0 && chance % refuse_one_in_ == 0) answer.error = "the grammar is lost";
    engine_.give_masks({answer});
  }

  ion::Engine& engine_;
  const oracle::Grammar grammar_;
  const int max_delay_us_;
  const uint64_t refuse_one_in_;
  std::map<uint64_t, std::vector<int32_t>> generated_;
  std::atomic<bool> is_stopping_ = false;
  std::atomic<bool> out_of_turn_ = false;
  std::thread thread_;
};

}  // namespace rig
