// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// The look-ahead convolution of Deep Speech 2 (Wang et al., 2016), Fluid's row_conv, on x [T, C] and w [K, C], floats of one dtype:
///   y[t, c] = Σ_j w[j, c]·x[t + j, c] over j = 0 … K − 1 while row t + j lies in the sequence of row t
/// from +0, ascending j, each product rounded, then added. Sequence i is the rows [offsets[i], offsets[i + 1]). f16 and bf16 are computed
/// in f32 and narrowed once. ShapeError, DTypeError name both; LoDError when the offsets do not fit the rows.
Tensor row_conv(const Tensor& x, const Tensor& w, const std::vector<std::int64_t>& offsets, StreamRef stream);

}  // namespace millrace
