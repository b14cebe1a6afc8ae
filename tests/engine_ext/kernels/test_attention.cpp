// Paged attention: against a plain softmax in double precision; bit for bit across instruction sets,
// chunkings, threads, block tables and neighbours.
#include <algorithm>
#include <numeric>

#include "kernels/cpu/half.h"
#include "support.h"

using namespace ion::kernels;
using namespace support;

namespace {

struct Heads {
  int32_t num_heads, num_kv_heads, head_dim;
};

const std::vector<Heads> kHeads = {{9, 3, 64},  {4, 4, 16}, {8, 1, 80}, {16, 1, 32},
                                   {28, 2, 48}, {2, 1, 24}, {2, 2, 256}};

// One sequence's q, k, v for positions [0, length).
struct Sequence {
  Heads heads;
  int32_t length;
  std::vector<float> q, k, v;

  Sequence(Random& random, Heads h, int32_t n)
      : heads(h),
        length(n),
        q(normals(random, int64_t{n} * h.num_heads * h.head_dim)),
        k(normals(random, int64_t{n} * h.num_kv_heads * h.head_dim)),
        v(normals(random, int64_t{n} * h.num_kv_heads * h.head_dim)) {}
};

// A pool of blocks of one layer, filled with garbage, and a shuffled table for one sequence.
struct Cache {
  KvShape shape;
  std::vector<float> memory;
  std::vector<int32_t> table;

  Cache(Random& random, Heads h, Numerics numerics, int32_t length)
      : shape{h.num_kv_heads, h.head_dim, numerics} {
    const int32_t blocks = (length + 15) / 16, total = 2 * blocks + 3;
    memory = normals(random, total * kv_block_bytes(shape) / 4);
    std::vector<int32_t> all(total);
    std::iota(all.begin(), all.end(), 0);
    std::shuffle(all.begin(), all.end(), random);
    table.assign(all.begin(), all.begin() + blocks);
  }
};

AttentionParams params_of(Heads h, int32_t window) {
  return {h.num_heads, 1.0f / std::sqrt(static_cast<float>(h.head_dim)), window};
}

// Writes and attends chunk by chunk.
std::vector<float> run(const Sequence& s, Cache& cache, int32_t window, const std::vector<int32_t>& chunks,
                       ThreadPool& pool) {
  const Heads h = s.heads;
  const int64_t q_row = h.num_heads * h.head_dim, kv_row = h.num_kv_heads * h.head_dim;
  std::vector<float> dst = poisoned(s.length * q_row);
  int32_t start = 0;
  for (const int32_t count : chunks) {
    const AttentionSpan span{cache.table.data(), 0, start, count};
    kv_write(cache.memory.data(), cache.shape, s.k.data() + start * kv_row, s.v.data() + start * kv_row,
             kv_row, {&span, 1}, pool);
    attention(dst.data() + start * q_row, s.q.data() + start * q_row, q_row, cache.memory.data(), cache.shape,
              params_of(h, window), {&span, 1}, pool);
    start += count;
  }
  CHECK_EQ(start, s.length);
  return dst;
}

std::vector<int32_t> chunks_of(int32_t length, int32_t size) {
  std::vector<int32_t> chunks(static_cast<std::size_t>(length / size), size);
  if (length % size != 0) chunks.push_back(length % size);
  return chunks;
}

float as_stored(float value, Numerics numerics) {
  return numerics == Numerics::fast ? f16_to_f32(f32_to_f16(value)) : value;
}

// Plain softmax attention of one row and head in double precision, over keys and values as stored.
std::vector<double> plain(const Sequence& s, Numerics numerics, int32_t window, int32_t row, int32_t head) {
  const Heads h = s.heads;
  const int32_t kv_head = head / (h.num_heads / h.num_kv_heads), d = h.head_dim;
  const int32_t first = window > 0 ? std::max(0, row + 1 - window) : 0;
  std::vector<double> p;
  for (int32_t t = first; t <= row; ++t) {
    double dot = 0;
    for (int32_t i = 0; i < d; ++i) {
      dot += double{s.q[(int64_t{row} * h.num_heads + head) * d + i]} *
             double{as_stored(s.k[(int64_t{t} * h.num_kv_heads + kv_head) * d + i], numerics)};
    }
    p.push_back(dot / std::sqrt(static_cast<double>(d)));
  }
  const double largest = *std::max_element(p.begin(), p.end());
  double total = 0;
  for (double& value : p) total += value = std::exp(value - largest);
  std::vector<double> out(static_cast<std::size_t>(d));
  for (int32_t t = first; t <= row; ++t) {
    for (int32_t i = 0; i < d; ++i) {
      const float v = as_stored(s.v[(int64_t{t} * h.num_kv_heads + kv_head) * d + i], numerics);
      out[static_cast<std::size_t>(i)] += p[static_cast<std::size_t>(t - first)] / total * double{v};
    }
  }
  return out;
}

template <typename Fn>
void for_each_case(Fn fn) {
  for (const Heads& h : kHeads) {
    for (const Numerics numerics : {Numerics::fast, Numerics::exact}) {
      for (const int32_t window : {0, 1, 20, 130}) {
        check::context() = std::to_string(h.num_heads) + "/" + std::to_string(h.num_kv_heads) + "x" +
                           std::to_string(h.head_dim) + (numerics == Numerics::fast ? " fast" : " exact") +
                           " window " + std::to_string(window);
        fn(h, numerics, window);
      }
    }
  }
}

}  // namespace

