// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// Along `axis`, for floats: e_i = exp(x_i − m) with m the greatest, s = Σe_i (in the order of reduce.h), e_i / s. An
/// empty axis gives no elements.
Tensor softmax(const Tensor& x, int axis, StreamRef stream);
/// (x_i − m) − log s.
Tensor log_softmax(const Tensor& x, int axis, StreamRef stream);

}  // namespace millrace
