// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <millrace/runtime/task/seeded_executor.h>
#include <millrace/tensor/caching_resource.h>
#include <millrace/tensor/device.h>
#include <millrace/tensor/recovery.h>

namespace millrace::testing {

/// Memory of a simulated device: the host's, but fresh and freed blocks are filled with 0xFF (NaN in every floating dtype, −1 in the signed
/// integers), so that reading before the producer ran, or after the block was given back, changes the result. Thread-safe.
class SimMemory final : public MemoryResource {
 public:
  /// Holds at most `capacity` bytes; refuses the `fail_allocation`-th allocation (from 1; 0: none), and that one alone.
  explicit SimMemory(int index, std::size_t capacity = CachingResource::unlimited, std::size_t fail_allocation = 0)
      : place_(BackendPlace{"sim", index}), capacity_(capacity), fail_allocation_(fail_allocation) {}

  void* allocate(std::size_t bytes) override;
  void deallocate(void* pointer, std::size_t bytes) noexcept override;
  Place place() const override { return place_; }
  /// True: the host may look, but only at what its stream has produced (`Tensor::data` throws NotReadyError before).
  bool host_accessible() const noexcept override { return true; }
  /// Bytes that are allocated now, and the most that ever were.
  std::size_t live_bytes() const noexcept { return live_.load(); }
  std::size_t peak_bytes() const noexcept { return peak_.load(); }
  /// Calls of `allocate`, refused ones included.
  std::size_t allocations() const noexcept { return allocations_.load(); }

 private:
  Place place_;
  const std::size_t capacity_;
  const std::size_t fail_allocation_;
  std::atomic<std::size_t> allocations_{0};
  std::atomic<std::size_t> live_{0};
  std::atomic<std::size_t> peak_{0};
};

/// A device that completes its work in any order that the points allow. Its streams queue everything (`enter` is always false) and nothing
/// runs by itself: the driver of the device asks how many steps could be taken now and takes one of them. A step is the head of one
/// stream: a piece of work, a wait whose point is reached, or, on a `late` device, that work which has run is now complete. Work runs on the CPU, on a team of one thread, in the caller of `take`. Added
/// to a SeededExecutor as a source, it moves by the same seed as the tasks; alone, `drain` moves it.
///
/// Queues are guarded by one mutex, so enqueueing is thread-safe; only one thread at a time may drive.
class SimDevice final : public Device, public Recoverable, public ChoiceSource {
 public:
  struct Options {
    int index = 0;              ///< the N of `sim:N`
    std::size_t streams = 2;    ///< size of the ring, at least 1
    std::size_t drop_wait = 0;  ///< the n-th (from 1) wait of one stream for another is not enqueued: a suite must notice; 0 drops none
    std::size_t fail_work = 0;  ///< the n-th (from 1) piece of work that would run throws DeviceError instead, and fails its stream
    std::size_t lose_work = 0;  ///< the n-th (from 1) takes the device with it: nothing runs any more, and every stream fails
    std::size_t fail_allocation = 0;                    ///< see SimMemory
    std::size_t capacity = CachingResource::unlimited;  ///< bytes that the device has
    bool caching = false;                               ///< `memory()` keeps what is given back, within `capacity`
    bool late = false;  ///< work has run some time before its point is reached: that it completes is a step of its own
  };

  SimDevice() : SimDevice(Options()) {}
  explicit SimDevice(Options options);
  /// Work that was enqueued and not taken is thrown away; its points fail.
  ~SimDevice() override;

  Place place() const override { return memory_->place(); }
  const std::shared_ptr<MemoryResource>& memory() const noexcept override { return base_memory_; }
  std::size_t stream_count() const noexcept override;
  StreamRef stream(std::size_t index) override;
  std::exception_ptr lost() override;
  bool renew() override;

  /// Steps that could be taken now: the streams whose head is not a wait for an unreached point.
  std::size_t choices() override;
  /// Takes step `choice` of `choices()`, counted in stream order. IndexError when there are fewer.
  void take(std::size_t choice) override;
  /// Takes steps, chosen by `seed`, until none is ready; returns how many. Work that is left then waits for a point from elsewhere.
  std::size_t drain(std::uint64_t seed);
  /// True when no stream has anything queued.
  bool idle() const;

  /// Pieces of work that were run, the failed one included.
  std::size_t works() const;
  /// With `caching`: gives back what is kept.
  void release_cached() noexcept;
  /// Waits of one stream for another that were enqueued so far, the dropped one included.
  std::size_t waits() const;
  const SimMemory& sim_memory() const noexcept { return *memory_; }

 private:
  class SimStream;
  struct Ring;
  std::shared_ptr<SimMemory> memory_;
  std::shared_ptr<CachingResource> cache_;
  std::shared_ptr<MemoryResource> base_memory_;
  std::unique_ptr<Ring> ring_;
};

}  // namespace millrace::testing
