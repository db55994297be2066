// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// a where `condition` (bool) is true, else b; the three broadcast with each other. a and b have one dtype, any.
/// DTypeError, ShapeError name all.
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b, StreamRef stream);
void where(const Tensor& condition, const Tensor& a, const Tensor& b, Tensor& out, StreamRef stream);

}  // namespace millrace
