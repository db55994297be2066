// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/layers/conv1d.h>

#include <cstddef>
#include <cstring>
#include <limits>

#include <millrace/runtime/builder/dynamic_rnn.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/builder/sequence_ops.h>
#include <millrace/runtime/layers/internal/cells.h>

namespace millrace::layers {
namespace {

using Ints = std::vector<std::int64_t>;

/// One way along the sequences: taps [begin, end) of `weights`, in the order from the farthest row to the nearest, of which the last lies
/// `nearest` · dilation rows back (0: the row itself).
struct Way {
  std::vector<std::int64_t> taps;
  std::int64_t nearest = 0;
  bool reverse = false;
};

/// The taps, one below the other: [taps · C, M].
Tensor stacked(const Tensor& weight, const std::vector<std::int64_t>& taps) {
  const std::int64_t features = weight.dim(1);
  const std::int64_t units = weight.dim(2);
  const Tensor dense = weight.copy_to(CpuPlace{});
  Tensor made(weight.dtype(), DDim{static_cast<std::int64_t>(taps.size()) * features, units});
  made.storage()->mark_written();
  auto* to = static_cast<std::byte*>(made.raw_mutable());
  for (const std::int64_t tap : taps) {
    const Tensor one = dense.select(0, tap);
    std::memcpy(to, one.raw(), one.bytes());
    to += one.bytes();
  }
  return made;
}

/// The sum of the taps of one way. The state is the rows that went by, side by side, the oldest first.
Var along(const Sequences& sequences, const Way& way, const Conv1dWeights& weights, const Conv1dOptions& options, const Var& bias) {
  const std::int64_t features = weights.weight.dim(1);
  const auto taps = static_cast<std::int64_t>(way.taps.size());
  const std::int64_t reach = (taps - 1 + way.nearest) * options.dilation;  // of the farthest row
  const Var matrix = build::parameter(options.name + (way.reverse ? "_ahead" : "_behind"), stacked(weights.weight, way.taps));
  const Cell cell = [&](const Var& x, const std::vector<Var>& state) {
    const Var all = state.empty() ? x : build::concat({state[0], x}, 1);
    std::vector<Var> picked;
    for (std::int64_t tap = 0; tap < taps; ++tap)
      picked.push_back(build::slice(all, 1, tap * options.dilation * features, (tap * options.dilation + 1) * features));
    const Var product = build::matmul(picked.size() == 1 ? picked[0] : build::concat(picked, 1), matrix);
    CellStep next{bias.defined() ? product + bias : product, {}};
    if (!state.empty()) next.states.push_back(build::slice(all, 1, features, (reach + 1) * features));
    return next;
  };
  std::vector<CellState> states;
  if (reach > 0) states.push_back({reach * features});
  return unroll(cell, sequences, states, way.reverse).output;
}

/// Rows 0, stride, 2·stride, … of each sequence.
Var every(const Var& y, std::int64_t stride) {
  const int depth = y.type().lod_depth;
  if (depth == 0) {
    const auto all = std::numeric_limits<std::int64_t>::max();
    return build::call1("slice", {y}, {{"starts", Ints{0}}, {"ends", Ints{all}}, {"axes", Ints{0}}, {"steps", Ints{stride}}});
  }
  build::DynamicRNN rnn({.level = depth - 1});
  {
    const auto block = rnn.block();
    rnn.step_input(y);
    const Var count = rnn.memory(DType::i64, {1});
    rnn.update_memory(count, build::where(build::equal(count, Var(stride - 1)), Var(0), count + Var(1)));
    rnn.output(build::equal(count, Var(0)));
  }
  return build::split_by_mask(y, build::drop_lod(rnn.outputs()[0]), depth).set;
}

/// With a row for each of x.
Var at_each_row(const Sequences& sequences, const Conv1dWeights& weights, const Conv1dOptions& options) {
  const std::int64_t taps = weights.weight.dim(0);
  const std::int64_t left = options.causal ? taps - 1 : (taps - 1) / 2;
  Way behind;
  for (std::int64_t tap = 0; tap <= left; ++tap) behind.taps.push_back(tap);
  Var y = along(sequences, behind, weights, options, internal::parameter(options.name + "_bias", weights.bias));
  if (left == taps - 1) return y;
  Way ahead{{}, 1, true};
  for (std::int64_t tap = taps - 1; tap > left; --tap) ahead.taps.push_back(tap);
  return y + along(sequences, ahead, weights, options, Var());
}

}  // namespace

Var conv1d(const Sequences& sequences, const Conv1dWeights& weights, const Conv1dOptions& options) {
  if (weights.weight.rank() != 3 || weights.weight.dim(0) < 1)
    throw ShapeError(options.name + ", weight: expected [K, C, M], found " + weights.weight.to_string());
  if (weights.bias) internal::expect_dims(options.name, "bias", *weights.bias, {weights.weight.dim(2)});
  if (options.dilation < 1)
    throw ProgramError(options.name + ": expected a dilation of 1 or more, found " + std::to_string(options.dilation));
  if (options.stride < 1) throw ProgramError(options.name + ": expected a stride of 1 or more, found " + std::to_string(options.stride));
  const Var y = at_each_row(sequences, weights, options);
  return options.stride == 1 ? y : every(y, options.stride);
}

Conv1dWeights conv1d_from_pytorch(const Tensor& weight, const std::optional<Tensor>& bias) {
  if (weight.rank() != 3) throw ShapeError("conv1d_from_pytorch: expected a weight [M, C, K], found " + weight.to_string());
  return {weight.permute({2, 1, 0}).copy_to(CpuPlace{}), bias};
}

}  // namespace millrace::layers
