// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// One step of a formula: v becomes v ∘ a or a ∘ v, where a is the next operand. Each has the bits of `binary` and `unary` of its name.
///
///   add mul minimum maximum sub div    v ∘ a
///   from into before_minimum before_maximum      a − v, a / v, minimum(a, v), maximum(a, v)
///   prelu elu                          v for v ≥ 0, else a·v, a·expm1(v)
///   square relu sqrt neg abs reciprocal round hard_swish exp tanh sigmoid erf gelu gelu_tanh mish softplus     of v alone
enum class ArithmeticStep : std::uint8_t {
  add,
  sub,
  from,
  mul,
  div,
  into,
  minimum,
  before_minimum,
  maximum,
  before_maximum,
  prelu,
  elu,
  square,
  relu,
  sqrt,
  neg,
  abs,
  reciprocal,
  round,
  hard_swish,
  exp,
  tanh,
  sigmoid,
  erf,
  gelu,
  gelu_tanh,
  mish,
  softplus
};

/// Whether the step takes an operand.
constexpr bool has_operand(ArithmeticStep step) { return step < ArithmeticStep::square; }

/// Whether the step takes as long as many others.
constexpr bool is_heavy(ArithmeticStep step) { return step >= ArithmeticStep::exp || step == ArithmeticStep::elu; }

/// Operands that one formula takes, at most.
inline constexpr std::size_t most_operands = 9;

/// All steps in order for each element, with numpy's broadcasting of x and the operands: an element is read and written once. Each step rounds once, so that the
/// bits are those of one op after another. x and operands: f32 or f64 of one dtype (DTypeError names both), any strides, as many operands as the steps take
/// (ArgumentError). In host memory alone.
///
/// x may be u8, i8 or i32, and the result u8 or i8 (`to`), with operands and steps in f32: the bits of `cast` before the first step and behind the last.
Tensor arithmetic(const std::vector<ArithmeticStep>& steps, const Tensor& x, std::span<const Tensor* const> operands, StreamRef stream,
                  std::optional<DType> to = std::nullopt);

}  // namespace millrace
