// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <millrace/tensor/device.h>

namespace millrace {

/// One device for callers that work side by side: each gets it with streams of its own (Device::with_own_streams), so that no work queues behind another caller's, and a
/// failure stays with its caller. Where there are none, all get the device itself. A device that is given back is used again once its work is done. Thread-safe.
class CallerDevices {
 public:
  explicit CallerDevices(std::shared_ptr<Device> shared) : shared_(std::move(shared)) {}
  /// Waits for work that callers left under way.
  ~CallerDevices();
  CallerDevices(const CallerDevices&) = delete;
  CallerDevices& operator=(const CallerDevices&) = delete;

  /// A caller's device, until this is destroyed; the callers' devices outlive it.
  class Lease {
   public:
    Lease(Lease&& other) noexcept : from_(std::exchange(other.from_, nullptr)), device_(std::move(other.device_)) {}
    Lease& operator=(Lease&&) = delete;
    ~Lease();
    Device& operator*() const noexcept { return *device_; }
    Device* operator->() const noexcept { return device_.get(); }

   private:
    friend class CallerDevices;
    Lease(CallerDevices* from, std::shared_ptr<Device> device) : from_(from), device_(std::move(device)) {}
    CallerDevices* from_;
    std::shared_ptr<Device> device_;
  };
  Lease take();

 private:
  void give_back(std::shared_ptr<Device> device) noexcept;

  std::shared_ptr<Device> shared_;
  std::mutex mutex_;
  std::size_t made_ = 0;
  std::vector<std::shared_ptr<Device>> free_;       // idle
  std::vector<std::shared_ptr<Device>> under_way_;  // given back with work that waits for a point
};

}  // namespace millrace
