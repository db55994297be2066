// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace millrace {

/// The floating-point environment of kernels, for the calling thread: round to nearest and, on x86 and AArch64, every exception masked, and a
/// subnormal operand or result of arithmetic is a zero of its sign. An operation that only chooses among elements (extremes, `where`, sorting) may give a
/// subnormal one as it is, or as zero. A processor takes a hundred times as long for a product of subnormals, and the states of a
/// recurrence that fades away stay among them for ever. Other processors keep subnormals.
///
/// The switch takes tens of nanoseconds, a look at the environment two. Code that runs many small kernels one after the other holds the environment around
/// them all; work of a stream that finds it set leaves it alone.
class KernelFloats {
 public:
  /// Whether this processor takes subnormals as zeros.
#if defined(__x86_64__) || defined(__aarch64__)
  static constexpr bool flushes = true;
#else
  static constexpr bool flushes = false;
#endif

  /// Remembers the environment of the thread and sets that of kernels.
  KernelFloats() noexcept;
  /// Gives the thread, the one that made the guard, its own environment back. A coroutine does so before it is suspended.
  ~KernelFloats();
  KernelFloats(const KernelFloats&) = delete;
  KernelFloats& operator=(const KernelFloats&) = delete;

 private:
  std::uint64_t found_;
  bool changed_;
};

}  // namespace millrace