TEST(attention_is_a_softmax_over_the_visible_tokens) {
  Random random(1);
  ThreadPool pool(2);
  for_each_case([&](Heads h, Numerics numerics, int32_t window) {
    const Sequence s(random, h, 300);
    Cache cache(random, h, numerics, s.length);
    const std::vector<float> got = run(s, cache, window, {300}, pool);
    for (const int32_t row : {0, 1, 15, 16, 127, 128, 129, 255, 299}) {
      for (int32_t head = 0; head < h.num_heads; ++head) {
        const std::vector<double> want = plain(s, numerics, window, row, head);
        for (int32_t i = 0; i < h.head_dim; ++i) {
          const float value =
              got[static_cast<std::size_t>((int64_t{row} * h.num_heads + head) * h.head_dim + i)];
          CHECK(std::fabs(double{value} - want[static_cast<std::size_t>(i)]) < 2e-5);
        }
      }
    }
  });
}

TEST(every_instruction_set_gives_the_scalar_bits) {
  Random random(2);
  ThreadPool pool(2);
  for_each_case([&](Heads h, Numerics numerics, int32_t window) {
    const Sequence s(random, h, 150);
    Cache cache(random, h, numerics, s.length);
    std::vector<float> want;
    for (const Isa isa : isas()) {
      const WithIsa with(isa);
      const std::vector<float> got = run(s, cache, window, {150}, pool);
      if (want.empty()) want = got;
      CHECK(same_bits(got, want));
    }
  });
}

TEST(any_chunking_on_any_number_of_threads_gives_the_same_bits) {
  Random random(3);
  ThreadPool one(1), two(2), five(5);
  for_each_case([&](Heads h, Numerics numerics, int32_t window) {
    const Sequence s(random, h, 290);
    Cache cache(random, h, numerics, s.length), other(random, h, numerics, s.length);
    const std::vector<float> want = run(s, cache, window, {290}, one);
    CHECK(same_bits(run(s, other, window, chunks_of(290, 1), two), want));
    CHECK(same_bits(run(s, other, window, chunks_of(290, 7), five), want));
    CHECK(same_bits(run(s, cache, window, {129, 1, 127, 33}, two), want));
  });
}

TEST(sequences_of_one_step_do_not_see_each_other) {
  Random random(4);
  ThreadPool pool(2);
  const Heads h = {9, 3, 64};
  const KvShape shape{3, 64, Numerics::fast};
  const Sequence a(random, h, 40), b(random, h, 200);
  Cache alone_a(random, h, shape.numerics, 40), alone_b(random, h, shape.numerics, 200);
  const std::vector<float> want_a = run(a, alone_a, 0, {40}, pool), want_b = run(b, alone_b, 0, {200}, pool);

  // One pool for both; the step decodes the last token of a and prefills the last 100 of b.
  std::vector<float> memory = normals(random, 20 * kv_block_bytes(shape) / 4);
  const std::vector<int32_t> table_a = {7, 3, 11}, table_b = {0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 15};
  const auto write = [&](const Sequence& s, const std::vector<int32_t>& table, int32_t count) {
    const AttentionSpan span{table.data(), 0, 0, count};
    kv_write(memory.data(), shape, s.k.data(), s.v.data(), 192, {&span, 1}, pool);
  };
  write(a, table_a, 39);
  write(b, table_b, 100);
  const auto join = [](const std::vector<float>& x, const std::vector<float>& y, int64_t row) {
    std::vector<float> both(x.begin() + 39 * row, x.begin() + 40 * row);
    both.insert(both.end(), y.begin() + 100 * row, y.begin() + 200 * row);
    return both;
  };
  const std::vector<float> q = join(a.q, b.q, 576), k = join(a.k, b.k, 192), v = join(a.v, b.v, 192);
  const AttentionSpan spans[] = {{table_a.data(), 0, 39, 1}, {table_b.data(), 1, 100, 100}};
  std::vector<float> dst = poisoned(101 * 576);
  kv_write(memory.data(), shape, k.data(), v.data(), 192, spans, pool);
  attention(dst.data(), q.data(), 576, memory.data(), shape, params_of(h, 0), spans, pool);
  CHECK(same_bits(dst, join(want_a, want_b, 576)));
}

