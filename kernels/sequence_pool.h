// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// The result of the n rows of a sequence, element by element:
///
///   sum      Σ of the rows, from +0, ascending, restarted every 512, block sums added ascending (reduce.h)
///   average  that sum / n
///   sqrt     that sum / √n
///   max      the greatest; NaN wins
///   first, last
enum class SequencePool : std::uint8_t { average, sum, sqrt, max, first, last };

/// "average".
std::string_view name_of(SequencePool kind);

/// One row for each sequence of x [T, …]: sequence i is the rows [offsets[i], offsets[i + 1]). A sequence without rows gives `empty`,
/// converted as `cast` does. f16 and bf16 are computed in f32 and narrowed once; i64 and i32 wrap, and their average truncates toward zero;
/// sqrt takes floats alone; max takes bool, i8 and u8 too, first and last any dtype (DTypeError). LoDError when the offsets do not fit the
/// rows. A row of the result depends on its own sequence alone.
Tensor sequence_pool(SequencePool kind, const Tensor& x, const std::vector<std::int64_t>& offsets, double empty, StreamRef stream);

}  // namespace millrace
