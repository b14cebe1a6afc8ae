// The C interface: exceptions become codes and a text.
#include <exception>
#include <memory>
#include <string>

#include "cuda/ion_cuda.h"
#include "cuda/measure.h"
#include "cuda/model.h"
#include "cuda/runner.h"
#include "cuda/teacher_forced.h"

struct IonCudaModel {
  ion::cuda::Model model;
};

struct IonCudaRunner {
  ion::cuda::Runner runner;
};

namespace {

thread_local std::string last_error;

// What `call` gives, or `failed` with its error kept.
template <typename T, typename F>
T guarded(T failed, F call) {
  try {
    return call();
  } catch (const std::exception& error) {
    last_error = error.what();
    return failed;
  }
}

}  // namespace

int32_t ion_cuda_abi() {
  return ION_CUDA_ABI;
}

const char* ion_cuda_error() {
  return last_error.c_str();
}

int ion_cuda_device(int32_t index, IonCudaDevice* out) {
  return guarded(-1, [&] {
    int count = 0;
    ion::cuda::check(cudaGetDeviceCount(&count), "no NVIDIA GPU");
    if (index < 0 || index >= count)
      throw std::invalid_argument("there are " + std::to_string(count) + " GPUs");
    cudaDeviceProp properties{};
    ion::cuda::check(cudaGetDeviceProperties(&properties, index), "device");
    *out = {};
    std::snprintf(out->name, sizeof out->name, "%s", properties.name);
    out->compute_major = properties.major;
    out->compute_minor = properties.minor;
    out->num_sms = properties.multiProcessorCount;
    ion::cuda::check(cudaDriverGetVersion(&out->driver_version), "driver");
    ion::cuda::check(cudaRuntimeGetVersion(&out->runtime_version), "runtime");
    ion::cuda::check(cudaSetDevice(index), "device");
    size_t free = 0, total = 0;
    ion::cuda::check(cudaMemGetInfo(&free, &total), "device memory");
    out->free_bytes = static_cast<int64_t>(free);
    out->total_bytes = static_cast<int64_t>(total);
    int pageable = 0, atomics = 0;
    ion::cuda::check(cudaDeviceGetAttribute(&pageable, cudaDevAttrPageableMemoryAccess, index), "device");
    ion::cuda::check(cudaDeviceGetAttribute(&atomics, cudaDevAttrHostNativeAtomicSupported, index), "device");
    out->is_coherent = pageable != 0 && atomics != 0;
    return 0;
  });
}

int ion_cuda_read_bandwidth(int32_t device, double* out) {
  return guarded(-1, [&] {
    *out = ion::cuda::read_bandwidth(device);
    return 0;
  });
}

IonCudaModel* ion_cuda_model_create(const IonCudaConfig* config, int32_t device, const char* blaslt) {
  return guarded<IonCudaModel*>(nullptr, [&] {
    return new IonCudaModel{ion::cuda::Model(*config, device, blaslt == nullptr ? "" : blaslt)};
  });
}

void ion_cuda_model_destroy(IonCudaModel* model) {
  delete model;
}

int64_t ion_cuda_model_bytes(const IonCudaConfig* config) {
  return guarded<int64_t>(-1, [&] { return ion::cuda::weight_bytes(ion::cuda::Config(*config)); });
}

int64_t ion_cuda_block_bytes(const IonCudaConfig* config) {
  return guarded<int64_t>(-1, [&] { return ion::cuda::Config(*config).block_bytes(); });
}

int ion_cuda_model_write(IonCudaModel* model, IonCudaWeight weight, int32_t layer, int64_t first_row,
                         int64_t num_rows, const void* rows) {
  return guarded(-1, [&] {
    model->model.write(weight, layer, first_row, num_rows, rows);
    return 0;
  });
}

int ion_cuda_model_fill(IonCudaModel* model, IonCudaWeight weight, int32_t layer, int64_t first_row,
                        int64_t num_rows, uint64_t key, float scale) {
  return guarded(-1, [&] {
    model->model.fill(weight, layer, first_row, num_rows, key, scale);
    return 0;
  });
}

void* ion_cuda_model_pointer(IonCudaModel* model, IonCudaWeight weight, int32_t layer) {
  return guarded<void*>(nullptr, [&] { return model->model.pointer(weight, layer); });
}

int ion_cuda_model_tile(IonCudaModel* model) {
  return guarded(-1, [&] {
    model->model.tile();
    return 0;
  });
}

int64_t ion_cuda_runner_bytes(const IonCudaModel* model, const IonCudaOptions* options) {
  return guarded<int64_t>(-1, [&] { return ion::cuda::Runner::num_bytes(model->model, *options); });
}

IonCudaRunner* ion_cuda_runner_create(IonCudaModel* model, const IonCudaOptions* options) {
  return guarded<IonCudaRunner*>(nullptr, [&] { return new IonCudaRunner{{model->model, *options}}; });
}

void ion_cuda_runner_destroy(IonCudaRunner* runner) {
  delete runner;
}

int ion_cuda_submit(IonCudaRunner* runner, const IonCudaStep* step) {
  return guarded(-1, [&] {
    runner->runner.submit(*step);
    return 0;
  });
}

int ion_cuda_upload_masks(IonCudaRunner* runner, uint64_t epoch, const IonCudaMask* masks,
                          int32_t num_masks) {
  return guarded(-1, [&] {
    runner->runner.upload_masks(epoch, masks, num_masks);
    return 0;
  });
}

int ion_cuda_poll(IonCudaRunner* runner, IonCudaResult* out, int32_t wait) {
  return guarded(-1, [&] { return runner->runner.poll(*out, wait != 0) ? 1 : 0; });
}

uint64_t ion_cuda_copy_out(IonCudaRunner* runner, int32_t block, int32_t host_block) {
  return guarded<uint64_t>(0, [&] { return runner->runner.tier().copy_out(block, host_block); });
}

uint64_t ion_cuda_copy_in(IonCudaRunner* runner, int32_t host_block, int32_t block) {
  return guarded<uint64_t>(0, [&] { return runner->runner.tier().copy_in(host_block, block); });
}

int ion_cuda_copy_state(IonCudaRunner* runner, uint64_t ticket, int32_t wait) {
  return guarded(-1, [&] { return runner->runner.tier().is_done(ticket, wait != 0) ? 1 : 0; });
}

int ion_cuda_logits(IonCudaModel* model, const int32_t* ids, int32_t num_ids, int32_t chunk,
                    int32_t use_streams, float* logits) {
  return guarded(-1, [&] {
    ion::cuda::teacher_forced_logits(model->model, ids, num_ids, chunk, use_streams != 0, logits);
    return 0;
  });
}
