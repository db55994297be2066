// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>

#include <millrace/tensor/device.h>

namespace millrace {

/// An interface of a device, where a failure on it may leave it good. Thread-safe, but for `renew`.
class Recoverable {
 public:
  /// The error that took the device away for the rest of the process, or null while it is as good as it was. Asks the device: call
  /// it after a failure, not in every iteration.
  virtual std::exception_ptr lost() = 0;
  /// Streams whose work failed take work again, behind all that was enqueued, which is waited for where the device does not need that to be
  /// driven by others. Failed points stay failed, also tensors whose completion was not seen before. No other thread may use the streams meanwhile.
  /// False where that cannot be had: the device is lost, or work waits on the host.
  virtual bool renew() = 0;

 protected:
  Recoverable() = default;
  ~Recoverable() = default;
};

/// The same of any device: one that is not Recoverable is never known to be lost, and cannot be renewed.
inline std::exception_ptr lost(Device& device) {
  auto* const known = dynamic_cast<Recoverable*>(&device);
  return known == nullptr ? nullptr : known->lost();
}
inline bool renew(Device& device) {
  auto* const known = dynamic_cast<Recoverable*>(&device);
  return known != nullptr && known->renew();
}

}  // namespace millrace
