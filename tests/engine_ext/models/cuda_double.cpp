// See cuda_double.h.
#include "cuda_double.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <set>
#include <thread>

#include "kernels/cpu/half.h"
#include "kernels/random_values.h"

using cuda_double::Log;
using cuda_double::Weight;

struct IonCudaModel {
  IonCudaConfig config;
};

struct IonCudaRunner {
  struct Waiting {
    uint64_t epoch;
    std::vector<IonCudaRow> rows;
    bool has_masks;
    std::chrono::steady_clock::time_point submitted_at = std::chrono::steady_clock::now();
  };
  std::chrono::steady_clock::time_point last_end;
  IonCudaConfig config;
  std::map<int32_t, int32_t> num_logprobs;  // by slot
  std::deque<Waiting> waiting;
  std::set<uint64_t> asked;  // tickets that were pending once
  std::vector<int32_t> slots;
  std::vector<IonCudaSample> samples;
};

namespace {

constexpr int64_t kBf16 = 2, kFloat = 4;

Log log_;
std::multiset<std::string> failing;
thread_local std::string error;

bool fails(const char* name) {
  const auto found = failing.find(name);
  if (found == failing.end()) return false;
  failing.erase(found);
  error = std::string(name) + " was told to fail";
  return true;
}

template <typename T>
std::vector<T> list(const T* from, int32_t count) {
  return std::vector<T>(from, from + count);
}

int64_t variable(const char* name, int64_t fallback) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoll(text) : fallback;
}

// Rows and bytes of a row; a vector's rows are its elements.
std::pair<int64_t, int64_t> shape_of(const IonCudaConfig& c, int32_t weight) {
  const int64_t q = int64_t{c.num_heads} * c.head_dim, kv = int64_t{c.num_kv_heads} * c.head_dim;
  const bool is_e4m3 = c.matrix_type == ION_CUDA_E4M3, is_head_e4m3 = c.head_type == ION_CUDA_E4M3;
  const int64_t value = is_e4m3 ? 1 : kBf16;
  switch (weight) {
    case ION_CUDA_EMBEDDING:
      return {c.vocab_size, kBf16 * c.hidden_size};
    case ION_CUDA_HEAD:
      return {c.is_head_tied ? 0 : c.vocab_size, (is_head_e4m3 ? 1 : kBf16) * c.hidden_size};
    case ION_CUDA_QKV:
      return {q + 2 * kv, value * c.hidden_size};
    case ION_CUDA_QKV_BIAS:
      return {c.has_qkv_bias ? q + 2 * kv : 0, kFloat};
    case ION_CUDA_Q_NORM:
    case ION_CUDA_K_NORM:
      return {c.has_qk_norm ? c.head_dim : 0, kFloat};
    case ION_CUDA_O:
      return {c.hidden_size, value * q};
    case ION_CUDA_GATE_UP:
      return {2 * int64_t{c.ffn_size}, value * c.hidden_size};
    case ION_CUDA_DOWN:
      return {c.hidden_size, value * c.ffn_size};
    case ION_CUDA_QKV_SCALE:
      return {is_e4m3 ? q + 2 * kv : 0, kFloat};
    case ION_CUDA_GATE_UP_SCALE:
      return {is_e4m3 ? 2 * int64_t{c.ffn_size} : 0, kFloat};
    case ION_CUDA_O_SCALE:
    case ION_CUDA_DOWN_SCALE:
      return {is_e4m3 ? c.hidden_size : 0, kFloat};
    case ION_CUDA_HEAD_SCALE:
      return {is_head_e4m3 ? c.vocab_size : 0, kFloat};
    default:
      return {c.hidden_size, kFloat};
  }
}

bool is_of_layer(int32_t weight) {
  return weight >= ION_CUDA_ATTN_NORM && weight <= ION_CUDA_DOWN_SCALE;
}

