// The layers of a pass over matrices of e4m3: every product's input is quantised by row, in the operation
// that makes it where there is one. Attention, the residual stream and the head are as in bf16.
#include "cuda/decoder.h"

namespace ion::cuda {

// embedded rows in x_ -> x_, and the last branch's output in normed_
Decoder::LastRows Decoder::forward_e4m3(const DecoderBatch& batch, cudaStream_t stream) {
  const Config& config = model_.config();
  const int64_t hidden = config.hidden_size, ffn = config.ffn_size, q_size = config.q_size();
  const bool is_streamed = batch.num_rows <= stream_rows_;
  const TiledLayer none;
  LastRows at{x_, mixed_, batch.num_rows};
  const auto product = [&](bf16* y, const StreamInput& x, const Matrix& w, const Matrix& tiled, int64_t n,
                           int64_t k, const StreamNext& next = {}) {
    if (!is_streamed) return multiply_quantised(y, w, at.count, n, k, stream);
    this->stream(y, StreamOutput::bf16, x, tiled, at.count, n, k, stream, next);
    return ProductScales{};
  };
  rms_norm_quantised(quantised_, x_, model_.layer(0).attn_norm, at.count, hidden, config.rms_eps, stream);
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const Layer& layer = model_.layer(i);
    const TiledLayer& tiled = is_streamed ? model_.tiled_layer(i) : none;
    apply_scales(qkv_, product(qkv_, normed_view_, layer.qkv, tiled.qkv, config.qkv_size(), hidden), at.count,
                 config.qkv_size(), stream);
    attend(i, batch, false, stream);
    const bool is_last = i + 1 == config.num_layers;
    if (is_last && !is_streamed) at = pick_rows(batch, stream);
    if (at.count == 0) break;
    quantise_rows(quantised_, at.mixed, at.count, q_size, stream);
    // Attention reads little: meanwhile memory has time for the largest matrix.
    const StreamNext next{tiled.gate_up.values, 2 * ffn, hidden};
    ProductScales scales = product(normed_, mixed_view_, layer.o, tiled.o, hidden, q_size, next);
    add_rms_norm_quantised(quantised_, at.x, normed_, scales, layer.ffn_norm, at.count, hidden,
                           config.rms_eps, stream);
    if (is_streamed) {
      this->stream(gated_, StreamOutput::silu_mul, normed_view_, tiled.gate_up, at.count, 2 * ffn, hidden,
                   stream);
      quantise_rows(quantised_, gated_, at.count, ffn, stream);
    } else {
      scales = multiply_quantised(gate_up_, layer.gate_up, at.count, 2 * ffn, hidden, stream);
      silu_mul_quantised(quantised_, gate_up_, scales, at.count, ffn, stream);
    }
    scales = product(normed_, gated_view_, layer.down, tiled.down, hidden, ffn);
    if (is_last) {
      apply_scales(normed_, scales, at.count, hidden, stream);
    } else {
      add_rms_norm_quantised(quantised_, at.x, normed_, scales, model_.layer(i + 1).attn_norm, at.count,
                             hidden, config.rms_eps, stream);
    }
  }
  return at;
}

}  // namespace ion::cuda
