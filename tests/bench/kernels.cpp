// Speed of the CPU matrix products beside a plain read of memory in the same run. Prints one line per shape;
// the best of several rounds, since other work on the machine only ever slows a round down.
//   kernel_bench [threads [isa]]
#include "kernels/kernels.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/sampler.h"

namespace {

using namespace ion::kernels;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The shortest of `rounds` calls, in seconds.
template <typename Fn>
double best_of(int rounds, Fn fn) {
  double best = 1e9;
  for (int i = 0; i < rounds; ++i) {
    const double begin = now();
    fn();
    best = std::min(best, now() - begin);
  }
  return best;
}

struct Layer {
  const char* name;
  int64_t n, k;
};

// Zero codes with valid scales would do as well: no kernel looks at values to decide anything.
std::vector<std::byte> weights(DType dtype, int64_t n, int64_t k) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(n * row_bytes(dtype, k)));
  uint32_t state = 1;
  for (std::byte& byte : bytes) byte = static_cast<std::byte>((state = state * 1664525u + 1013904223u) >> 28);
  return bytes;
}

// Enough copies of one matrix that a pass reads `total` bytes, as a model's layers do.
struct Stack {
  std::vector<std::byte> memory;
  std::vector<PackedMatrix> copies;
  int64_t bytes;

  Stack(DType dtype, Numerics numerics, int64_t n, int64_t k, int64_t total, ThreadPool& pool) {
    const std::vector<std::byte> file = weights(dtype, n, k);
    bytes = packed_bytes(dtype, n, k, numerics);
    const int64_t count = std::max<int64_t>(1, total / bytes);
    memory.resize(static_cast<std::size_t>(count * bytes) + 64);
    std::byte* base = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
    for (int64_t i = 0; i < count; ++i) {
      copies.push_back(pack_matrix(base + i * bytes, file.data(), dtype, n, k, numerics, pool));
    }
    bytes *= count;
  }
};

struct Buffers {
  std::vector<float> x, dst;
  std::vector<std::byte> scratch;

  Buffers(int64_t m, int64_t n, int64_t k)
      : x(static_cast<std::size_t>(m * k)),
        dst(static_cast<std::size_t>(m * n)),
        scratch(static_cast<std::size_t>(matmul_scratch_bytes(m, k))) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 17) - 8.0f;
  }
};

double read_bandwidth(ThreadPool& pool) {
  std::vector<uint64_t> memory(512 * 1024 * 1024 / 8, 1);
  std::vector<uint64_t> sums(4096);
  const double seconds = best_of(8, [&] {
    pool.parallel_for(4096, [&](int64_t begin, int64_t end) {
      const int64_t size = static_cast<int64_t>(memory.size()) / 4096;
      for (int64_t c = begin; c < end; ++c) {
        uint64_t lanes[16] = {};
        for (int64_t i = c * size; i < (c + 1) * size; i += 16) {
          for (int j = 0; j < 16; ++j) lanes[j] += memory[static_cast<std::size_t>(i + j)];
        }
        for (const uint64_t lane : lanes) sums[static_cast<std::size_t>(c)] += lane;
      }
    });
  });
  volatile uint64_t keep = sums[7];
  static_cast<void>(keep);
  return static_cast<double>(memory.size() * 8) / seconds;
}

void gemv(DType dtype, Numerics numerics, const Layer& layer, double bandwidth, ThreadPool& pool) {
  const Stack stack(dtype, numerics, layer.n, layer.k, 96 * 1024 * 1024, pool);
  for (const int64_t m : {1, 2, 4, 8}) {
    Buffers b(m, layer.n, layer.k);
    const double seconds = best_of(12, [&] {
      for (const PackedMatrix& w : stack.copies)
        matmul(b.dst.data(), b.x.data(), m, w, b.scratch.data(), pool);
    });
    const double rate = static_cast<double>(stack.bytes) / seconds;
    std::printf("gemv %-5s %-5s %-14s m=%ld  %7.1f passes/s of %3.0f MB  %6.2f GB/s (%.2f of a plain read)\n",
                dtype_info(dtype).name.data(), numerics == Numerics::fast ? "fast" : "exact", layer.name, m,
                1 / seconds, static_cast<double>(stack.bytes) / 1e6, rate / 1e9, rate / bandwidth);
  }
}

