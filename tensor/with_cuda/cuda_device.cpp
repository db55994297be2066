// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/cuda_device.h>

#include <millrace/tensor/caching_resource.h>
#include <millrace/tensor/recovery.h>
#include <millrace/tensor/with_cuda/cuda_stream.h>
#include <millrace/tensor/with_cuda/device_context.h>
#include <millrace/tensor/with_cuda/kernel_list.h>
#include <millrace/tensor/with_cuda/launch_probe.h>
#include <millrace/tensor/with_cuda/waiters.h>

namespace millrace {
namespace cuda {
namespace {

class PinnedMemory final : public MemoryResource {
 public:
  void* allocate(std::size_t bytes) override {
    void* pointer = nullptr;
    const cudaError_t code = cudaHostAlloc(&pointer, bytes == 0 ? 1 : bytes, cudaHostAllocPortable | cudaHostAllocMapped);
    if (code == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());
      throw OutOfMemoryError("pinned memory on cpu: " + std::to_string(bytes) + " bytes were refused");
    }
    check(code, "cudaHostAlloc", 0);
    return pointer;
  }
  void deallocate(void* pointer, std::size_t) noexcept override { static_cast<void>(cudaFreeHost(pointer)); }
  Place place() const override { return CpuPlace{}; }
  bool host_accessible() const noexcept override { return true; }
};

/// A line of the host's cache for each stream, which the device writes: where it is, and what went wrong.
class Words {
 public:
  static constexpr std::size_t stride = 8;

  explicit Words(int device) {
    constexpr std::size_t count = most_streams * stride;
    void* made = nullptr;
    check(cudaHostAlloc(&made, count * sizeof(std::uint64_t), cudaHostAllocPortable | cudaHostAllocMapped), "cudaHostAlloc", device);
    on_host_ = static_cast<std::uint64_t*>(made);
    std::fill_n(on_host_, count, std::uint64_t{0});
    const cudaError_t code = cudaHostGetDevicePointer(&made, on_host_, 0);
    if (code != cudaSuccess) static_cast<void>(cudaFreeHost(on_host_));
    check(code, "cudaHostGetDevicePointer", device);
    on_device_ = static_cast<std::uint64_t*>(made);
  }
  ~Words() { static_cast<void>(cudaFreeHost(on_host_)); }
  Words(const Words&) = delete;
  Words& operator=(const Words&) = delete;

  std::uint64_t* on_host(std::size_t stream) const noexcept { return on_host_ + stream * stride; }
  std::uint64_t* on_device(std::size_t stream) const noexcept { return on_device_ + stream * stride; }

 private:
  std::uint64_t* on_host_ = nullptr;
  std::uint64_t* on_device_ = nullptr;
};

class CudaDevice final : public Device, public Recoverable {
 public:
  explicit CudaDevice(const CudaOptions& options)
      : index_(options.index),
        here_(options.index),
        words_(options.index),
        pool_(std::make_shared<MemoryPool>(options.index, options.budget)),
        memory_(std::make_shared<DeviceMemory>(pool_, no_stream)),
        marks_(std::make_shared<MarkWords>(options.index)),
        waiters_(options.index) {
    context_.library_products = options.library_products;
    context_.tf32 = options.tf32;
    for (std::size_t i = 0; i < options.streams; ++i) {
      auto state = std::make_shared<StreamState>(index_, waiters_, words_.on_host(i), words_.on_device(i));
      state->queue().context = &context_;
      state->timeline()->attach(state);
      pool_->add(state);
      waiters_.watch(state);
      states_.push_back(state);
    }
    {
      const OnDevice here(index_);
      load_kernels(index_);
      probe_launches(context_, states_.front()->queue());
    }
    for (std::size_t i = 0; i < options.streams; ++i) streams_.push_back(std::make_unique<CudaStream>(states_[i], pool_, marks_, i));
  }
  ~CudaDevice() override {
    int before = index_;
    static_cast<void>(cudaGetDevice(&before));
    static_cast<void>(cudaSetDevice(index_));
    waiters_.stop();
    for (const auto& state : states_) state->close();
    context_.products.reset();  // of libraries that look which device is the thread's
    if (before != index_) static_cast<void>(cudaSetDevice(before));
  }

