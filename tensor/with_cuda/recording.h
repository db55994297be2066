// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include <millrace/tensor/cuda/recording_device.h>
#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>
#include <millrace/tensor/with_cuda/queue.h>

namespace millrace::cuda {

/// The memory of what is recorded: blocks of a stream's memory, which the recording keeps, and hands out again to what is enqueued later in
/// it. Given back to the stream when nothing of it is left. Thread-safe.
class RecordingMemory final : public MemoryResource {
 public:
  explicit RecordingMemory(std::shared_ptr<MemoryResource> from) : from_(std::move(from)) {}
  ~RecordingMemory() override;
  void* allocate(std::size_t bytes) override;
  void deallocate(void* pointer, std::size_t bytes) noexcept override;
  Place place() const override { return from_->place(); }
  bool host_accessible() const noexcept override { return false; }

 private:
  std::shared_ptr<MemoryResource> from_;
  std::mutex mutex_;
  std::map<std::size_t, std::vector<void*>> free_;  // by size
  std::map<std::size_t, std::size_t> blocks_;
};

/// The resources of a recording: its memory, other storage that it reads, and numbers of the host that it needs each time.
class Recording {
 public:
  /// `home`: the stream that the graph will run on.
  explicit Recording(StreamRef home, const Queue& queue);
  const std::shared_ptr<MemoryResource>& memory() const noexcept { return memory_; }
  /// Storage of others, kept.
  void uses(const std::shared_ptr<Allocation>& storage);
  void wait(const Point& point) { home_.wait(point); }
  /// The host's bytes on the device, from now on.
  Tensor constant(const void* bytes, DType dtype, const DDim& dims);
  StreamRef home() const noexcept { return home_; }
  const Queue& home_queue() const noexcept { return home_queue_; }

 private:
  StreamRef home_;
  Queue home_queue_;
  std::shared_ptr<MemoryResource> memory_;
  std::map<const Allocation*, std::shared_ptr<Allocation>> used_;
  std::vector<Tensor> constants_;
};

/// While it lives, what the device's stream is given becomes part of `graph`. UnsupportedError when something else of CUDA's ends the
/// recording early.
class RecordingScope {
 public:
  RecordingScope(RecordingDevice& device, const std::shared_ptr<Recording>& recording, cudaGraph_t graph);
  ~RecordingScope();
  RecordingScope(const RecordingScope&) = delete;
  RecordingScope& operator=(const RecordingScope&) = delete;
  StreamRef stream() const;
  /// Throws what went wrong.
  void end();

 private:
  RecordingDevice& device_;
  bool ended_ = false;
};

/// A recording on the device's stream.
std::shared_ptr<Recording> make_recording(RecordingDevice& device);

}  // namespace millrace::cuda
