// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// constant: a value; reflect: mirrored without repeating the border; edge: the border repeated; wrap: from the other
/// end.
enum class PadMode : std::uint8_t { constant, reflect, edge, wrap };

/// Puts before[i] elements in front of axis i and after[i] behind it; negative counts take elements away (first, then
/// the rest is padded). `value` is for PadMode::constant. ShapeError when the lists do not have one entry per axis, or
/// an axis would become negative; a reflect needs fewer elements than the axis has, edge and wrap a non-empty axis:
/// ArgumentError names axis and counts.
Tensor pad(const Tensor& x, const std::vector<std::int64_t>& before, const std::vector<std::int64_t>& after, PadMode mode, double value,
           StreamRef stream);

}  // namespace millrace
