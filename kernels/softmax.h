// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// Along `axis`, for floats: e_i = exp(x_i − m) with m the greatest, s = Σe_i, e_i · (1 / s). The sum has the sixteen chains of
/// layer_norm.h. An infinity or NaN makes the whole row NaN, as does a row of −∞ alone. An empty axis gives no elements.
Tensor softmax(const Tensor& x, int axis, StreamRef stream);
/// (x_i − m) − log s.
Tensor log_softmax(const Tensor& x, int axis, StreamRef stream);

}  // namespace millrace
