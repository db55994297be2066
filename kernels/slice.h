// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// numpy's x[start:end:step] on each axis of `axes`, by ONNX's rules: negative places count from the end, places
/// outside are clamped, a negative step runs backwards. A view: no work, no copy. ShapeError when the lists differ in
/// length or name an axis twice, ArgumentError for a step of 0.
Tensor slice_view(const Tensor& x, const std::vector<std::int64_t>& starts, const std::vector<std::int64_t>& ends,
                  const std::vector<int>& axes, const std::vector<std::int64_t>& steps);

/// That view as a row-major copy.
Tensor slice(const Tensor& x, const std::vector<std::int64_t>& starts, const std::vector<std::int64_t>& ends, const std::vector<int>& axes,
             const std::vector<std::int64_t>& steps, StreamRef stream);

/// `x` with `axis` in reverse order, as a row-major copy.
Tensor reverse(const Tensor& x, int axis, StreamRef stream);

/// Each sequence on its own: row t of sequence n along `time_axis` becomes row lengths[n] − 1 − t; rows past lengths[n]
/// stay (ONNX ReverseSequence). `lengths` is i64 or i32 of [N], each in 0…T (IndexError, which fails the stream); the
/// two axes are 0 and 1 in any order.
Tensor reverse_sequence(const Tensor& x, const Tensor& lengths, int time_axis, int batch_axis, StreamRef stream);

}  // namespace millrace
