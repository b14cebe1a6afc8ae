// What design questions hang on, measured: how a step's state may reach a CUDA
// graph, what a graph's launch costs, and whether the copy engine disturbs
// kernels that stream weights. Prints lines of a Markdown table.
//
// nvcc -O3 -std=c++17 -arch=sm_90 -o small_questions small_questions.cu &&
// ./small_questions
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

constexpr int kNodes = 200;               // kernels of a graph, about a small model's step
constexpr int kStateBytes = 4096;         // of a step
constexpr int64_t kStreamed = 4LL << 30;  // bytes that a pass of the reader reads
constexpr int64_t kCopied = 256LL << 20;

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

// Sixteen bytes a thread: one round trip.
__global__ void read_state(const uint4* state, uint32_t* out) {
  const uint4 value = __ldcv(state + threadIdx.x);
  if ((value.x ^ value.y ^ value.z ^ value.w) == 0xffffffffu) *out = value.x;
}

__global__ void nothing() {}

__global__ void stream_bytes(const uint4* from, int64_t count, uint32_t* out) {
  uint32_t sum = 0;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
#pragma unroll 8
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    const uint4 value = __ldcs(from + i);
    sum += value.x ^ value.y ^ value.z ^ value.w;
  }
  if (sum == 0xffffffffu) *out = sum;
}

// Microseconds that `work(stream)` keeps the device, once it has begun; median
// of nine.
template <typename Work>
double device_us(cudaStream_t stream, Work work) {
  cudaEvent_t begun, ended;
  check(cudaEventCreate(&begun), "event");
  check(cudaEventCreate(&ended), "event");
  std::vector<double> found;
  for (int i = 0; i < 10; ++i) {
    check(cudaEventRecord(begun, stream), "record");
    work(stream);
    check(cudaEventRecord(ended, stream), "record");
    check(cudaEventSynchronize(ended), "wait");
    float ms = 0.0f;
    check(cudaEventElapsedTime(&ms, begun, ended), "time");
    if (i > 0) found.push_back(ms * 1e3);
  }
  std::sort(found.begin(), found.end());
  return found[found.size() / 2];
}

template <typename Node>
cudaGraphExec_t graph_of(cudaStream_t stream, Node node) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < kNodes; ++i) node(stream);
  cudaGraph_t graph;
  check(cudaStreamEndCapture(stream, &graph), "capture");
  cudaGraphExec_t exec;
  check(cudaGraphInstantiate(&exec, graph, 0), "graph");
  check(cudaGraphDestroy(graph), "graph");
  return exec;
}

void state_questions(cudaStream_t stream) {
  uint4 *pinned, *mapped, *device;
  uint32_t* out;
  check(cudaHostAlloc(&pinned, kStateBytes, cudaHostAllocMapped), "pinned memory");
  std::memset(pinned, 0, kStateBytes);
  check(cudaHostGetDevicePointer(&mapped, pinned, 0), "mapping");
  check(cudaMalloc(&device, kStateBytes), "memory");
  check(cudaMalloc(&out, 4), "memory");
  check(cudaMemset(device, 0, kStateBytes), "memory");
  const auto per_node = [&](const char* what, auto node, double less) {
    cudaGraphExec_t exec = graph_of(stream, node);
    const double us = device_us(stream, [&](cudaStream_t s) { check(cudaGraphLaunch(exec, s), "launch"); });
    std::printf("| %s | %.2f us |\n", what, us / kNodes - less);
    check(cudaGraphExecDestroy(exec), "graph");
    return us / kNodes;
  };
  const double empty =
      per_node("an empty kernel in a graph", [&](cudaStream_t s) { nothing<<<1, 256, 0, s>>>(); }, 0);
  per_node(
      "4 KB of device memory read by one block, beyond it",
      [&](cudaStream_t s) { read_state<<<1, 256, 0, s>>>(device, out); }, empty);
  per_node(
      "4 KB of mapped pinned memory read by one block, beyond it",
      [&](cudaStream_t s) { read_state<<<1, 256, 0, s>>>(mapped, out); }, empty);
  per_node(
      "a copy node of 4 KB from pinned memory",
      [&](cudaStream_t s) {
        check(cudaMemcpyAsync(device, pinned, kStateBytes, cudaMemcpyHostToDevice, s), "copy");
      },
      0);
}

void launch_questions(cudaStream_t stream) {
  cudaGraphExec_t exec = graph_of(stream, [](cudaStream_t s) { nothing<<<132, 128, 0, s>>>(); });
  std::vector<double> host;
  for (int i = 0; i < 50; ++i) {
    check(cudaStreamSynchronize(stream), "wait");
    const auto begun = std::chrono::steady_clock::now();
    check(cudaGraphLaunch(exec, stream), "launch");
    host.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begun).count());
  }
  std::sort(host.begin(), host.end());
  std::printf("| host time to launch a graph of %d kernels | %.1f us |\n", kNodes, host[host.size() / 2]);
  const double one = device_us(stream, [&](cudaStream_t s) { check(cudaGraphLaunch(exec, s), "launch"); });
  const double ten = device_us(stream, [&](cudaStream_t s) {
    for (int i = 0; i < 10; ++i) check(cudaGraphLaunch(exec, s), "launch");
  });
  std::printf("| device time of one such graph, and of each of ten in a row | %.0f, %.0f us |\n", one,
              ten / 10);
}

void copy_questions(cudaStream_t stream) {
  uint4* weights;
  uint8_t *pinned, *device;
  uint32_t* out;
  check(cudaMalloc(&weights, kStreamed), "memory");
  check(cudaMemset(weights, 0, kStreamed), "memory");
  check(cudaMalloc(&device, kCopied), "memory");
  check(cudaMalloc(&out, 4), "memory");
  check(cudaHostAlloc(&pinned, kCopied, cudaHostAllocDefault), "pinned memory");
  int sms = 0;
  check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0), "device");
  cudaStream_t side;
  check(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking), "stream");
  const auto read = [&](cudaStream_t s) {
    for (int i = 0; i < 8; ++i) stream_bytes<<<sms * 4, 512, 0, s>>>(weights, kStreamed / 16, out);
  };
  const double alone = device_us(stream, read);
  std::printf("| reading alone | %.2f TB/s |\n", 8 * kStreamed / alone * 1e-6);
  for (const bool is_out : {true, false}) {
    const auto copy = [&] {
      return is_out ? cudaMemcpyAsync(pinned, device, kCopied, cudaMemcpyDeviceToHost, side)
                    : cudaMemcpyAsync(device, pinned, kCopied, cudaMemcpyHostToDevice, side);
    };
    const double copying = device_us(side, [&](cudaStream_t) { check(copy(), "copy"); });
    const double both = device_us(stream, [&](cudaStream_t s) {
      for (int i = 0; i < 4; ++i) check(copy(), "copy");
      read(s);
    });
    check(cudaStreamSynchronize(side), "wait");
    std::printf("| copying %s alone | %.1f GB/s |\n", is_out ? "out" : "in", kCopied / copying * 1e-3);
    std::printf("| reading while it copies %s | %.3f of alone |\n", is_out ? "out" : "in", alone / both);
  }
}

}  // namespace

int main() {
  cudaStream_t stream;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  std::printf("| question | answer |\n|---|--:|\n");
  state_questions(stream);
  launch_questions(stream);
  copy_questions(stream);
  return 0;
}
