// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/caller_devices.h>

namespace millrace {
namespace {

enum class Doing { nothing, work, failed };

Doing doing(Device& device) {
  Doing found = Doing::nothing;
  for (std::size_t i = 0; i < device.stream_count(); ++i) {
    const Point position = device.stream(i).position();
    if (position.reached()) continue;
    if (position.error() == nullptr) return Doing::work;
    found = Doing::failed;
  }
  return found;
}

}  // namespace

CallerDevices::Lease::~Lease() {
  if (from_ != nullptr && device_ != from_->shared_) from_->give_back(std::move(device_));
}

CallerDevices::Lease CallerDevices::take() {
  {
    const std::lock_guard lock(mutex_);
    if (free_.empty() && !under_way_.empty()) {
      std::vector<std::shared_ptr<Device>> before;
      before.swap(under_way_);
      under_way_.reserve(made_);
      for (std::shared_ptr<Device>& device : before) {
        const Doing now = doing(*device);
        if (now != Doing::failed) (now == Doing::work ? under_way_ : free_).push_back(std::move(device));
      }
    }
    if (!free_.empty()) {
      std::shared_ptr<Device> device = std::move(free_.back());
      free_.pop_back();
      return {this, std::move(device)};
    }
    ++made_;
    free_.reserve(made_);  // giving back allocates nothing
    under_way_.reserve(made_);
  }
  std::shared_ptr<Device> own = shared_->with_own_streams();
  return {this, own != nullptr ? std::move(own) : shared_};
}

void CallerDevices::give_back(std::shared_ptr<Device> device) noexcept {
  const Doing now = doing(*device);
  if (now == Doing::failed) return;  // streams that failed run nothing any more
  const std::lock_guard lock(mutex_);
  (now == Doing::work ? under_way_ : free_).push_back(std::move(device));
}

CallerDevices::~CallerDevices() {
  for (const std::shared_ptr<Device>& device : under_way_) {
    for (std::size_t i = 0; i < device->stream_count(); ++i) {
      try {
        device->stream(i).position().wait();
      } catch (...) {  // those who have its points see it
      }
    }
  }
}

}  // namespace millrace
