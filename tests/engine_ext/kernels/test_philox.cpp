// Philox4x32-10 against the known answers published with Random123 (tests/kat_vectors, lines "philox4x32
// 10"), Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#include <set>

#include "kernels/sampler.h"
#include "support.h"

using namespace ion::kernels;

namespace {

void check_answer(const uint32_t (&counter)[4], const uint32_t (&key)[2], const uint32_t (&want)[4]) {
  const Philox got = philox4x32(counter, key);
  for (int i = 0; i < 4; ++i) CHECK_EQ(got.word[i], want[i]);
}

}  // namespace

TEST(the_published_known_answers_come_out) {
  check_answer({0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  check_answer({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff},
               {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  check_answer({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0},
               {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST(uniform_is_in_the_unit_interval_and_even) {
  double sum = 0, squares = 0;
  int buckets[16] = {};
  constexpr int kDraws = 200000;
  for (int i = 0; i < kDraws; ++i) {
    const double u = uniform(static_cast<uint64_t>(i) % 1000, static_cast<uint64_t>(i) / 1000);
    CHECK(u >= 0 && u < 1);
    sum += u;
    squares += u * u;
    ++buckets[static_cast<int>(u * 16)];
  }
  CHECK(std::fabs(sum / kDraws - 0.5) < 5 * 0.2887 / std::sqrt(double{kDraws}));
  CHECK(std::fabs(squares / kDraws - 1.0 / 3) < 0.004);
  double chi = 0;
  for (const int count : buckets) chi += std::pow(count - kDraws / 16.0, 2) / (kDraws / 16.0);
  CHECK(chi < 45);  // 15 degrees of freedom: p < 1e-4
}

TEST(seed_and_position_both_matter_in_all_their_bits) {
  std::set<double> seen;
  for (int bit = 0; bit < 64; ++bit) {
    seen.insert(uniform(uint64_t{1} << bit, 5));
    seen.insert(uniform(5, uint64_t{1} << bit));
  }
  CHECK_EQ(seen.size(), std::size_t{128});
  CHECK_EQ(uniform(3, 4), uniform(3, 4));
}

int main(int argc, char** argv) {
  return check::main(argc, argv);
}
