// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/layers/layer_norm.h>

#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/layers/internal/cells.h>

namespace millrace::layers {

build::Var layer_norm(const build::Var& x, const LayerNormWeights& weights, double epsilon, const std::string& name) {
  if (weights.scale.rank() != 1) throw ShapeError(name + ", scale: expected [C], found " + weights.scale.to_string());
  if (weights.bias) internal::expect_dims(name, "bias", *weights.bias, {weights.scale.dim(0)});
  const build::Var scale = build::parameter(name + "_scale", weights.scale);
  return build::layer_norm(x, scale, internal::parameter(name + "_bias", weights.bias), -1, epsilon);
}

}  // namespace millrace::layers
