// What the engine tells the outside: events, drained in one call after one wake of a file descriptor.
// Knows no scheduler, no runner, no Python.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/runner.h"

namespace ion {

enum Finish : uint8_t {
  kRunning = 0,
  kStop = 1,     // end-of-sequence id, stop id or stop string
  kLength = 2,   // max_tokens, or prompt + generated reached the context length
  kAborted = 3,  // the caller's abort, or close
  kError = 4,    // see Event::error; the other sequences go on
};

struct TokenLogprobs {
  int32_t id = 0;
  float logprob = 0.0f;
  std::vector<TokenLogprob> top;
};

// Events of one sequence that nobody drained yet are merged, so a slow reader gets few large ones.
// The last event of a sequence has finish != kRunning; nothing follows it.
struct Event {
  uint64_t sequence = 0;
  std::string text;                     // whole UTF-8 characters, stop strings removed; may be empty
  Finish finish = kRunning;             // why the sequence ended
  int32_t num_tokens = 0;               // billed tokens this event accounts for, the ending stop id included
  std::vector<TokenLogprobs> logprobs;  // of tokens whose text is out; none for a stop id or a stop string
  std::vector<PromptToken> prompt_logprobs;  // of all prompt tokens but the first; set on the first event
  std::string error;                         // not empty only with kError
  std::string stop;                          // the stop string that ended the text; not empty only with kStop
  int32_t num_cached_tokens = 0;  // prompt tokens taken from the prefix cache; set on the last event
  double queue_s = -1.0;          // from submit to the first step with a row of it; -1: there was none

  // The form of drain() in ionrouter/engine/_ion.pyi: finish in bits 0..7, num_tokens from bit 8.
  int64_t packed_flags() const { return finish | (static_cast<int64_t>(num_tokens) << 8); }
};

class EventQueue {
 public:
  EventQueue();
  ~EventQueue();
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;

  // Called by the engine's thread. Wakes the reader once per change from empty to not empty.
  void push(std::vector<Event> events);
  // Called by any thread: takes everything and makes `fd` unreadable again. Events keep the order in which
  // their sequences first appeared.
  std::vector<Event> drain();
  // Readable (poll, epoll, asyncio add_reader) while drain has something. Owned by the queue; do not read it.
  int fd() const { return read_fd_; }

 private:
  void wake();
  void unwake();

  std::mutex mutex_;
  std::vector<Event> events_;
  std::unordered_map<uint64_t, size_t> index_;  // sequence -> its place in events_
  int read_fd_ = -1;
  int write_fd_ = -1;  // the same descriptor on Linux (eventfd), the other end of a pipe elsewhere
};

}  // namespace ion
