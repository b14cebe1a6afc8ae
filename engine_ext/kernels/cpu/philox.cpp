// Philox4x32-10: ten rounds of two 32 x 32 -> 64 bit products. Constants and rounds from Salmon et al., SC
// 2011; the tests hold the known answers published with Random123.
#include "../sampler.h"

namespace ion::kernels {

Philox philox4x32(const uint32_t (&counter)[4], const uint32_t (&key)[2]) {
  uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]};
  uint32_t k[2] = {key[0], key[1]};
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c[0], p1 = uint64_t{0xCD9E8D57u} * c[2];
    const uint32_t next[4] = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(p1),
                              static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(p0)};
    for (int i = 0; i < 4; ++i) c[i] = next[i];
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  return Philox{{c[0], c[1], c[2], c[3]}};
}

double uniform(uint64_t seed, uint64_t position) {
  const uint32_t counter[4] = {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0};
  const uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  const Philox words = philox4x32(counter, key);
  const uint64_t bits = uint64_t{words.word[0]} << 32 | words.word[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace ion::kernels
