// Events and their wake-up. See event_queue.h.
#include "core/event_queue.h"

#include <fcntl.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/eventfd.h>
#endif

#include <cerrno>
#include <system_error>
#include <utility>

namespace ion {
namespace {

[[noreturn]] void throw_errno(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

void merge(Event& into, Event&& event) {
  into.text += event.text;
  into.finish = event.finish;
  into.num_tokens += event.num_tokens;
  into.logprobs.insert(into.logprobs.end(), std::make_move_iterator(event.logprobs.begin()),
                       std::make_move_iterator(event.logprobs.end()));
  // Of a sequence's events only the first has some.
  if (into.prompt_logprobs.empty()) into.prompt_logprobs = std::move(event.prompt_logprobs);
  into.error = std::move(event.error);
  into.stop = std::move(event.stop);
  into.num_cached_tokens = event.num_cached_tokens;
  into.queue_s = event.queue_s;
}

}  // namespace

#ifdef __linux__

EventQueue::EventQueue() {
  read_fd_ = write_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (read_fd_ < 0) throw_errno("eventfd");
}

EventQueue::~EventQueue() {
  close(read_fd_);
}

#else

EventQueue::EventQueue() {
  int fds[2];
  if (pipe(fds) != 0) throw_errno("pipe");
  for (int fd : fds) {
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    fcntl(fd, F_SETFL, O_NONBLOCK);
  }
  read_fd_ = fds[0];
  write_fd_ = fds[1];
}

EventQueue::~EventQueue() {
  close(read_fd_);
  close(write_fd_);
}

#endif

// Eight bytes are an eventfd's unit; through a pipe they are as good as one. At most one wake is unread at a
// time, since only the change from empty to not empty writes and drain reads, both under the mutex.
void EventQueue::wake() {
  const uint64_t one = 1;
  if (write(write_fd_, &one, sizeof one) != sizeof one) throw_errno("waking the reader of events");
}

void EventQueue::unwake() {
  uint64_t count;
  if (read(read_fd_, &count, sizeof count) != sizeof count) throw_errno("reading the wake of events");
}

void EventQueue::push(std::vector<Event> events) {
  if (events.empty()) return;
  std::lock_guard lock(mutex_);
  if (events_.empty()) wake();
  for (Event& event : events) {
    auto [it, is_new] = index_.try_emplace(event.sequence, events_.size());
    if (is_new) {
      events_.push_back(std::move(event));
    } else {
      merge(events_[it->second], std::move(event));
    }
  }
}

std::vector<Event> EventQueue::drain() {
  std::lock_guard lock(mutex_);
  if (events_.empty()) return {};
  unwake();
  index_.clear();
  return std::exchange(events_, {});
}

}  // namespace ion
