// Engine: options, submit, drain, stats. The loop's thread never takes the interpreter lock.
#include "core/engine.h"

#include <pybind11/stl.h>

#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/unlocked.h"
#include "models/cpu_runner.h"
#include "models/cuda_runner.h"

namespace py = pybind11;

namespace ion::bindings {
namespace {

// The destructor joins the loop's thread, which may be in the middle of a step.
struct UnlockedDelete {
  void operator()(Engine* engine) const {
    const Unlocked unlocked;
    delete engine;
  }
};
using EnginePtr = std::unique_ptr<Engine, UnlockedDelete>;

// Tokens of a step where the options do not say. A GPU's matrix units want more rows than a CPU's.
constexpr int32_t kTokenBudget = 512, kCudaTokenBudget = 4096;

struct Options {
  EngineOptions engine;
  RunnerOptions runner;
  int32_t block_size = 16;
};

// Takes `key` out of `left`, so that what remains at the end is unknown.
template <typename T>
void take(py::dict& left, const char* key, T& to) {
  if (!left.contains(key)) return;
  try {
    to = left[key].cast<T>();
  } catch (const py::cast_error&) {
    throw py::value_error("options: " + std::string(key) + " has the wrong type or is out of range");
  }
  left.attr("pop")(key);
}

Options read_options(const py::dict& given, int32_t token_budget) {
  Options out;
  out.engine.token_budget = token_budget;
  auto left = py::reinterpret_steal<py::dict>(PyDict_Copy(given.ptr()));
  take(left, "token_budget", out.engine.token_budget);
  take(left, "max_running", out.engine.max_running);
  take(left, "context_length", out.engine.context_length);
  take(left, "pipeline_depth", out.engine.pipeline_depth);
  take(left, "max_mixed_step_ratio", out.engine.max_mixed_step_ratio);
  take(left, "prefix_cache", out.engine.prefix_cache);
  take(left, "cache_identity", out.engine.cache_identity);
  take(left, "check_integrity", out.engine.check_integrity);
  take(left, "num_blocks", out.runner.num_blocks);
  take(left, "kv_memory_bytes", out.runner.kv_memory_bytes);
  take(left, "tier_bytes", out.runner.tier_bytes);
  take(left, "tier_folder", out.runner.tier_folder);
  take(left, "use_graphs", out.runner.use_graphs);
  take(left, "is_deterministic", out.runner.is_deterministic);
  take(left, "block_size", out.block_size);
  if (out.block_size != 16) throw py::value_error("options: block_size must be 16");
  if (!left.empty())
    throw py::value_error("options: unknown key " + std::string(py::repr((*left.begin()).first)));
  out.runner.max_slots = out.engine.max_running;
  out.runner.max_tokens_per_step = out.engine.token_budget;
  out.runner.context_length = out.engine.context_length;
  return out;
}

using AnyModel = std::variant<ModelHandle, CudaModelHandle>;

std::unique_ptr<Runner> make_runner(const AnyModel& model, const RunnerOptions& options) {
  if (const auto* on_cuda = std::get_if<CudaModelHandle>(&model)) {
    return std::make_unique<CudaRunner>(on_cuda->model, options);
  }
  return std::make_unique<CpuRunner>(std::get<ModelHandle>(model).model, options);
}

EnginePtr make_engine(const AnyModel& model, const std::vector<std::string>& token_bytes,
                      const std::vector<int32_t>& stop_ids, const py::dict& options) {
  const int32_t token_budget =
      std::holds_alternative<CudaModelHandle>(model) ? kCudaTokenBudget : kTokenBudget;
  Options read = read_options(options, token_budget);
  const Unlocked unlocked;
  return EnginePtr(
      new Engine(make_runner(model, read.runner), token_bytes, stop_ids, std::move(read.engine)));
}

uint64_t submit(Engine& self, std::vector<int32_t> prompt, int32_t max_tokens, float temperature,
                int32_t top_k, float top_p, float min_p, float repetition_penalty, float presence_penalty,
                float frequency_penalty, uint64_t seed, std::vector<std::string> stop,
                std::vector<int32_t> stop_ids, bool ignore_eos, int32_t min_tokens, int32_t logprobs,
                int32_t priority, std::string cache_salt, float top_a,
                const std::map<int32_t, float>& logit_bias, bool grammar, bool drops_space,
                int32_t prompt_logprobs) {
  SubmitParams params;
  params.prompt = std::move(prompt);
  params.max_tokens = max_tokens;
  params.stop = std::move(stop);
  params.ignore_eos = ignore_eos;
  params.priority = priority;
  params.cache_salt = std::move(cache_salt);
  SamplingParams& sampling = params.sampling;
  sampling.temperature = temperature;
  sampling.top_k = top_k;
  sampling.top_p = top_p;
  sampling.min_p = min_p;
  sampling.repetition_penalty = repetition_penalty;
  sampling.presence_penalty = presence_penalty;
  sampling.frequency_penalty = frequency_penalty;
  sampling.seed = seed;
  sampling.stop_ids = std::move(stop_ids);
  sampling.min_tokens = min_tokens;
  sampling.num_logprobs = logprobs;
  sampling.num_prompt_logprobs = prompt_logprobs;
  sampling.top_a = top_a;
  for (const auto& [id, bias] : logit_bias) sampling.logit_bias.push_back({id, bias});
  params.has_grammar = grammar;
  params.drops_space = drops_space;
  const Unlocked unlocked;
  return self.submit(std::move(params));
}

py::list top_list(const std::vector<TokenLogprob>& entries) {
  py::list out;
  for (const TokenLogprob& entry : entries) out.append(py::make_tuple(entry.id, entry.logprob));
  return out;
}

py::list logprobs_list(const std::vector<TokenLogprobs>& tokens) {
  py::list out;
  for (const TokenLogprobs& token : tokens) {
    out.append(py::make_tuple(token.id, token.logprob, top_list(token.top)));
  }
  return out;
}

py::list prompt_logprobs_list(const std::vector<PromptToken>& tokens) {
  py::list out;
  for (const PromptToken& token : tokens) {
    out.append(py::make_tuple(token.id, token.logprob, token.rank, top_list(token.top)));
  }
  return out;
}

// What the last element of an event says: why it failed, or which stop string ended it (a caller's bytes, of
// which what is no UTF-8 is replaced).
py::object detail_of(const Event& event) {
  if (event.finish != kStop) return py::str(event.error);
  const auto size = static_cast<Py_ssize_t>(event.stop.size());
  PyObject* text = PyUnicode_DecodeUTF8(event.stop.data(), size, "replace");
  if (text == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(text);
}

py::list drain(Engine& self) {
  std::vector<Event> events;
  {
    const Unlocked unlocked;
    events = self.drain();
  }
  py::list out;
  for (const Event& event : events) {
    out.append(py::make_tuple(event.sequence, py::bytes(event.text), event.packed_flags(),
                              logprobs_list(event.logprobs), event.num_cached_tokens, detail_of(event),
                              event.queue_s, prompt_logprobs_list(event.prompt_logprobs)));
  }
  return out;
}

py::list mask_requests(Engine& self, double timeout) {
  std::vector<MaskRequest> requests;
  {
    const Unlocked unlocked;
    requests = self.take_mask_requests(std::chrono::duration<double>(timeout));
  }
  py::list out;
  for (const MaskRequest& request : requests) {
    out.append(py::make_tuple(request.sequence, request.token, request.index, request.has_ended));
  }
  return out;
}

using GivenMask = std::tuple<uint64_t, int32_t, py::bytes>;

void give_masks(Engine& self, const std::vector<GivenMask>& given) {
  std::vector<MaskAnswer> answers;
  for (const auto& [sequence, index, bytes] : given) {
    const std::string_view view = bytes;
    MaskAnswer answer{.sequence = sequence, .index = index, .words = {}, .error = {}};
    answer.words.resize(view.size() / sizeof(uint32_t));
    std::memcpy(answer.words.data(), view.data(), answer.words.size() * sizeof(uint32_t));
    answers.push_back(std::move(answer));
  }
  const Unlocked unlocked;
  self.give_masks(std::move(answers));
}

void refuse_mask(Engine& self, uint64_t sequence, int32_t index, std::string error) {
  if (error.empty()) throw py::value_error("error: is empty");
  const Unlocked unlocked;
  self.give_masks({{.sequence = sequence, .index = index, .words = {}, .error = std::move(error)}});
}

py::dict stats(const Engine& self) {
  const Stats stats = self.stats();
  py::dict out;
  out["waiting"] = stats.waiting;
  out["running"] = stats.running;
  out["waiting_tokens"] = stats.waiting_tokens;
  out["blocks_total"] = stats.blocks_total;
  out["blocks_free"] = stats.blocks_free;
  out["blocks_cached"] = stats.blocks_cached;
  out["tier_blocks_total"] = stats.tier_blocks_total;
  out["tier_blocks_free"] = stats.tier_blocks_free;
  out["tier_blocks_cached"] = stats.tier_blocks_cached;
  out["tier_copies_out"] = stats.tier_copies_out;
  out["tier_copies_in"] = stats.tier_copies_in;
  out["tier_copies_failed"] = stats.tier_copies_failed;
  out["tier_hit_tokens"] = stats.tier_hit_tokens;
  out["block_bytes"] = stats.block_bytes;
  out["steps"] = stats.steps;
  out["tokens"] = stats.tokens_generated;
  out["tokens_generated"] = stats.tokens_generated;
  out["tokens_prefilled"] = stats.tokens_prefilled;
  out["prefill_splits"] = stats.prefill_splits;
  out["preemptions"] = stats.preemptions;
  out["finished"] = stats.finished;
  out["aborts"] = stats.aborts;
  out["errors"] = stats.errors;
  out["non_finite_rows"] = stats.non_finite_rows;
  out["prefix_hit_tokens"] = stats.prefix_hit_tokens;
  out["last_step_s"] = stats.last_step_s;
  out["step_seconds"] = stats.step_seconds;
  out["mixed_steps"] = stats.mixed_steps;
  out["mixed_step_seconds"] = stats.mixed_step_seconds;
  out["mixed_predicted_seconds"] = stats.mixed_predicted_seconds;
  out["last_decode_rows"] = stats.last_decode_rows;
  out["last_prefill_chunk"] = stats.last_prefill_chunk;
  out["last_predicted_s"] = stats.last_predicted_s;
  out["last_decode_only_s"] = stats.last_decode_only_s;
  out["last_step_delay_s"] = stats.last_step_delay_s;
  out["step_delay_seconds"] = stats.step_delay_seconds;
  out["steps_delayed"] = stats.steps_delayed;
  out["prefill_rate"] = stats.prefill_rate;
  out["decode_rate"] = stats.decode_rate;
  out["unresponsive_s"] = stats.unresponsive_s;
  out["is_broken"] = stats.is_broken ? 1 : 0;
  return out;
}

}  // namespace

void add_engine(py::module_& module) {
  const auto unlocked = py::call_guard<Unlocked>();
  py::class_<Engine, EnginePtr>(module, "Engine")
      .def(py::init(&make_engine), py::arg("model"), py::arg("token_bytes"), py::arg("stop_ids"),
           py::arg("options"))
      .def_property_readonly("event_fd", &Engine::event_fd)
      .def_property_readonly("context_length", &Engine::context_length)
      .def("submit", &submit, py::arg("prompt"), py::kw_only(), py::arg("max_tokens"),
           py::arg("temperature") = 1.0f, py::arg("top_k") = 0, py::arg("top_p") = 1.0f,
           py::arg("min_p") = 0.0f, py::arg("repetition_penalty") = 1.0f, py::arg("presence_penalty") = 0.0f,
           py::arg("frequency_penalty") = 0.0f, py::arg("seed") = 0,
           py::arg("stop") = std::vector<std::string>(), py::arg("stop_ids") = std::vector<int32_t>(),
           py::arg("ignore_eos") = false, py::arg("min_tokens") = 0, py::arg("logprobs") = -1,
           py::arg("priority") = 0, py::arg("cache_salt") = "", py::arg("top_a") = 0.0f,
           py::arg("logit_bias") = std::map<int32_t, float>(), py::arg("grammar") = false,
           py::arg("drops_space") = false, py::arg("prompt_logprobs") = -1)
      .def("abort", &Engine::abort, py::arg("sequence"), unlocked)
      .def("drain", &drain)
      .def("mask_requests", &mask_requests, py::arg("timeout"))
      .def("give_masks", &give_masks, py::arg("masks"))
      .def("refuse_mask", &refuse_mask, py::arg("sequence"), py::arg("index"), py::arg("error"))
      .def("stats", &stats)
      .def("close", &Engine::close, unlocked);
}

}  // namespace ion::bindings
