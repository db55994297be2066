// SPDX-License-Identifier: Apache-2.0
#include <bench_gpu/device_costs.h>

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>

#include <millrace/tensor/with_cuda/check.h>
#include <bench_gpu/with_cuda/device_clock.cuh>

namespace millrace::bench {
namespace {

using cuda::check;

__global__ void empty_kernel() {}

/// Rounds of a barrier of all blocks: one thread of each adds to a counter, and reads it until all have.
__global__ void counter_rounds(unsigned* counter, unsigned rounds) {
  for (unsigned round = 1; round <= rounds; ++round) {
    __syncthreads();
    if (threadIdx.x == 0) {
      asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
      unsigned seen = 0;
      while (seen < round * gridDim.x) asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
    }
    __syncthreads();
  }
}

__global__ void cluster_rounds(unsigned rounds) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  for (unsigned round = 0; round < rounds; ++round)
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

/// One thread tells the host's memory of so many steps, by a store, or by an addition that the memory makes.
__global__ void told_host(unsigned long long* word, unsigned rounds, bool adds) {
  for (unsigned round = 1; round <= rounds; ++round) {
    if (adds)
      asm volatile("red.release.sys.global.max.u64 [%0], %1;" ::"l"(word), "l"(std::uint64_t{round}) : "memory");
    else
      asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(std::uint64_t{round}) : "memory");
  }
}

/// Raises the word halfway through twice the time given. The stamps are the times of the store and of the kernel's end.
__global__ void raise_word(std::int64_t nanoseconds, unsigned long long* word, std::int64_t* stamps) {
  const std::int64_t begin = device_clock();
  while (device_clock() - begin < nanoseconds) {
  }
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(std::uint64_t{1}) : "memory");
  stamps[0] = device_clock();
  while (device_clock() - begin < 2 * nanoseconds) {
  }
  stamps[1] = device_clock();
}
__global__ void await_word(const unsigned long long* word) {
  unsigned long long seen = 0;
  while (seen == 0) asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(seen) : "l"(word) : "memory");
}
__global__ void note_time(std::int64_t* stamp) { *stamp = device_clock(); }

