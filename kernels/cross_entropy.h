// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// The loss of each row of x [rows, K]: −log_softmax(x)[label], [rows, 1], and 0 where the label is `ignore`. Bits are those of `log_softmax`.
///
/// labels: i64, as many as there are rows, contiguous. x: floats of any strides. IndexError for another label that is no class: it fails the stream of a CPU;
/// on a device `gather_elements` says it.
Tensor cross_entropy(const Tensor& x, const Tensor& labels, std::int64_t ignore, StreamRef stream);

/// The gradient of x from `gradient`, that of the losses [rows, 1] or [1, 1] for all rows: gradient·(softmax(x) − one_hot(label)), each operation rounded, and 0
/// in ignored rows. On the host a label that is no class is an IndexError, as above; on a device such a row has gradient·softmax(x).
Tensor cross_entropy_gradient(const Tensor& gradient, const Tensor& x, const Tensor& labels, std::int64_t ignore, StreamRef stream);

}  // namespace millrace
