// SPDX-License-Identifier: Apache-2.0
#include <cuda.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

std::atomic<int> slowness{0};
thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;
constexpr int multiprocessors = 2;
constexpr int devices = 4;
/// The answer of every call once a kernel trapped.
std::atomic<cudaError_t> lost[devices] = {};

std::mutex streams_mutex;
std::map<EmulatedStream*, std::shared_ptr<EmulatedStream>> streams;

/// Memory that CUDA knows: what is copied from or to anything else is copied before the call returns.
std::mutex known_mutex;
std::set<std::pair<const std::byte*, const std::byte*>> known;

bool is_known(const void* pointer) {
  const auto* at = static_cast<const std::byte*>(pointer);
  const std::lock_guard lock(known_mutex);
  auto found = known.upper_bound({at, reinterpret_cast<const std::byte*>(~std::uintptr_t{0})});
  if (found == known.begin()) return false;
  --found;
  return at >= found->first && at < found->second;
}

void* taken(std::size_t bytes, int filling) {
  void* made = ::operator new(bytes, std::align_val_t{256}, std::nothrow);
  if (made == nullptr) return nullptr;
  std::memset(made, filling, bytes);
  const std::lock_guard lock(known_mutex);
  known.insert({static_cast<std::byte*>(made), static_cast<std::byte*>(made) + bytes});
  return made;
}

void given_back(void* pointer) {
  if (pointer == nullptr) return;
  {
    const std::lock_guard lock(known_mutex);
    const auto found = known.lower_bound({static_cast<std::byte*>(pointer), nullptr});
    std::memset(pointer, 0xFF, static_cast<std::size_t>(found->second - found->first));
    known.erase(found);
  }
  ::operator delete(pointer, std::align_val_t{256});
}

}  // namespace

struct EmulatedStream {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  bool busy = false;
  bool stop = false;
  const int device = current_device;
  std::thread thread{[this] { run(); }};

  ~EmulatedStream() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    changed.notify_all();
    thread.join();
  }
  void push(std::function<void()> one) {
    if (cudaGraph_t graph = emulated::captured_by(this)) return emulated::add_node(graph, std::move(one));
    {
      const std::lock_guard lock(mutex);
      work.push_back(std::move(one));
    }
    changed.notify_all();
  }
  void run() {
    current_device = device;
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return stop || !work.empty(); });
      if (work.empty()) return;
      const std::function<void()> one = std::move(work.front());
      work.pop_front();
      busy = true;
      lock.unlock();
      if (const int wait = slowness.load(); wait > 0) std::this_thread::sleep_for(std::chrono::microseconds(wait));
      one();
      lock.lock();
      busy = false;
      changed.notify_all();
    }
  }
  bool idle() {
    const std::lock_guard lock(mutex);
    return work.empty() && !busy;
  }
  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return work.empty() && !busy; });
  }
};

struct EmulatedEvent {
  explicit EmulatedEvent(unsigned f) : flags(f) {}
  const unsigned flags;
  std::shared_ptr<EmulatedEvent> own{this};  ///< until it is destroyed; streams that are to record it or wait for it keep it longer
  const int device = current_device;
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t recorded = 0;
  std::uint64_t reached = 0;

  void reach(std::uint64_t value) {
    // Under the lock, so that the waiter may destroy the event.
    const std::lock_guard lock(mutex);
    reached = std::max(reached, value);
    changed.notify_all();
  }
  void wait(std::uint64_t value) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return reached >= value; });
  }
  std::uint64_t latest() {
    const std::lock_guard lock(mutex);
    return recorded;
  }
};

