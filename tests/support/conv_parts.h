// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include <millrace/runtime/builder/ops.h>

namespace millrace::testing {

/// A convolution of x [batch, C, H, W] along two axes, as the import of ONNX writes it: windows of H, each of whose rows is convolved along W.
struct ConvParts {
  std::int64_t batch, height, width;  ///< of x
  std::int64_t stride = 1, dilation = 1, before = 0, after = 0;
  std::int64_t width_stride = 1, width_before = 0, width_after = 0;

  /// `w`: [M, C, KH, KW].
  build::Var operator()(const build::Var& x, const Tensor& w, const Tensor& b) const {
    using namespace build;
    using Ints = std::vector<std::int64_t>;
    const std::int64_t channels = w.dim(1), taps = w.dim(2), last = (taps - 1) * dilation;
    const std::int64_t rows = (height + before + after - last - 1) / stride + 1;
    const std::int64_t columns = (width + width_before + width_after - w.dim(3)) / width_stride + 1;
    const Var turned = call1("transpose", {x}, {{"perm", Ints{0, 2, 1, 3}}});
    const Var wide =
        call1("pad", {turned}, {{"pads", Ints{0, before, 0, 0, 0, after, 0, 0}}, {"mode", std::string("constant")}, {"value", 0.0}});
    std::vector<Var> apart;
    for (std::int64_t tap = 0; tap < taps; ++tap) {
      const std::int64_t start = tap * dilation, end = start == last ? std::numeric_limits<std::int64_t>::max() : start - last;
      const Var slice = call1("slice", {wide}, {{"starts", Ints{start}}, {"ends", Ints{end}}, {"axes", Ints{1}}, {"steps", Ints{stride}}});
      apart.push_back(call1("unsqueeze", {slice}, {{"axes", Ints{3}}}));
    }
    const Var flat = call1("reshape", {concat(apart, 3)}, {{"shape", Ints{batch * rows, channels * taps, width}}});
    const Var weights = parameter("w", w.reshape({w.dim(0), channels * taps, w.dim(3)}));
    const Var made = conv1d(flat, weights, parameter("b", b), width_stride, 1, {width_before, width_after}, 1);
    const Var parted = call1("reshape", {made}, {{"shape", Ints{batch, rows, w.dim(0), columns}}});
    return call1("transpose", {parted}, {{"perm", Ints{0, 2, 1, 3}}});
  }
};

}  // namespace millrace::testing
