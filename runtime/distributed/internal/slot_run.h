// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <millrace/runtime/array/slot_value.h>
#include <millrace/tensor/stream.h>

namespace millrace::detail {

/// Several slots as two messages: what describes them, and their elements one behind the other, each slot at a multiple of 64 bytes.
struct SlotRun {
  Tensor words;  ///< i64: for each slot dtype, rank, extents, levels, and for each level its number of offsets and these
  Tensor bytes;  ///< u8
};

SlotRun pack_run(const std::vector<SlotValue>& values, StreamRef stream);
/// Views of `run.bytes`. CommunicationError when the words do not describe `count` slots of so many bytes.
std::vector<LoDTensor> unpack_run(const SlotRun& run, std::int64_t count);

}  // namespace millrace::detail
