// See submit_check.h.
#include "core/submit_check.h"

#include <cmath>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "core/detokenizer.h"

namespace ion {
namespace {

template <typename... Parts>
void require(bool holds, const Parts&... parts) {
  if (holds) return;
  std::ostringstream message;
  (message << ... << parts);
  throw std::invalid_argument(message.str());
}

void check_ids(std::string_view field, const std::vector<int32_t>& ids, int32_t vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) {
    require(ids[i] >= 0 && ids[i] < vocab_size, field, "[", i, "]: token ", ids[i],
            " is outside the vocabulary of ", vocab_size);
  }
}

struct Range {
  const char* field;
  float value;
  float least, most;  // [least, most], both finite
  bool excludes_least;
};

void check_sampling(const SamplingParams& sampling, int32_t vocab_size, int32_t max_logprobs) {
  constexpr float kMost = 1e30f;
  const Range ranges[] = {
      {"temperature", sampling.temperature, 0.0f, kMost, false},
      {"top_p", sampling.top_p, 0.0f, 1.0f, true},
      {"min_p", sampling.min_p, 0.0f, 1.0f, false},
      {"top_a", sampling.top_a, 0.0f, 1.0f, false},
      {"repetition_penalty", sampling.repetition_penalty, 0.0f, kMost, true},
      {"presence_penalty", sampling.presence_penalty, -kMost, kMost, false},
      {"frequency_penalty", sampling.frequency_penalty, -kMost, kMost, false},
  };
  for (const Range& range : ranges) {
    const bool is_above = range.excludes_least ? range.value > range.least : range.value >= range.least;
    // Written so that NaN fails.
    require(is_above && range.value <= range.most, range.field, ": ", range.value, " is outside ",
            range.excludes_least ? "(" : "[", range.least, ", ", range.most, "]");
  }
  for (size_t i = 0; i < sampling.logit_bias.size(); ++i) {
    const LogitBias& entry = sampling.logit_bias[i];
    require(entry.id >= 0 && entry.id < vocab_size, "logit_bias: token ", entry.id,
            " is outside the vocabulary of ", vocab_size);
    require(std::isfinite(entry.bias), "logit_bias: the bias of token ", entry.id, " is not finite");
  }
  require(sampling.top_k >= -1, "top_k: ", sampling.top_k, " is below -1 (off)");
  require(sampling.num_logprobs >= -1 && sampling.num_logprobs <= vocab_size,
          "logprobs: ", sampling.num_logprobs, " is outside [-1 (none), ", vocab_size, " (the vocabulary)]");
  require(sampling.num_logprobs <= max_logprobs, "logprobs: ", sampling.num_logprobs, " is above ",
          max_logprobs, ", the most that this model's device reports");
  require(sampling.num_prompt_logprobs >= -1 && sampling.num_prompt_logprobs <= vocab_size,
          "prompt_logprobs: ", sampling.num_prompt_logprobs, " is outside [-1 (none), ", vocab_size,
          " (the vocabulary)]");
}

}  // namespace

void check_submit(const SubmitParams& params, const SubmitLimits& limits) {
  require(!params.prompt.empty(), "prompt: has no tokens");
  require(params.prompt.size() < static_cast<size_t>(limits.context_length), "prompt: has ",
          params.prompt.size(), " tokens, but the context holds ", limits.context_length,
          " and at least one must be left to generate");
  check_ids("prompt", params.prompt, limits.vocab_size);
  check_ids("stop_ids", params.sampling.stop_ids, limits.vocab_size);
  check_sampling(params.sampling, limits.vocab_size, limits.max_logprobs);
  require(params.sampling.num_prompt_logprobs < 0 || limits.scores_prompts,
          "prompt_logprobs: this model's device does not score prompts");
  // Nothing to generate makes sense where the prompt is to be scored.
  const int32_t least_new = params.sampling.num_prompt_logprobs >= 0 && !params.has_grammar ? 0 : 1;
  require(params.max_tokens >= least_new, "max_tokens: ", params.max_tokens, " is below ", least_new);
  require(params.sampling.min_tokens >= 0 && params.sampling.min_tokens <= params.max_tokens,
          "min_tokens: ", params.sampling.min_tokens, " is outside [0, max_tokens], that is [0, ",
          params.max_tokens, "]");
  // The end of a grammar is the end: there would be nothing left to sample.
  require(!params.has_grammar || params.sampling.min_tokens == 0,
          "min_tokens: does not go together with a grammar, which says when an answer is complete");
  for (size_t i = 0; i < params.stop.size(); ++i) {
    require(!params.stop[i].empty(), "stop[", i, "]: is empty");
    // Only then do its matches begin and end between characters.
    require(is_valid_utf8(params.stop[i]), "stop[", i, "]: is not valid UTF-8");
  }
}

}  // namespace ion
