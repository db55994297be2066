// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/tensor/host_device.h>

namespace millrace::cuda {

/// The faults that a kernel may find in values.
enum class Fault : std::uint8_t { none, index, zero_divisor };

/// The kernel that found it: a code whose names belong to the kernels, 0 for none. DeviceContext::fault_name gives them.
using FaultSource = std::uint8_t;

/// A fault in one word, which a kernel writes to the host at once: kind, source, and the value in 48 bits.
struct FaultWord {
  MILLRACE_HD static constexpr std::uint64_t made(Fault kind, FaultSource source, std::int64_t value) {
    return static_cast<std::uint64_t>(kind) << 56 | static_cast<std::uint64_t>(source) << 48 |
           (static_cast<std::uint64_t>(value) & 0xffffffffffffu);
  }
  static constexpr Fault kind(std::uint64_t word) { return static_cast<Fault>(word >> 56); }
  static constexpr FaultSource source(std::uint64_t word) { return static_cast<FaultSource>(word >> 48 & 0xff); }
  static constexpr std::int64_t value(std::uint64_t word) {
    const auto low = static_cast<std::int64_t>(word & 0xffffffffffffu);
    return low >= std::int64_t{1} << 47 ? low - (std::int64_t{1} << 48) : low;
  }
};

/// Where a kernel of one launch says that something is wrong. The last to say so is heard.
struct FaultSink {
  volatile std::uint64_t* word = nullptr;
  FaultSource source = 0;

  MILLRACE_HD void raise(Fault kind, std::int64_t value) const { *word = FaultWord::made(kind, source, value); }
};

}  // namespace millrace::cuda
