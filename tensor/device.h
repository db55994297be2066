// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include <millrace/tensor/stream.h>

namespace millrace {

/// One place that can hold memory and run work: its resource and its small ring of streams. A backend from outside derives from this and is
/// handed to what computes, such as an Executable; `CpuDevice` is the host.
class Device {
 public:
  virtual ~Device() = default;
  virtual Place place() const = 0;
  virtual const std::shared_ptr<MemoryResource>& memory() const noexcept = 0;
  /// At least 1. Results never depend on it.
  virtual std::size_t stream_count() const noexcept = 0;
  /// Stream `index` modulo `stream_count()`.
  virtual StreamRef stream(std::size_t index) = 0;
  /// The same place, memory and threads with streams of its own, for one caller: they take its work whatever others do, and nobody else sees what fails on them. Null
  /// where streams are few and everybody's, as those of an accelerator. It may outlive this device.
  virtual std::shared_ptr<Device> with_own_streams() const { return nullptr; }
};

/// The host: CPU streams that share one thread team and one memory resource.
class CpuDevice final : public Device {
 public:
  /// `threads` ≥ 1 for the team, `streams` ≥ 1 for the ring.
  explicit CpuDevice(int threads = 1, std::size_t streams = 1, std::shared_ptr<MemoryResource> memory = host_memory());
  ~CpuDevice() override;

  Place place() const override { return CpuPlace{}; }
  const std::shared_ptr<MemoryResource>& memory() const noexcept override { return memory_; }
  std::size_t stream_count() const noexcept override;
  StreamRef stream(std::size_t index) override;
  std::shared_ptr<Device> with_own_streams() const override;

 private:
  struct Ring;
  CpuDevice(std::unique_ptr<Ring> ring, std::shared_ptr<MemoryResource> memory);
  std::shared_ptr<MemoryResource> memory_;
  std::unique_ptr<Ring> ring_;
};

/// The host as a runtime wants it: memory of tensors is kept and handed out again, so that a loop's iterations do not fault pages in anew.
std::shared_ptr<Device> make_cpu_device(int threads = 1, std::size_t streams = 1);

}  // namespace millrace
