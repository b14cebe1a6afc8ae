// What a consumer warpgroup of prompts' attention on Hopper does: scores of the next tile are computed while
// this one's values are added up (the pipelining within a warpgroup of Shah et al. 2024, "FlashAttention-3",
// arXiv:2407.08608, section 3.2), whether or not a piece ends between them; and the two warpgroups take turns
// at the matrix units, so that one multiplies while the other weighs (section 3.1).
#pragma once

#include <cmath>

#include "attention_sm90_feed.cuh"
#include "attention_sm90_merge.cuh"
#include "attention_units.cuh"
#include "kernels.h"
#include "vec.cuh"
#include "wgmma.cuh"

namespace ion::cuda {

#if __CUDA_ARCH_FEAT_SM90_ALL

// Of four neighbouring lanes, word j of lane i becomes word i of lane j.
__device__ __forceinline__ void quad_transpose(uint32_t (&word)[4]) {
  const bool is_odd = threadIdx.x & 1, is_upper = threadIdx.x & 2;
#pragma unroll
  for (int j = 0; j < 4; j += 2) {
    const uint32_t got = __shfl_xor_sync(0xffffffffu, is_odd ? word[j] : word[j + 1], 1);
    (is_odd ? word[j] : word[j + 1]) = got;
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const uint32_t got = __shfl_xor_sync(0xffffffffu, is_upper ? word[j] : word[j + 2], 2);
    (is_upper ? word[j] : word[j + 2]) = got;
  }
}

// A warpgroup's 64 rows of piece after piece. A thread has rows lane / 4 (index 0) and lane / 4 + 8 (index 1)
// of its warp's sixteen.
//
// Weights are relative to a maximum that follows the row's largest score only where a weight would be above
// kMost: as a rule none is looked for, and what was summed before stays as it is.
//
// kIsCut: a piece has several blocks, a run of its tiles each, and a block one piece.
template <int D, bool kIsCut>
class Rows {
 public:
  __device__ Rows(const Tiles<D>& tiles, const AttentionArgs& args, int cuts)
      : tiles_(tiles),
        args_(args),
        cuts_(cuts),
        group_(static_cast<int>(threadIdx.x) / 128 - 1),
        scale_(args.scale * kLog2E) {
    clear();
  }

  __device__ void run() {
    if (!begin_piece()) return;
    if (group_ > 0) take_turn();
    begin_scores(turn_);
    pass_turn();
    product_wait<0>();
    hold(scores_);
    release(turn_);
    turn_.next(Tiles<D>::kStages);
    float shrink[2];
    weigh(shrink);
    pass_weights();
    for (;;) {
      const bool is_end = tile_ == last_tile_;
      const Result result = result_;
      const float sum[2] = {l_[0], l_[1]};
      if (is_end && (kIsCut || !next_piece())) return finish(result, sum);
      if (!is_end) ++tile_;
      multiply_and_weigh(shrink);
      if (is_end) {
        store(result, sum);
        clear();
      } else {
        rescale(shrink);
      }
      pass_weights();
    }
  }

 private:
  static constexpr float kMost = 256.0f;
  // Where this thread's two rows of a piece go, -1: nowhere.
  struct Result {
    int64_t to[2];
  };

  // Row r of this thread's two among the packed rows of a piece.
  __device__ int packed_row(const PrefillTask& task, int r) const {
    const int warp = threadIdx.x / kWarp % 4, lane = threadIdx.x % kWarp;
    return task.first_packed + group_ * kGroupRows + warp * 16 + lane / 4 + 8 * r;
  }

  __device__ Result result_of(const PrefillTask& task) const {
    Result result;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int packed = packed_row(task, r), token = packed / task.unit.num_heads;
      const int head = task.unit.first_head + packed % task.unit.num_heads;
      const int64_t row = task.span.first_row + token;
      result.to[r] = token < task.span.count ? (row * args_.num_heads + head) * D : -1;
    }
    return result;
  }

  // The scores of this tile to weights, while the last one's values are added up. (That the compiler leaves
  // the wait for the values behind the weighing, it owes to the branches in there.)
  __device__ void multiply_and_weigh(float (&shrink)[2]) {
    const Stage keys = turn_;
    turn_.next(Tiles<D>::kStages);
    take_turn();
    begin_scores(keys);
    begin_values(turn_);
    pass_turn();
    product_wait<1>();
    hold(scores_);
    release(keys);
    weigh(shrink);
    hold(next_weights_);
    product_wait<0>();
    hold(out_);
    release(turn_);
    turn_.next(Tiles<D>::kStages);
  }

