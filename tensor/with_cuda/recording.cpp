// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/with_cuda/recording.h>

#include <optional>
#include <utility>

#include <millrace/tensor/caching_resource.h>
#include <millrace/tensor/error.h>
#include <millrace/tensor/with_cuda/memory_pool.h>

namespace millrace::cuda {

// ---- Memory ----

RecordingMemory::~RecordingMemory() {
  for (const auto& [size, blocks] : free_)
    for (void* block : blocks) from_->deallocate(block, size);
}

void* RecordingMemory::allocate(std::size_t bytes) {
  const std::size_t size = CachingResource::class_size(bytes);
  const std::lock_guard lock(mutex_);
  std::vector<void*>& free = free_[size];
  if (!free.empty()) {
    void* const block = free.back();
    free.pop_back();
    return block;
  }
  free.reserve(++blocks_[size]);  // so that giving one back never allocates
  return from_->allocate(size);
}

void RecordingMemory::deallocate(void* pointer, std::size_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  free_.find(CachingResource::class_size(bytes))->second.push_back(pointer);
}

// ---- What a recording keeps ----

Recording::Recording(StreamRef home, const Queue& queue)
    : home_(home), home_queue_(queue), memory_(std::make_shared<RecordingMemory>(home.memory())) {}

void Recording::uses(const std::shared_ptr<Allocation>& storage) {
  home_.uses(storage);
  used_.emplace(storage.get(), storage);
}

Tensor Recording::constant(const void* bytes, DType dtype, const DDim& dims) {
  // The memory is the stream's, not the recording's: no earlier kernel of the graph has worked there.
  Tensor made(dtype, dims, home_.memory());
  if (made.bytes() > 0)
    check(cudaMemcpyAsync(made.raw_mutable(), bytes, made.bytes(), cudaMemcpyHostToDevice, home_queue_.stream), "cudaMemcpyAsync",
          home_queue_.device);
  made.storage()->mark_written();
  constants_.push_back(made);
  return made;
}

namespace {

// ---- The device ----

/// Takes what is recorded. Everything runs in the caller.
class RecordingStream final : public Stream {
 public:
  RecordingStream(const Queue& home, cudaStream_t stream) : queue_(home) {
    queue_.stream = stream;
    queue_.state = nullptr;
    queue_.launched = nullptr;  // the graph's launch says what it is
  }
  void begin(const std::shared_ptr<Recording>& recording) {
    recording_ = recording;
    queue_.recording = recording.get();
    queue_.memory = &recording->memory();
    context_.emplace(place(), team_, recording->memory(), &queue_);
  }
  void end() {
    queue_.recording = nullptr;
    context_.reset();
    recording_.reset();
  }
  bool records() const noexcept { return recording_ != nullptr; }
  const Queue& queue() const noexcept { return queue_; }

  Place place() const override { return CudaPlace{queue_.device}; }
  const std::shared_ptr<MemoryResource>& memory() const noexcept override { return recording_->memory(); }
  bool enter() noexcept override { return true; }
  KernelContext& context() noexcept override { return *context_; }
  void leave(std::exception_ptr) noexcept override {}  // the caller hears of it, and gives the recording up
  void push(std::unique_ptr<Work>) override {}         // never: `enter` says so
  void wait(const Point& point) override { recording_->wait(point); }
  Point position() override { return {}; }
  void uses(const std::shared_ptr<Allocation>& storage) override { recording_->uses(storage); }

 private:
  Queue queue_;
  ThreadTeam team_{1};
  std::optional<KernelContext> context_;  // while it records
  std::shared_ptr<Recording> recording_;
};

class CudaRecordingDevice final : public RecordingDevice {
 public:
  CudaRecordingDevice(std::shared_ptr<Device> device, StreamRef home, const Queue& queue)
      : device_(std::move(device)), home_(home), home_queue_(queue) {
    const OnDevice here(queue.device);
    check(cudaStreamCreateWithFlags(&native_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags", queue.device);
    recorder_ = std::make_unique<RecordingStream>(queue, native_);
  }
  ~CudaRecordingDevice() override { static_cast<void>(cudaStreamDestroy(native_)); }

  Place place() const override { return device_->place(); }
  const std::shared_ptr<MemoryResource>& memory() const noexcept override {
    return recorder_->records() ? recorder_->memory() : device_->memory();
  }
  std::size_t stream_count() const noexcept override { return 1; }
  StreamRef stream(std::size_t) override { return recorder_->records() ? StreamRef(*recorder_) : home_; }

  RecordingStream& recorder() noexcept { return *recorder_; }
  StreamRef home() const noexcept { return home_; }
  const Queue& home_queue() const noexcept { return home_queue_; }

 private:
  std::shared_ptr<Device> device_;
  StreamRef home_;
  Queue home_queue_;
  cudaStream_t native_ = nullptr;
  std::unique_ptr<RecordingStream> recorder_;
};

CudaRecordingDevice& own(RecordingDevice& device) { return static_cast<CudaRecordingDevice&>(device); }

}  // namespace

RecordingScope::RecordingScope(RecordingDevice& device, const std::shared_ptr<Recording>& recording, cudaGraph_t graph) : device_(device) {
  RecordingStream& recorder = own(device).recorder();
  // Other threads go on to allocate, and so may we.
  check(cudaStreamBeginCaptureToGraph(recorder.queue().stream, graph, nullptr, nullptr, 0, cudaStreamCaptureModeRelaxed),
        "cudaStreamBeginCaptureToGraph", recorder.queue().device);
  recorder.begin(recording);
}

StreamRef RecordingScope::stream() const { return device_.stream(0); }

void RecordingScope::end() {
  RecordingStream& recorder = own(device_).recorder();
  ended_ = true;
  recorder.end();
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(recorder.queue().stream, &graph), "cudaStreamEndCapture", recorder.queue().device);
}

RecordingScope::~RecordingScope() {
  if (ended_) return;
  RecordingStream& recorder = own(device_).recorder();
  recorder.end();
  cudaGraph_t graph = nullptr;
  static_cast<void>(cudaStreamEndCapture(recorder.queue().stream, &graph));
  static_cast<void>(cudaGetLastError());
}

std::shared_ptr<Recording> make_recording(RecordingDevice& device) {
  return std::make_shared<Recording>(own(device).home(), own(device).home_queue());
}

std::shared_ptr<RecordingDevice> make_recording_device(std::shared_ptr<Device> device, std::size_t stream) {
  const StreamRef home = device->stream(stream);
  const auto* memory = dynamic_cast<const DeviceMemory*>(home.memory().get());
  if (memory == nullptr) throw UnsupportedError("graphs of CUDA: expected a CUDA device, found " + device->place().to_string());
  const Queue queue = memory->pool()->queue(memory->home());
  return std::make_shared<CudaRecordingDevice>(std::move(device), home, queue);
}

}  // namespace millrace::cuda
