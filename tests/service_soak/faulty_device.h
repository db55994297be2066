// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include <millrace/tensor/device.h>
#include <millrace/tensor/error.h>
#include <millrace/tensor/recovery.h>
#include <millrace/tensor/work_failure.h>

namespace millrace::simulated {

/// The host's memory, which runs out once when it is told to.
class FaultyMemory final : public MemoryResource {
 public:
  /// The `allocation`-th allocation from now on fails, and that one alone.
  void fail(std::size_t allocation) noexcept { until_failure_ = allocation; }
  std::size_t live() const noexcept { return live_; }

  void* allocate(std::size_t bytes) override {
    if (until_failure_ > 0) {
      --until_failure_;
      if (until_failure_ == 0) throw OutOfMemoryError("injected: expected memory, found none");
    }
    void* const pointer = host_memory()->allocate(bytes);
    ++live_;
    return pointer;
  }
  void deallocate(void* pointer, std::size_t bytes) noexcept override {
    --live_;
    host_memory()->deallocate(pointer, bytes);
  }
  Place place() const override { return CpuPlace{}; }
  bool host_accessible() const noexcept override { return true; }

 private:
  std::size_t until_failure_ = 0, live_ = 0;
};

/// The host as a device that can be lost.
class FaultyDevice final : public Device, public Recoverable {
 public:
  FaultyDevice() : cpu_(1, 1, memory_) {}

  /// The next failure is for good.
  void lose() noexcept { lost_ = true; }
  FaultyMemory& faults() noexcept { return *memory_; }

  Place place() const override { return cpu_.place(); }
  const std::shared_ptr<MemoryResource>& memory() const noexcept override { return cpu_.memory(); }
  std::size_t stream_count() const noexcept override { return cpu_.stream_count(); }
  StreamRef stream(std::size_t index) override { return cpu_.stream(index); }
  std::exception_ptr lost() override { return lost_ ? std::make_exception_ptr(DeviceError("injected: the device is gone")) : nullptr; }
  bool renew() override { return !lost_; }

 private:
  std::shared_ptr<FaultyMemory> memory_ = std::make_shared<FaultyMemory>();
  CpuDevice cpu_;
  bool lost_ = false;
};

}  // namespace millrace::simulated
