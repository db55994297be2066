// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include <millrace/kernels/cast.h>
#include <millrace/kernels/conv.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/widen.h>

namespace millrace::internal {

/// Whether `conv` computes x of this dtype in f32.
constexpr bool is_narrow(DType dtype) { return wide_dtype(dtype) != dtype; }

/// A convolution of x in f16 or bf16: `wide(x, bias)` computes it in f32, with its relu, its result is rounded once to the dtype of x, and `steps` follow.
/// Relu has the same bits on either side of the rounding, as it makes +0 of −0. DTypeError for a bias that is neither of the dtype of x nor f32.
template <class F>
Tensor narrow_conv(const Tensor& x, const Tensor* bias, StreamRef stream, const ConvSteps& steps, F&& wide) {
  if (bias != nullptr && bias->dtype() != DType::f32) check_same_dtype("conv", x, *bias);
  const Tensor addend = bias == nullptr ? Tensor() : cast(*bias, DType::f32, stream);
  const Tensor sums = std::forward<F>(wide)(cast(x, DType::f32, stream), bias == nullptr ? nullptr : &addend);
  const Tensor made = cast(sums, x.dtype(), stream);
  return steps.steps.empty() ? made : take_steps(steps, made, stream);
}

}  // namespace millrace::internal