class Stream {
 public:
  explicit Stream(int device) : device_(device) {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags", device);
  }
  ~Stream() { static_cast<void>(cudaStreamDestroy(stream_)); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const noexcept { return stream_; }
  void wait() const { check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize", device_); }

  /// Seconds of one of `count`: the median of five times, the first of six being left out.
  template <class F>
  double seconds_of(int count, F&& f) const {
    std::vector<double> all;
    for (int iteration = 0; iteration < 6; ++iteration) {
      wait();
      const auto start = std::chrono::steady_clock::now();
      f();
      wait();
      if (iteration > 0) all.push_back(seconds_since(start) / count);
    }
    return median(std::move(all));
  }

 private:
  int device_;
  cudaStream_t stream_ = nullptr;
};

constexpr unsigned rounds = 4000;
constexpr unsigned cluster_blocks = 16;

std::optional<double> counter_barrier(int device) {
  int blocks = 0, together = 0;
  check(cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute", device);
  check(cudaDeviceGetAttribute(&together, cudaDevAttrCooperativeLaunch, device), "cudaDeviceGetAttribute", device);
  if (together == 0) return std::nullopt;
  const Stream stream(device);
  unsigned* counter = nullptr;
  check(cudaMalloc(&counter, sizeof(unsigned)), "cudaMalloc", device);
  unsigned count = rounds;
  void* arguments[] = {&counter, &count};
  const double seconds = stream.seconds_of(rounds, [&] {
    check(cudaMemsetAsync(counter, 0, sizeof(unsigned), stream), "cudaMemsetAsync", device);
    check(cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(counter_rounds), dim3(static_cast<unsigned>(blocks)), dim3(256),
                                      arguments, 0, stream),
          "cudaLaunchCooperativeKernel", device);
  });
  static_cast<void>(cudaFree(counter));
  return seconds;
}

std::optional<double> cluster_barrier(int device) {
  int clusters = 0;
  check(cudaDeviceGetAttribute(&clusters, cudaDevAttrClusterLaunch, device), "cudaDeviceGetAttribute", device);
  if (clusters == 0) return std::nullopt;
  check(cudaFuncSetAttribute(cluster_rounds, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), "cudaFuncSetAttribute", device);
  const Stream stream(device);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(cluster_blocks);
  config.blockDim = dim3(256);
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = cluster_blocks;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  // 16 blocks are more than every device promises a cluster.
  if (int most = 0; cudaOccupancyMaxActiveClusters(&most, cluster_rounds, &config) != cudaSuccess || most == 0) {
    static_cast<void>(cudaGetLastError());
    return std::nullopt;
  }
  return stream.seconds_of(rounds, [&] { check(cudaLaunchKernelEx(&config, cluster_rounds, rounds), "cudaLaunchKernelEx", device); });
}

/// The means by which one stream waits for the work of another.
enum class Release : std::uint8_t { value, kernel, event };

DriverCost release_of_stream(int device, Release by) {
  constexpr std::int64_t raised_after = 200'000;
  const Stream first(device), second(device);
  void* word = nullptr;
  void* there = nullptr;
  std::int64_t* stamps = nullptr;
  cudaEvent_t event = nullptr;
  check(cudaHostAlloc(&word, sizeof(std::uint64_t), cudaHostAllocMapped), "cudaHostAlloc", device);
  check(cudaHostGetDevicePointer(&there, word, 0), "cudaHostGetDevicePointer", device);
  check(cudaMalloc(&stamps, 3 * sizeof(std::int64_t)), "cudaMalloc", device);
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags", device);
  auto* const raised = static_cast<unsigned long long*>(there);
  CUresult (*wait)(CUstream, CUdeviceptr, cuuint64_t, unsigned) = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check(cudaGetDriverEntryPointByVersion("cuStreamWaitValue64", reinterpret_cast<void**>(&wait), 12000, cudaEnableDefault, &found),
        "cudaGetDriverEntryPointByVersion", device);
  std::vector<double> all;
  for (int i = 0; i < 30; ++i) {
    *static_cast<volatile std::uint64_t*>(word) = 0;
    raise_word<<<1, 1, 0, first>>>(raised_after, raised, stamps);
    if (by == Release::value) {
      check(static_cast<cudaError_t>(wait(second, reinterpret_cast<CUdeviceptr>(there), 1, 0)), "cuStreamWaitValue64", device);
    } else if (by == Release::kernel) {
      await_word<<<1, 1, 0, second>>>(raised);
    } else {
      check(cudaEventRecord(event, first), "cudaEventRecord", device);
      check(cudaStreamWaitEvent(second, event, 0), "cudaStreamWaitEvent", device);
    }
    note_time<<<1, 1, 0, second>>>(stamps + 2);
    check(cudaGetLastError(), "a kernel's launch", device);
    first.wait();
    second.wait();
    std::int64_t at[3] = {};
    check(cudaMemcpy(at, stamps, sizeof at, cudaMemcpyDeviceToHost), "cudaMemcpy", device);
    all.push_back(1e-9 * static_cast<double>(at[2] - at[by == Release::event ? 1 : 0]));
  }
  static_cast<void>(cudaEventDestroy(event));
  static_cast<void>(cudaFree(stamps));
  static_cast<void>(cudaFreeHost(word));
  const char* const what = by == Release::value    ? "a stream goes on behind a word of the host (cuStreamWaitValue64)"
                           : by == Release::kernel ? "the same by a kernel of one thread that looks at the word"
                                                   : "a stream goes on behind another's kernel, by an event";
  return {what, median(std::move(all)),
          "from the store, or the kernel's end, to the next kernel's begin, by the device's clock, which may tick in 1 us"};
}

DriverCost launches(int device) {
  constexpr int count = 1000;
  const Stream stream(device);
  return {"a kernel, launched back to back", stream.seconds_of(count, [&] {
            for (int i = 0; i < count; ++i) empty_kernel<<<1, 1, 0, stream>>>();
            check(cudaGetLastError(), "a kernel's launch", device);
          })};
}

DriverCost telling_host(int device, bool adds) {
  constexpr unsigned count = 1000;
  const Stream stream(device);
  void* word = nullptr;
  check(cudaHostAlloc(&word, sizeof(std::uint64_t), cudaHostAllocMapped), "cudaHostAlloc", device);
  void* there = nullptr;
  check(cudaHostGetDevicePointer(&there, word, 0), "cudaHostGetDevicePointer", device);
  DriverCost cost{
      adds ? "a word of the host raised by one thread (red.release.sys)" : "a word of the host stored by one thread (st.release.sys)",
      stream.seconds_of(count, [&] {
        told_host<<<1, 1, 0, stream>>>(static_cast<unsigned long long*>(there), count, adds);
        check(cudaGetLastError(), "a kernel's launch", device);
      })};
  static_cast<void>(cudaFreeHost(word));
  return cost;
}

DriverCost events(int device) {
  constexpr int count = 1000;
  const Stream stream(device), other(device);
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags", device);
  DriverCost cost{"an event, recorded and waited for by another stream", stream.seconds_of(count, [&] {
                    for (int i = 0; i < count; ++i) {
                      check(cudaEventRecord(event, stream), "cudaEventRecord", device);
                      check(cudaStreamWaitEvent(other, event, 0), "cudaStreamWaitEvent", device);
                    }
                  })};
  static_cast<void>(cudaEventDestroy(event));
  return cost;
}

DriverCost graphs(int device, int nodes) {
  constexpr int count = 100;
  const Stream stream(device);
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture", device);
  for (int i = 0; i < nodes; ++i) empty_kernel<<<1, 1, 0, stream>>>();
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture", device);
  cudaGraphExec_t ready = nullptr;
  check(cudaGraphInstantiate(&ready, graph, 0), "cudaGraphInstantiate", device);
  DriverCost cost{"a graph of " + std::to_string(nodes) + " kernels, launched back to back, each kernel",
                  stream.seconds_of(count * nodes, [&] {
                    for (int i = 0; i < count; ++i) check(cudaGraphLaunch(ready, stream), "cudaGraphLaunch", device);
                  })};
  static_cast<void>(cudaGraphExecDestroy(ready));
  static_cast<void>(cudaGraphDestroy(graph));
  return cost;
}

/// From a blocking wait's begin to its end, for a kernel that is already done: what a round trip into the driver costs.
DriverCost round_trip(int device) {
  constexpr int count = 200;
  const Stream stream(device);
  return {"a kernel, launched and waited for by a thread that spins", stream.seconds_of(count, [&] {
            for (int i = 0; i < count; ++i) {
              empty_kernel<<<1, 1, 0, stream>>>();
              stream.wait();
            }
          })};
}

}  // namespace

std::optional<double> measure_barrier(GpuMachine& machine, Barrier kind) {
  const cuda::OnDevice here(machine.index());
  return kind == Barrier::cluster ? cluster_barrier(machine.index()) : counter_barrier(machine.index());
}

std::vector<DriverCost> measure_driver_costs(GpuMachine& machine) {
  const cuda::OnDevice here(machine.index());
  const int device = machine.index();
  return {launches(device),
          round_trip(device),
          events(device),
          telling_host(device, true),
          telling_host(device, false),
          release_of_stream(device, Release::value),
          release_of_stream(device, Release::kernel),
          release_of_stream(device, Release::event),
          graphs(device, 32),
          graphs(device, 512)};
}

}  // namespace millrace::bench
