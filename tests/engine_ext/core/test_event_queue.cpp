// EventQueue and DecayedRate: small parts on their own.
#include <poll.h>

#include <thread>

#include "check.h"
#include "core/decayed_rate.h"
#include "core/event_queue.h"

namespace {

ion::Event text_event(uint64_t sequence, std::string text, ion::Finish finish = ion::kRunning) {
  ion::Event event;
  event.sequence = sequence;
  event.text = std::move(text);
  event.finish = finish;
  event.num_tokens = 1;
  return event;
}

bool is_readable(const ion::EventQueue& queue) {
  pollfd entry{queue.fd(), POLLIN, 0};
  return poll(&entry, 1, 0) == 1;
}

}  // namespace

TEST(undrained_events_of_one_sequence_are_merged_in_order) {
  ion::EventQueue queue;
  queue.push({text_event(7, "a"), text_event(8, "x")});
  ion::Event last = text_event(7, "c", ion::kStop);
  last.stop = "END";
  queue.push({text_event(7, "b"), last});
  const auto events = queue.drain();
  CHECK_EQ(events.size(), size_t{2});
  CHECK_EQ(events[0].text, std::string("abc"));
  CHECK_EQ(events[0].packed_flags(), int64_t{ion::kStop | 3 << 8});
  CHECK_EQ(events[0].stop, std::string("END"));
  CHECK(events[1].stop.empty());
  CHECK_EQ(events[1].text, std::string("x"));
  CHECK_EQ(events[1].packed_flags(), int64_t{1 << 8});
}

TEST(the_descriptor_tells_empty_from_not_empty) {
  ion::EventQueue queue;
  CHECK(!is_readable(queue));
  queue.push({});
  CHECK(!is_readable(queue));
  for (int i = 0; i < 3; ++i) {
    queue.push({text_event(1, "a")});
    queue.push({text_event(2, "b")});
    CHECK(is_readable(queue));
    CHECK_EQ(queue.drain().size(), size_t{2});
    CHECK(!is_readable(queue));
  }
}

TEST(nothing_is_lost_between_threads) {
  ion::EventQueue queue;
  constexpr int kNumEvents = 20000;
  std::thread writer([&] {
    for (int i = 0; i < kNumEvents; ++i) queue.push({text_event(static_cast<uint64_t>(i % 7), "x")});
  });
  int num_tokens = 0;
  size_t num_bytes = 0;
  while (num_tokens < kNumEvents) {
    pollfd entry{queue.fd(), POLLIN, 0};
    if (poll(&entry, 1, 60000) != 1) break;
    for (const ion::Event& event : queue.drain()) {
      num_tokens += event.num_tokens;
      num_bytes += event.text.size();
    }
  }
  writer.join();
  CHECK_EQ(num_tokens, kNumEvents);
  CHECK_EQ(num_bytes, size_t{kNumEvents});
}

TEST(a_rate_follows_recent_work_and_survives_idleness) {
  ion::DecayedRate rate(10.0);
  CHECK_EQ(rate.per_second(), 0.0);
  for (int i = 0; i < 100; ++i) rate.add(100, 1.0);
  CHECK(std::abs(rate.per_second() - 100) < 1e-9);
  for (int i = 0; i < 100; ++i) rate.add(10, 1.0);
  CHECK(rate.per_second() > 9.9 && rate.per_second() < 11);
  rate.add(5, 0.0);
  CHECK(rate.per_second() < 11);
}

int main(int argc, char** argv) {
  return check::main(argc, argv);
}
