// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/tensor/host_device.h>

namespace millrace::cuda {

/// What a kernel may find wrong in values.
enum class Fault : std::uint8_t { none, index, zero_divisor };

/// The op that found it.
enum class FaultOp : std::uint8_t {
  none,
  gather,
  gather_elements,
  gather_nd,
  gather_rows,
  scatter_rows,
  scatter_nd,
  scatter_elements,
  reverse_sequence,
  sequence_scatter,
  binary,
  crf_score,
  crf_log_likelihood,
  ctc_loss,
  gather_tree,
};

/// A fault in one word, which a kernel writes to the host at once: kind, op, and the value in 48 bits.
struct FaultWord {
  MILLRACE_HD static constexpr std::uint64_t made(Fault kind, FaultOp op, std::int64_t value) {
    return static_cast<std::uint64_t>(kind) << 56 | static_cast<std::uint64_t>(op) << 48 |
           (static_cast<std::uint64_t>(value) & 0xffffffffffffu);
  }
  static constexpr Fault kind(std::uint64_t word) { return static_cast<Fault>(word >> 56); }
  static constexpr FaultOp op(std::uint64_t word) { return static_cast<FaultOp>(word >> 48 & 0xff); }
  static constexpr std::int64_t value(std::uint64_t word) {
    const auto low = static_cast<std::int64_t>(word & 0xffffffffffffu);
    return low >= std::int64_t{1} << 47 ? low - (std::int64_t{1} << 48) : low;
  }
};

/// Where a kernel of one launch says that something is wrong. The last to say so is heard.
struct FaultSink {
  volatile std::uint64_t* word = nullptr;
  FaultOp op = FaultOp::none;

  MILLRACE_HD void raise(Fault kind, std::int64_t value) const { *word = FaultWord::made(kind, op, value); }
};

}  // namespace millrace::cuda
