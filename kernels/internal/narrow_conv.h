// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include <millrace/kernels/cast.h>
#include <millrace/kernels/conv.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/widen.h>
#include <millrace/kernels/unary.h>

namespace millrace::internal {

/// Whether `conv` computes x of this dtype in f32.
constexpr bool is_narrow(DType dtype) { return wide_dtype(dtype) != dtype; }

/// A convolution of x in f16 or bf16: `wide(desc, x, bias)` computes it in f32, its result is rounded once to the dtype of x, and relu and `steps` follow.
/// DTypeError for a bias that is neither of the dtype of x nor f32.
template <class F>
Tensor narrow_conv(ConvDesc desc, const Tensor& x, const Tensor* bias, StreamRef stream, const ConvSteps& steps, F&& wide) {
  if (bias != nullptr && bias->dtype() != DType::f32) check_same_dtype("conv", x, *bias);
  const bool relu = std::exchange(desc.relu, false);
  const Tensor addend = bias == nullptr ? Tensor() : cast(*bias, DType::f32, stream);
  const Tensor sums = std::forward<F>(wide)(std::as_const(desc), cast(x, DType::f32, stream), bias == nullptr ? nullptr : &addend);
  Tensor made = cast(sums, x.dtype(), stream);
  if (relu) made = unary(Unary::relu, default_params(Unary::relu), made, stream);
  return steps.steps.empty() ? made : take_steps(steps, made, stream);
}

}  // namespace millrace::internal
