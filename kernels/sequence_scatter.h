// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// x [N, C] with something added to chosen elements of each row: row n gets updates[j] added at column ids[j], for j in [offsets[n],
/// offsets[n + 1]) ascending. `ids` is i64 or i32, `updates` has the dtype of x (floats, i64, i32), both of T elements ([T] or [T, 1]). A
/// column that is named twice gets both, one after the other, each sum rounded; f16 and bf16 rows are summed in f32 and narrowed once;
/// integers wrap. An id outside [0, C) is an IndexError that fails the stream. ShapeError, DTypeError, LoDError name both sides.
Tensor sequence_scatter(const Tensor& x, const Tensor& ids, const Tensor& updates, const std::vector<std::int64_t>& offsets,
                        StreamRef stream);

}  // namespace millrace