namespace emulated {

bool is_of_cuda(const void* pointer) { return is_known(pointer); }

/// A launch is refused when the stream is not of the thread's device.
void enqueue(cudaStream_t stream, std::function<void()> work) {
  if (stream->device != current_device) {
    last_error = cudaErrorInvalidResourceHandle;
    return;
  }
  stream->push([stream, work = std::move(work)] {
    if (lost[stream->device] == cudaSuccess) work();
  });
}
void enqueue(cudaStream_t stream, cudaEvent_t begun, std::function<void(const std::function<void()>&)> work) {
  if (stream->device != current_device || begun->device != current_device || (begun->flags & cudaEventDisableTiming) == 0) {
    last_error = cudaErrorInvalidResourceHandle;
    return;
  }
  std::uint64_t value = 0;
  {
    const std::lock_guard lock(begun->mutex);
    value = ++begun->recorded;
  }
  stream->push([stream, event = begun->own, value, work = std::move(work)] {
    if (lost[stream->device] == cudaSuccess) work([&] { event->reach(value); });
    event->reach(value);
  });
}
cudaError_t status_of(cudaStream_t stream) { return lost[stream->device]; }
void trap() { lost[current_device].store(cudaErrorLaunchFailure); }
void slow_down(int microseconds) { slowness.store(microseconds); }

}  // namespace emulated

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= devices) return cudaErrorInvalidDevice;
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = devices;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "emulated");
  properties->multiProcessorCount = multiprocessors;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = multiprocessors;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = *total = std::size_t{1} << 30;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  if (const cudaError_t code = lost[current_device]; code != cudaSuccess) return code;
  return std::exchange(last_error, cudaSuccess);
}
const char* cudaGetErrorName(cudaError_t code) { return code == cudaErrorLaunchFailure ? "cudaErrorLaunchFailure" : "cudaErrorEmulated"; }
const char* cudaGetErrorString(cudaError_t) { return "emulated"; }

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  if (const cudaError_t code = lost[current_device]; code != cudaSuccess) return code;
  if (bytes > std::size_t{1} << 30) return last_error = cudaErrorMemoryAllocation;
  *pointer = taken(bytes, 0xFF);
  return *pointer == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  std::vector<std::shared_ptr<EmulatedStream>> all;
  {
    const std::lock_guard lock(streams_mutex);
    for (const auto& [key, stream] : streams)
      if (stream->device == current_device) all.push_back(stream);
  }
  for (const auto& one : all) one->wait();
  return cudaSuccess;
}
cudaError_t cudaFree(void* pointer) {
  cudaDeviceSynchronize();
  given_back(pointer);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** pointer, std::size_t bytes, unsigned) {
  *pointer = taken(bytes, 0xFF);
  return *pointer == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaFreeHost(void* pointer) {
  given_back(pointer);  // CUDA does not say that it waits for other streams
  return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  if (!is_known(host)) return last_error = cudaErrorInvalidValue;
  *device = host;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  auto made = std::make_shared<EmulatedStream>();
  *stream = made.get();
  const std::lock_guard lock(streams_mutex);
  streams[*stream] = std::move(made);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  std::shared_ptr<EmulatedStream> last;
  {
    const std::lock_guard lock(streams_mutex);
    last = std::move(streams[stream]);
    streams.erase(stream);
  }
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (emulated::captured_by(stream) != nullptr) return last_error = cudaErrorStreamCaptureUnsupported;
  stream->wait();
  return lost[stream->device];
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (emulated::captured_by(stream) != nullptr) return last_error = cudaErrorStreamCaptureUnsupported;
  if (const cudaError_t code = lost[stream->device]; code != cudaSuccess) return code;
  if (stream->idle()) return cudaSuccess;
  return last_error = cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (emulated::captured_by(stream) != nullptr) return last_error = cudaErrorStreamCaptureIsolation;  // of an event from outside
  const std::uint64_t value = event->latest();
  stream->push([event = event->own, value] { event->wait(value); });
  return lost[stream->device];
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new EmulatedEvent(flags);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const std::shared_ptr<EmulatedEvent> last = std::move(event->own);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (event->device != stream->device) return last_error = cudaErrorInvalidResourceHandle;
  std::uint64_t value = 0;
  {
    const std::lock_guard lock(event->mutex);
    value = ++event->recorded;
  }
  stream->push([event = event->own, value] { event->reach(value); });
  return lost[stream->device];
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (const cudaError_t code = lost[event->device]; code != cudaSuccess) return code;
  const std::lock_guard lock(event->mutex);
  return event->reached >= event->recorded ? cudaSuccess : last_error = cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  event->wait(event->latest());
  return lost[event->device];
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  if (emulated::captured_by(stream) != nullptr && !(is_known(from) && is_known(to))) return cudaErrorStreamCaptureUnsupported;
  const auto copied = [stream](std::function<void()> work) {  // whichever device is the thread's
    stream->push([stream, work = std::move(work)] {
      if (lost[stream->device] == cudaSuccess) work();
    });
  };
  if (is_known(from)) {
    copied([=] { std::memcpy(to, from, bytes); });  // to memory that is not pinned, too: CUDA only says that it may wait
  } else {
    // From memory that is not pinned: staged before the call returns.
    copied([to, staged = std::string(static_cast<const char*>(from), bytes)] { std::memcpy(to, staged.data(), staged.size()); });
  }
  return lost[stream->device];
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** entry, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *entry = std::strcmp(symbol, "cuStreamWriteValue64") == 0  ? emulated::write_entry()
           : std::strcmp(symbol, "cuStreamWaitValue64") == 0 ? emulated::wait_entry()
                                                             : nullptr;
  *result = *entry != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