  Place place() const override { return CudaPlace{index_}; }
  const std::shared_ptr<MemoryResource>& memory() const noexcept override { return memory_; }
  std::size_t stream_count() const noexcept override { return streams_.size(); }
  StreamRef stream(std::size_t index) override { return *streams_[index % streams_.size()]; }
  std::exception_ptr lost() override {
    for (const auto& state : states_)
      if (const std::exception_ptr error = state->gone()) return error;
    return nullptr;
  }
  bool renew() override {
    for (const auto& stream : streams_)
      if (!stream->settle()) return false;
    for (const auto& stream : streams_) stream->renew();
    return true;
  }

 private:
  /// The constructor's thread goes on with the device it had.
  struct Here {
    explicit Here(int index) { const OnDevice checked(index); }
  };

  int index_;
  Here here_;
  Words words_;
  std::shared_ptr<MemoryPool> pool_;
  std::shared_ptr<MemoryResource> memory_;
  std::shared_ptr<MarkWords> marks_;
  DeviceContext context_;
  Waiters waiters_;
  std::vector<std::shared_ptr<StreamState>> states_;
  std::vector<std::unique_ptr<CudaStream>> streams_;
};

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  static_cast<void>(cudaGetLastError());
  return 0;
}

std::string version_text(int version) { return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10); }

}  // namespace
}  // namespace cuda

std::vector<CudaDeviceInfo> cuda_devices() {
  std::vector<CudaDeviceInfo> found;
  for (int index = 0; index < cuda::device_count(); ++index) {
    cudaDeviceProp properties{};
    cuda::check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties", index);
    const cuda::OnDevice here(index);
    std::size_t free = 0;
    std::size_t total = 0;
    cuda::check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo", index);
    found.push_back({index, properties.name, properties.major, properties.minor, properties.multiProcessorCount, total, free});
  }
  return found;
}

std::string cuda_status() {
  int runtime = 0;
  int driver = 0;
  static_cast<void>(cudaRuntimeGetVersion(&runtime));
  static_cast<void>(cudaDriverGetVersion(&driver));
  const std::string start = "runtime " + cuda::version_text(runtime);
  if (driver == 0) return start + ", no driver";
  const int count = cuda::device_count();
  return start + ", driver " + cuda::version_text(driver) + ", " + std::to_string(count) + (count == 1 ? " device" : " devices");
}

std::shared_ptr<Device> make_cuda_device(const CudaOptions& options) {
  if (options.streams < 1 || options.streams > cuda::most_streams)
    throw ArgumentError("cuda device: expected 1 to " + std::to_string(cuda::most_streams) + " streams, found " +
                        std::to_string(options.streams));
  const int count = cuda::device_count();
  if (options.index < 0 || options.index >= count)
    throw PlaceError("cuda device: expected one of " + std::to_string(count) + " devices (" + cuda_status() +
                     "), found cuda:" + std::to_string(options.index));
  return std::make_shared<cuda::CudaDevice>(options);
}

bool uses_tf32(Device& device) {
  const auto* memory = dynamic_cast<const cuda::DeviceMemory*>(device.stream(0).memory().get());
  return memory != nullptr && cuda::uses_tf32(memory->pool()->queue(0));
}

std::string completion_event_launches(Device& device) {
  constexpr const char* names[] = {"plain", "cluster", "cooperative", "cooperative clusters"};
  const auto* memory = dynamic_cast<const cuda::DeviceMemory*>(device.stream(0).memory().get());
  const cuda::DeviceContext* context = memory == nullptr ? nullptr : memory->pool()->queue(0).context;
  std::string made;
  for (std::size_t kind = 0; context != nullptr && kind < context->completion_events.size(); ++kind)
    if (context->completion_events[kind]) made += (made.empty() ? "" : ", ") + std::string(names[kind]);
  return made.empty() ? "none" : made;
}

std::shared_ptr<MemoryResource> pinned_memory() {
  if (cuda::device_count() == 0) throw PlaceError("pinned memory: expected a CUDA device, found none (" + cuda_status() + ")");
  return std::make_shared<CachingResource>(std::make_shared<cuda::PinnedMemory>());
}

}  // namespace millrace