void gemm(DType dtype, Numerics numerics, const Layer& layer, int64_t m, ThreadPool& pool) {
  const Stack stack(dtype, numerics, layer.n, layer.k, 1, pool);
  Buffers b(m, layer.n, layer.k);
  const double seconds =
      best_of(6, [&] { matmul(b.dst.data(), b.x.data(), m, stack.copies[0], b.scratch.data(), pool); });
  const double operations = 2.0 * static_cast<double>(m * layer.n * layer.k);
  std::printf("gemm %-5s %-5s %-14s m=%-3ld %7.1f GOP/s\n", dtype_info(dtype).name.data(),
              numerics == Numerics::fast ? "fast" : "exact", layer.name, m, operations / seconds / 1e9);
}

// One layer of SmolLM2-135M: 9 query and 3 KV heads of 64; `rows` rows that end at position `context`.
void attend(int32_t rows, int32_t context, ThreadPool& pool) {
  const KvShape shape{3, 64, Numerics::fast};
  const int32_t blocks = (context + 15) / 16;
  std::vector<std::byte> cache(static_cast<std::size_t>(blocks * kv_block_bytes(shape)));
  std::vector<int32_t> table(static_cast<std::size_t>(blocks));
  for (int32_t i = 0; i < blocks; ++i) table[static_cast<std::size_t>(i)] = i;
  Buffers b(rows, 576, 576);
  const AttentionSpan span{table.data(), 0, context - rows, rows};
  const AttentionParams params{9, 0.125f, 0};
  const double seconds = best_of(
      10, [&] { attention(b.dst.data(), b.x.data(), 576, cache.data(), shape, params, {&span, 1}, pool); });
  const double pairs = static_cast<double>(rows) * (2.0 * context - rows + 1) / 2;
  std::printf("attention rows=%-3d context=%-5d %8.1f us a layer  %6.1f GFLOP/s\n", rows, context,
              seconds * 1e6, pairs * 9 * 64 * 4 / seconds / 1e9);
}

void draw(const char* name, const SamplerParams& params) {
  constexpr int64_t kVocab = 49152;
  Buffers b(1, kVocab, 32);
  uint32_t state = 1;
  for (float& logit : b.dst) {  // near normal: the sum of four uniform numbers
    logit = 0;
    for (int i = 0; i < 4; ++i)
      logit += static_cast<float>((state = state * 1664525u + 1013904223u) >> 8) * 3e-7f;
  }
  std::vector<std::byte> scratch(static_cast<std::size_t>(sampler_scratch_bytes(kVocab)));
  int64_t position = 0;
  const double seconds =
      best_of(50, [&] { sample(b.dst.data(), kVocab, params, {}, ++position, {}, scratch.data()); });
  std::printf("sampler %-12s vocabulary 49152  %7.1f us a row\n", name, seconds * 1e6);
}

}  // namespace

int main(int argc, char** argv) {
  ThreadPool pool(argc > 1 ? std::atoi(argv[1]) : 0);
  if (argc > 2) {
    for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512vnni}) {
      if (isa_name(isa) == argv[2]) set_isa(isa);
    }
  }
  const double bandwidth = read_bandwidth(pool);
  std::printf("%d threads, %s, plain read %.2f GB/s\n", pool.num_threads(), isa_name(current_isa()).data(),
              bandwidth / 1e9);
  for (const int32_t context : {512, 2048}) {
    attend(1, context, pool);
    attend(512, context, pool);
  }
  SamplerParams params;
  params.temperature = 0;
  draw("greedy", params);
  params.temperature = 0.8f;
  draw("temperature", params);
  params.top_p = 0.95f;
  draw("top-p", params);
  params.top_k = 40;
  draw("top-k top-p", params);
  const Layer layers[] = {{"1536x576", 1536, 576}, {"576x1536", 576, 1536}, {"4096x4096", 4096, 4096}};
  for (const DType dtype : {DType::Q4_1, DType::Q4_0, DType::Q5_0, DType::Q5_1, DType::Q8_0, DType::Q4_K,
                            DType::Q5_K, DType::Q6_K}) {
    for (Layer layer : layers) {
      if (dtype_info(dtype).block_size == 256 && layer.k == 576) layer = {"1536x512", 1536, 512};
      gemv(dtype, Numerics::fast, layer, bandwidth, pool);
      for (const int64_t m : {32, 512}) gemm(dtype, Numerics::fast, layer, m, pool);
    }
  }
  for (const DType dtype : {DType::F32, DType::BF16, DType::Q4_1, DType::Q4_K, DType::Q5_K, DType::Q6_K}) {
    gemv(dtype, Numerics::exact, {"1536x1536", 1536, 1536}, bandwidth, pool);
    gemm(dtype, Numerics::exact, {"1536x1536", 1536, 1536}, 128, pool);
  }
}
