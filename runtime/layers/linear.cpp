// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/layers/linear.h>

#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/layers/gates.h>
#include <millrace/runtime/layers/internal/cells.h>

namespace millrace::layers {

build::Var linear(const build::Var& x, const LinearWeights& weights, const std::string& name) {
  if (weights.weight.rank() != 2) throw ShapeError(name + ", weight: expected [C, M], found " + weights.weight.to_string());
  if (weights.bias) internal::expect_dims(name, "bias", *weights.bias, {weights.weight.dim(1)});
  const build::Var product = build::matmul(x, build::parameter(name + "_weight", weights.weight));
  return weights.bias ? product + build::parameter(name + "_bias", *weights.bias) : product;
}

LinearWeights linear_from_pytorch(const Tensor& weight, const std::optional<Tensor>& bias) { return {transposed(weight), bias}; }

}  // namespace millrace::layers
