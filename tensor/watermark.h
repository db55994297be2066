// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/tensor/point.h>

namespace millrace {

/// The steps that a kernel has closed while it goes on with others: (watermark, t) is reached when the results of the first t steps can be read.
/// The kernel raises a word in memory that the host and every device see. Another stream of a device waits for the word in the device's own
/// queue, once the kernel that raises it is known to run there, so that no waiter keeps it from starting; the host's waiter looks at
/// the word. Fails with what the stream of the kernel fails with. Thread-safe. Made by `StreamRef::watermark`.
class Watermark : public Timeline {
 public:
  /// As a kernel sees it. The word is raised from `base()` to `base() + t`; it never falls, since another kernel may raise it later.
  virtual std::uint64_t* word() const noexcept = 0;
  virtual std::uint64_t base() const noexcept = 0;
};

}  // namespace millrace
