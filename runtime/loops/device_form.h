// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include <millrace/runtime/program/program.h>
#include <millrace/tensor/device.h>

namespace millrace {

class DeviceLstm;

/// The kernel that one while op is on a device, made when it is first wanted. Thread-safe. Other cells' kernels will stand beside it.
class DeviceForm {
 public:
  explicit DeviceForm(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  /// Null when the loop does not fit; `reason` says why.
  std::shared_ptr<const DeviceLstm> get(const Program& program, int block, const Op& loop);
  const std::string& reason() const noexcept { return reason_; }

 private:
  std::shared_ptr<Device> device_;
  std::once_flag once_;
  std::shared_ptr<const DeviceLstm> loop_;
  std::string reason_;
};

}  // namespace millrace