void add_weight(const IonCudaConfig& config, int32_t weight, int32_t layer) {
  const auto [rows, row_bytes] = shape_of(config, weight);
  if (rows == 0) return;
  Weight& added = log_.weights[{weight, layer}];
  added = {rows, row_bytes, std::vector<std::byte>(rows * row_bytes), std::vector<int32_t>(rows)};
}

void sample_row(IonCudaRunner& runner, const IonCudaRow& row) {
  IonCudaSample out{};
  const int32_t vocab = runner.config.vocab_size;
  out.id = cuda_double::sampled_id(row.slot, row.start + row.count, vocab);
  out.is_finite = fails("finite") ? 0 : 1;
  if (!out.is_finite) out.id = -1;
  out.logprob = -0.25f * static_cast<float>(row.slot);
  out.num_top = std::max(0, runner.num_logprobs[row.slot]);
  for (int32_t i = 0; i < out.num_top; ++i) {
    out.top_ids[i] = (out.id + i) % vocab;
    out.top_logprobs[i] = -0.5f * static_cast<float>(i);
  }
  runner.slots.push_back(row.slot);
  runner.samples.push_back(out);
}

}  // namespace

extern "C" {

void* cuda_double_log(void) {
  return &log_;
}
void cuda_double_fail(const char* name) {
  failing.insert(name);
}
const IonCudaConfig* cuda_double_config(void) {
  return &log_.config;
}

int64_t cuda_double_largest_write(void) {
  return log_.largest_write;
}

int32_t cuda_double_is_deterministic(void) {
  return log_.options.is_deterministic;
}

const void* cuda_double_weight(int32_t weight, int32_t layer, int64_t* num_rows, int64_t* row_bytes,
                               int32_t* is_whole) {
  const auto found = log_.weights.find({weight, layer});
  if (found == log_.weights.end()) return nullptr;
  *num_rows = found->second.num_rows;
  *row_bytes = found->second.row_bytes;
  *is_whole = std::ranges::all_of(found->second.num_writes, [](int32_t num) { return num == 1; });
  return found->second.bytes.data();
}

int32_t ion_cuda_abi(void) {
  return static_cast<int32_t>(variable("CUDA_DOUBLE_ABI", ION_CUDA_ABI));
}
const char* ion_cuda_error(void) {
  return error.c_str();
}

int ion_cuda_device(int32_t, IonCudaDevice* out) {
  if (std::getenv("CUDA_DOUBLE_NO_GPU") != nullptr) {
    error = "no CUDA-capable device is detected";
    return -1;
  }
  const auto compute = static_cast<int32_t>(variable("CUDA_DOUBLE_COMPUTE", 90));
  *out = IonCudaDevice{"Double GPU", compute / 10, compute % 10, 132, 13000, 13000, int64_t{8} << 30, 0, 0};
  out->free_bytes = variable("CUDA_DOUBLE_FREE_BYTES", int64_t{4} << 30);
  return 0;
}

IonCudaModel* ion_cuda_model_create(const IonCudaConfig* config, int32_t, const char* blaslt) {
  if (fails("model_create")) return nullptr;
  if (config->head_type == ION_CUDA_E4M3 && config->is_head_tied) {
    error = "a tied head of e4m3";
    return nullptr;
  }
  log_.frequencies = list(config->rope_frequencies, config->head_dim / 2);
  log_.windows.clear();
  if (config->windows != nullptr) log_.windows = list(config->windows, config->num_layers);
  log_.config = *config;
  log_.config.rope_frequencies = log_.frequencies.data();
  log_.config.windows = log_.windows.empty() ? nullptr : log_.windows.data();
  log_.blaslt = blaslt != nullptr ? blaslt : "";
  log_.weights.clear();
  log_.largest_write = 0;
  for (int32_t weight = ION_CUDA_EMBEDDING; weight <= ION_CUDA_HEAD_SCALE; ++weight) {
    const int32_t num_layers = is_of_layer(weight) ? config->num_layers : 1;
    for (int32_t layer = 0; layer < num_layers; ++layer) add_weight(*config, weight, layer);
  }
  ++log_.num_models;
  return new IonCudaModel{log_.config};
}

void ion_cuda_model_destroy(IonCudaModel* model) {
  --log_.num_models;
  delete model;
}

int64_t ion_cuda_model_bytes(const IonCudaConfig* c) {
  int64_t out = 0;
  for (int32_t weight = ION_CUDA_EMBEDDING; weight <= ION_CUDA_HEAD_SCALE; ++weight) {
    const auto [rows, row_bytes] = shape_of(*c, weight);
    out += rows * row_bytes * (is_of_layer(weight) ? c->num_layers : 1);
  }
  return out;
}

int64_t ion_cuda_block_bytes(const IonCudaConfig* c) {
  const bool is_e4m3 = c->kv_type == ION_CUDA_E4M3;
  const int64_t head_bytes = is_e4m3 ? c->head_dim + kFloat : kBf16 * c->head_dim;
  return int64_t{2} * c->num_layers * c->num_kv_heads * 16 * head_bytes;
}

int ion_cuda_model_write(IonCudaModel*, IonCudaWeight weight, int32_t layer, int64_t first_row,
                         int64_t num_rows, const void* rows) {
  if (fails("model_write")) return -1;
  const auto found = log_.weights.find({weight, layer});
  if (found == log_.weights.end() || first_row < 0 || num_rows < 1 ||
      first_row + num_rows > found->second.num_rows) {
    error = "no such rows";
    return -1;
  }
  Weight& to = found->second;
  log_.largest_write = std::max(log_.largest_write, num_rows * to.row_bytes);
  std::memcpy(to.bytes.data() + first_row * to.row_bytes, rows, num_rows * to.row_bytes);
  for (int64_t row = first_row; row < first_row + num_rows; ++row) ++to.num_writes[row];
  return 0;
}

int ion_cuda_model_fill(IonCudaModel*, IonCudaWeight weight, int32_t layer, int64_t first_row,
                        int64_t num_rows, uint64_t key, float scale) {
  if (fails("model_fill")) return -1;
  const auto found = log_.weights.find({weight, layer});
  if (found == log_.weights.end() || first_row < 0 || first_row + num_rows > found->second.num_rows) {
    error = "no such rows";
    return -1;
  }
  Weight& to = found->second;
  auto* values = reinterpret_cast<uint16_t*>(to.bytes.data() + first_row * to.row_bytes);
  for (int64_t i = 0; i < num_rows * to.row_bytes / kBf16; ++i) {
    const uint64_t group = ion::kernels::random_group(key, i / ion::kernels::kRandomGroup);
    const int lane = static_cast<int>(i % ion::kernels::kRandomGroup);
    values[i] = ion::kernels::f32_to_bf16(ion::kernels::random_value(group, lane, scale));
  }
  for (int64_t row = first_row; row < first_row + num_rows; ++row) ++to.num_writes[row];
  return 0;
}

int ion_cuda_read_bandwidth(int32_t, double* out) {
  *out = 1e12;
  return 0;
}

void* ion_cuda_model_pointer(IonCudaModel*, IonCudaWeight weight, int32_t layer) {
  const auto found = log_.weights.find({weight, layer});
  return found == log_.weights.end() ? nullptr : found->second.bytes.data();
}

int ion_cuda_model_tile(IonCudaModel*) {
  return 0;
}

int64_t ion_cuda_runner_bytes(const IonCudaModel*, const IonCudaOptions* options) {
  return int64_t{options->max_slots} * 1000 + options->max_tokens_per_step * 100;
}

IonCudaRunner* ion_cuda_runner_create(IonCudaModel* model, const IonCudaOptions* options) {
  if (fails("runner_create")) return nullptr;
  log_.options = *options;
  log_.steps.clear(), log_.masks.clear(), log_.copies.clear();
  ++log_.num_runners;
  auto* runner = new IonCudaRunner{};
  runner->config = model->config;
  return runner;
}

void ion_cuda_runner_destroy(IonCudaRunner* runner) {
  --log_.num_runners;
  delete runner;
}

int ion_cuda_submit(IonCudaRunner* runner, const IonCudaStep* step) {
  if (fails("submit")) return -1;
  cuda_double::Step kept{
      step->epoch, list(step->rows, step->num_rows),     list(step->leaves, step->num_leaves),
      {},          list(step->blocks, step->num_blocks), list(step->copies, step->num_copies)};
  for (int32_t i = 0; i < step->num_joins; ++i) {
    const IonCudaJoin& join = step->joins[i];
    kept.joins.push_back({join.slot, join.num_prompt, list(join.ids, join.num_ids),
                          list(join.stop_ids, join.num_stop_ids), list(join.bias_ids, join.num_biases),
                          list(join.biases, join.num_biases), join.sampling});
    runner->num_logprobs[join.slot] = join.sampling.num_logprobs;
  }
  const bool is_masked =
      std::ranges::any_of(kept.rows, [](const IonCudaRow& row) { return (row.flags & 4) != 0; });
  runner->waiting.push_back({step->epoch, kept.rows, !is_masked});
  log_.steps.push_back(std::move(kept));
  return 0;
}

int ion_cuda_upload_masks(IonCudaRunner* runner, uint64_t epoch, const IonCudaMask* masks,
                          int32_t num_masks) {
  if (fails("upload_masks")) return -1;
  for (int32_t i = 0; i < num_masks; ++i) {
    log_.masks.push_back({epoch, masks[i].slot, list(masks[i].words, masks[i].num_words)});
  }
  for (auto& waiting : runner->waiting) waiting.has_masks |= waiting.epoch == epoch;
  return 0;
}

int ion_cuda_poll(IonCudaRunner* runner, IonCudaResult* out, int32_t wait) {
  if (runner->waiting.empty() || !runner->waiting.front().has_masks) return 0;
  // A device that takes its time, for benchmarks of what is around it.
  const std::chrono::microseconds spent(variable("CUDA_DOUBLE_STEP_US", 0));
  const auto due = std::max(runner->waiting.front().submitted_at, runner->last_end) + spent;
  if (spent.count() > 0 && std::chrono::steady_clock::now() < due) {
    if (!wait) return 0;
    std::this_thread::sleep_until(due);
  }
  runner->last_end = due;
  const auto step = std::move(runner->waiting.front());
  runner->waiting.pop_front();
  if (fails("poll")) return -1;
  runner->slots.clear(), runner->samples.clear();
  for (const IonCudaRow& row : step.rows) {
    if ((row.flags & 1) != 0) sample_row(*runner, row);
  }
  if (fails("samples")) runner->slots.pop_back();
  *out = {step.epoch, static_cast<int32_t>(runner->slots.size()), runner->slots.data(),
          runner->samples.data(), 0.125};
  return 1;
}

uint64_t ion_cuda_copy_out(IonCudaRunner*, int32_t block, int32_t host_block) {
  if (fails("copy_out")) return 0;
  log_.copies.push_back({false, block, host_block});
  return log_.copies.size();
}

uint64_t ion_cuda_copy_in(IonCudaRunner*, int32_t host_block, int32_t block) {
  if (fails("copy_in")) return 0;
  log_.copies.push_back({true, block, host_block});
  return log_.copies.size();
}

// Pending when first asked about without waiting.
int ion_cuda_copy_state(IonCudaRunner* runner, uint64_t ticket, int32_t wait) {
  if (fails("copy_state")) return -1;
  return wait || !runner->asked.insert(ticket).second ? 1 : 0;
}

int ion_cuda_logits(IonCudaModel* model, const int32_t* ids, int32_t num_ids, int32_t chunk, int32_t,
                    float* logits) {
  if (fails("logits")) return -1;
  const int32_t vocab = model->config.vocab_size;
  for (int32_t i = 0; i < num_ids; ++i) {
    for (int32_t id = 0; id < vocab; ++id)
      logits[int64_t{i} * vocab + id] = static_cast<float>(ids[i] * chunk + id);
  }
  return 0;
}

}  // extern "C"
