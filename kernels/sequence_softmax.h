// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// softmax.h along the rows of each sequence of x [T, …], floats: sequence i is the rows [offsets[i], offsets[i + 1]). The bits of a
/// sequence depend on it alone. LoDError when the offsets do not fit the rows.
Tensor sequence_softmax(const Tensor& x, const std::vector<std::int64_t>& offsets, StreamRef stream);

}  // namespace millrace
