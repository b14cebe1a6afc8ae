// The thread pool: every index once, regions from several threads, sleep and wake.
#include <atomic>
#include <chrono>
#include <ctime>
#include <latch>
#include <thread>

#include "support.h"

using namespace ion::kernels;

namespace {

double cpu_seconds() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace

TEST(every_index_runs_exactly_once_for_any_size_and_thread_count) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    CHECK_EQ(pool.num_threads(), threads);
    for (const int64_t n : {0, 1, 2, 15, 16, 17, 1000}) {
      std::vector<std::atomic<int>> hits(static_cast<std::size_t>(n));
      pool.parallel_for(n, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) ++hits[static_cast<std::size_t>(i)];
      });
      for (const auto& hit : hits) CHECK_EQ(hit.load(), 1);
    }
  }
}

TEST(many_short_regions_in_a_row_lose_nothing) {
  ThreadPool pool(3);
  int64_t total = 0;
  for (int64_t region = 0; region < 20000; ++region) {
    std::atomic<int64_t> sum{0};
    pool.parallel_for(region % 40, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) sum += i;
    });
    total += sum;
    const int64_t n = region % 40;
    CHECK_EQ(sum.load(), n * (n - 1) / 2 > 0 ? n * (n - 1) / 2 : 0);
  }
  CHECK(total > 0);
}

TEST(regions_from_several_threads_take_turns) {
  ThreadPool pool(2);
  std::vector<std::thread> callers;
  std::atomic<int64_t> sum{0};
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int region = 0; region < 500; ++region) {
        pool.parallel_for(10, [&](int64_t begin, int64_t end) { sum += end - begin; });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK_EQ(sum.load(), 4 * 500 * 10);
}

// Two models that both always have a step to compute: the one that has just had its turn is not next again.
TEST(turns_go_round) {
  ThreadPool pool(2);
  std::vector<int> order;  // guarded by the turn
  std::latch both{2};
  const auto compute = [&](int model) {
    both.arrive_and_wait();
    for (int step = 0; step < 100; ++step) {
      const auto turn = pool.take_turn();
      order.push_back(model);
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  };
  std::thread one(compute, 1), two(compute, 2);
  one.join(), two.join();
  int num_changes = 0;
  for (std::size_t i = 1; i < order.size(); ++i) num_changes += order[i] != order[i - 1] ? 1 : 0;
  CHECK_EQ(order.size(), std::size_t{200});
  CHECK(num_changes > 50);  // a mutex without an order gives a few
}

TEST(a_pool_without_workers_needs_no_turns) {
  ThreadPool pool(1);
  const auto turn = pool.take_turn(), other = pool.take_turn();
  CHECK(!turn.owns_lock() && !other.owns_lock());
}

TEST(workers_sleep_when_idle_and_wake_for_work) {
  ThreadPool pool(4);
  pool.parallel_for(100, [](int64_t, int64_t) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  CHECK(cpu_seconds() - before < 0.1);  // three spinning workers would burn 1 s and more on two cores
  std::atomic<int64_t> sum{0};
  pool.parallel_for(100, [&](int64_t begin, int64_t end) { sum += end - begin; });
  CHECK_EQ(sum.load(), 100);
}

TEST(workers_take_part_even_after_they_have_slept) {
  ThreadPool pool(2);
  for (int round = 0; round < 3; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    std::atomic<int> inside{0};
    const auto deadline =
        std::chrono::steady_clock::now() + std::chrono::seconds(60);  // a guard, not a bound
    pool.parallel_for(2, [&](int64_t, int64_t) {
      ++inside;
      while (inside.load() < 2 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    });
    CHECK(std::chrono::steady_clock::now() < deadline);
  }
}

TEST(a_pool_can_be_made_and_dropped_at_once) {
  for (int i = 0; i < 200; ++i) ThreadPool pool(1 + i % 4);
}

int main(int argc, char** argv) {
  return check::main(argc, argv);
}