TEST(blocks_outside_the_window_are_never_read) {
  Random random(5);
  ThreadPool pool(1);
  const Heads h = {4, 2, 32};
  const Sequence s(random, h, 200);
  for (const Isa isa : isas()) {
    const WithIsa with(isa);
    Cache cache(random, h, Numerics::fast, 200);
    const std::vector<float> want = run(s, cache, 40, chunks_of(200, 1), pool);
    Cache again = cache;
    std::fill(again.memory.begin(), again.memory.end(), 0.0f);
    std::vector<float> dst = poisoned(200 * 128);
    for (int32_t p = 0; p < 200; ++p) {
      const int32_t released = std::max(0, p + 1 - 40) / 16;  // blocks that hold nothing visible
      for (int32_t i = 0; i < released; ++i) again.table[static_cast<std::size_t>(i)] = 1 << 28;
      const AttentionSpan span{again.table.data(), 0, p, 1};
      kv_write(again.memory.data(), again.shape, s.k.data() + p * 64, s.v.data() + p * 64, 64, {&span, 1},
               pool);
      attention(dst.data() + p * 128, s.q.data() + p * 128, 128, again.memory.data(), again.shape,
                params_of(h, 40), {&span, 1}, pool);
    }
    CHECK(same_bits(dst, want));
  }
}

TEST(strided_inputs_are_read_by_their_stride) {
  Random random(6);
  ThreadPool pool(2);
  const Heads h = {4, 2, 32};
  const Sequence s(random, h, 50);
  Cache cache(random, h, Numerics::exact, 50);
  const std::vector<float> want = run(s, cache, 0, {50}, pool);
  const int64_t stride = 128 + 64 + 64;  // q, k, v of a row side by side, as matmul_group writes them
  std::vector<float> qkv(50 * stride);
  for (int64_t r = 0; r < 50; ++r) {
    std::copy_n(s.q.begin() + r * 128, 128, qkv.begin() + r * stride);
    std::copy_n(s.k.begin() + r * 64, 64, qkv.begin() + r * stride + 128);
    std::copy_n(s.v.begin() + r * 64, 64, qkv.begin() + r * stride + 192);
  }
  const AttentionSpan span{cache.table.data(), 0, 0, 50};
  std::fill(cache.memory.begin(), cache.memory.end(), 0.0f);
  std::vector<float> dst = poisoned(50 * 128);
  kv_write(cache.memory.data(), cache.shape, qkv.data() + 128, qkv.data() + 192, stride, {&span, 1}, pool);
  attention(dst.data(), qkv.data(), stride, cache.memory.data(), cache.shape, params_of(h, 0), {&span, 1},
            pool);
  CHECK(same_bits(dst, want));
}

TEST(shapes_that_attention_cannot_run_are_told) {
  CHECK(is_attention_shape(9, 3, 64));
  CHECK(!is_attention_shape(9, 2, 64));
  CHECK(!is_attention_shape(9, 0, 64));
  CHECK(!is_attention_shape(9, 3, 257));
  CHECK_EQ(kv_block_bytes({3, 64, Numerics::fast}), 2 * 3 * 16 * 64 * 2);
  CHECK_EQ(kv_block_bytes({3, 64, Numerics::exact}), 2 * 3 * 16 * 64 * 4);
}

int main(int argc, char** argv) {
  return check::main(argc, argv);
}