  // The last values of the block's last piece.
  __device__ void finish(const Result& result, const float (&sum)[2]) {
    take_turn();
    begin_values(turn_);
    if (group_ == 0) pass_turn();
    product_wait<0>();
    hold(out_);
    if constexpr (kIsCut) {
      leave(sum);
    } else {
      store(result, sum);
    }
  }

  // At the matrix units: one group issues a tile's products, then the other.
  __device__ void take_turn() const {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + group_), "n"(kGroups * 128) : "memory");
  }
  __device__ void pass_turn() const {
    asm volatile("bar.arrive %0, %1;" ::"r"(2 - group_), "n"(kGroups * 128) : "memory");
  }
  __device__ void release(const Stage& turn) const {
    if (threadIdx.x % kWarp == 0) barrier_arrive(tiles_.empty(turn.index));
  }

  __device__ bool next_piece() {
    if (threadIdx.x % kWarp == 0) barrier_arrive(tiles_.done(piece_.index));
    piece_.next(kPieces);
    return begin_piece();
  }

  // Whether there is one.
  __device__ bool begin_piece() {
    barrier_wait(tiles_.loaded(piece_.index), piece_.parity);
    const PrefillTask& task = *tiles_.task(piece_.index);
    const Span span = task.span;
    if (span.count == 0) return false;
    const int base = task.first_packed + group_ * kGroupRows, heads = task.unit.num_heads;
    const int last = span.count - 1;
    tile_ = task.first_tile;
    last_tile_ = task.last_tile;
    whole_to_ = span.start + min(last, base / heads);
    whole_from_ = first_seen(span.start + min(last, (base + kGroupRows - 1) / heads), args_.window);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      high_[r] = span.start + min(last, packed_row(task, r) / heads);
      m_[r] = -INFINITY;
      l_[r] = 0.0f;
    }
    if constexpr (!kIsCut) result_ = result_of(task);
    return true;
  }

  // scores [64 x tokens] of these keys
  __device__ void begin_scores(const Stage& turn) {
    barrier_wait(tiles_.full(turn.index), turn.parity);
    const uint32_t queries = tiles_.queries(piece_.index) + group_ * kGroupRows * 128;
    const uint32_t keys = tiles_.tile(turn.index);
    product_fence();
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
      const uint32_t at = step / 4 * kHalfBytes + step % 4 * 32;
      AttentionProduct<kTokens>::scores(scores_, operand(queries + at),
                                        keys_operand<D>(keys + step / 4 * 1024 + step % 4 * 32), step != 0);
    }
    product_commit();
  }

  __device__ void begin_values(const Stage& turn) {
    barrier_wait(tiles_.full(turn.index), turn.parity);
    const uint32_t values = tiles_.tile(turn.index);
    product_fence();
#pragma unroll
    for (int step = 0; step < kTokens / 16; ++step) {
      AttentionProduct<D>::add_values(out_, weights_[step],
                                      values_operand<D>(values + step * kKvBlock * D * 2));
    }
    product_commit();
  }

  // Scores to weights; shrink: what was summed before is to be scaled by. A row's result depends on no other
  // row: one that is weighed again for another's sake gets the same weights.
  __device__ void weigh(float (&shrink)[2]) {
    const int token = tile_ * kTokens;
    if (token + kTokens - 1 > whole_to_) hide(token, [](int at, int limit) { return at > limit; });
    if (token < whole_from_) hide(token + args_.window - 1, [](int at, int limit) { return at < limit; });
    shrink[0] = shrink[1] = 1.0f;
    float sum[2];
    if (!any(m_[0] == -INFINITY || m_[1] == -INFINITY)) {
      weigh_by(m_, sum);
      if (!any(sum[0] > kMost || sum[1] > kMost)) {
        l_[0] += sum[0], l_[1] += sum[1];
        return;
      }
    }
    float base[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) raise(r, shrink[r], base[r]);
    weigh_by(base, sum);
    l_[0] = l_[0] * shrink[0] + sum[0], l_[1] = l_[1] * shrink[1] + sum[1];
  }

  static __device__ bool any(bool is_so) { return __any_sync(0xffffffffu, is_so) != 0; }

  // The tile's weights relative to `base`, and their sums over this thread's columns.
  __device__ void weigh_by(const float (&base)[2], float (&sum)[2]) {
    sum[0] = sum[1] = 0.0f;
#pragma unroll
    for (int step = 0; step < kTokens / 16; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* score = scores_ + 8 * step + 2 * i;
        const float lower = power_of_2(fmaf(score[0], scale_, -base[i % 2]));
        const float upper = power_of_2(fmaf(score[1], scale_, -base[i % 2]));
        sum[i % 2] += lower;
        sum[i % 2] += upper;
        next_weights_[step][i] = pack(lower, upper);
      }
    }
  }

  // A row's maximum to its largest score where it has none yet or a weight would be above kMost: a weight as
  // weigh_by computes it, to the bit.
  __device__ void raise(int r, float& shrink, float& base) {
    float largest = -INFINITY;
#pragma unroll
    for (int c = 0; c < kTokens / 8; ++c) {
      largest = fmaxf(largest, fmaxf(scores_[4 * c + 2 * r], scores_[4 * c + 2 * r + 1]));
    }
    largest = quad_max(largest);
    const float before = m_[r];
    if (before == -INFINITY || power_of_2(fmaf(largest, scale_, -before)) > kMost) m_[r] = largest * scale_;
    base = m_[r] == -INFINITY ? 0.0f : m_[r];
    shrink = power_of_2(before - base);
  }

  // What is hidden of the tile: is_hidden(a column, the row's last token), both counted from this token on.
  template <typename Hidden>
  __device__ void hide(int token, Hidden is_hidden) {
    const int first = token + 2 * (static_cast<int>(threadIdx.x) % 4);
    const int from_first[2] = {high_[0] - first, high_[1] - first};
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) {
      if (is_hidden(i / 4 * 8 + i % 2, from_first[i / 2 % 2])) scores_[i] = -INFINITY;
    }
  }

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < D / 2; ++i) out_[i] = 0.0f;
  }

  __device__ void rescale(const float (&shrink)[2]) {
    if (!any(shrink[0] != 1.0f || shrink[1] != 1.0f)) return;
#pragma unroll
    for (int i = 0; i < D / 2; ++i) out_[i] *= shrink[i / 2 % 2];
  }

  // The scores' layout is that of the next product's first operand. No plain copy: the compiler would have
  // one set of registers for both, find it written while products of the last weights are under way, and do
  // all products one by one.
  __device__ void pass_weights() {
    const uint32_t zero = args_.window >> 31;  // which the compiler does not know
#pragma unroll
    for (int step = 0; step < kTokens / 16; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) weights_[step][i] = next_weights_[step][i] ^ zero;
    }
  }

  __device__ void store(const Result& result, const float (&sum)[2]) const {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float factor = 1.0f / quad_sum(sum[r]);
#pragma unroll
      for (int c = 0; c < D / 8; c += 4) {
        uint32_t words[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int i = 4 * (c + j) + 2 * r;
          words[j] = pack(out_[i] * factor, out_[i + 1] * factor);
        }
        quad_transpose(words);
        if (result.to[r] >= 0) {
          *reinterpret_cast<uint4*>(args_.dst + result.to[r] + (c + lane % 4) * 8) =
              make_uint4(words[0], words[1], words[2], words[3]);
        }
      }
    }
  }

  // Of one of several cuts. Where rows go is asked only now: registers are full before.
  __device__ void leave(const float (&sum)[2]) const {
    const int lane = threadIdx.x % kWarp, warp = group_ * kGroupWarps + threadIdx.x / kWarp % kGroupWarps;
    const PrefillTask& task = *tiles_.task(piece_.index);
    const CutRows<D> rows(args_, task, cuts_, warp);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = lane / 4 + 8 * r;
      const float of_row = quad_sum(sum[r]);
      if (lane % 4 == 0) __stcg(rows.own_weights() + row, make_float2(m_[r], of_row));
      float* to = rows.own_sums() + row * D + 2 * (lane % 4);
#pragma unroll
      for (int c = 0; c < D / 8; ++c) {
        const float* at = out_ + 4 * c + 2 * r;
        __stcg(reinterpret_cast<float2*>(to + 8 * c), make_float2(at[0], at[1]));
      }
    }
    cluster_sync();  // threads that are gone are not waited for
    merge_cuts<D>(args_.dst, rows, result_of(task).to);
  }

  const Tiles<D>& tiles_;
  const AttentionArgs& args_;
  const int cuts_;
  const int group_;
  const float scale_;
  Stage piece_{0};
  Stage turn_{0};
  int tile_, last_tile_;
  int whole_from_, whole_to_;  // every row of the group sees these tokens
  int high_[2];                // the last tokens that this thread's rows see
  Result result_;
  float m_[2], l_[2];
  float out_[D / 2];
  float scores_[kTokens / 2];
  uint32_t weights_[kTokens / 16][4], next_weights_[kTokens / 16][4];
};

#endif

}  // namespace ion::cuda
