// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include <millrace/runtime/program/op_def.h>
#include <millrace/runtime/program/value.h>
#include <millrace/tensor/stream.h>

namespace millrace {

/// The view that an op's kernel has in one run of the op. Inputs are issued (their contents may still be under way on a stream: `launch` orders
/// behind them); the kernel launches on `stream()`, sets every output and returns.
class OpContext {
 public:
  OpContext(const Op& op, std::span<const Value* const> inputs, std::span<Value> outputs, StreamRef stream)
      : op_(op), inputs_(inputs), outputs_(outputs), stream_(stream) {}

  const Op& op() const noexcept { return op_; }
  StreamRef stream() const noexcept { return stream_; }

  std::size_t inputs() const noexcept { return inputs_.size(); }
  bool has(std::size_t input) const noexcept { return input < inputs_.size() && inputs_[input] != nullptr; }
  /// IndexError for an input that the op does not have, or that is optional and absent; so do the queries below.
  const Value& in(std::size_t input) const {
    if (!has(input)) refuse_input(input);
    return *inputs_[input];
  }
  /// The rows of a tensor input.
  const Tensor& tensor(std::size_t input) const { return in(input).tensor().tensor(); }
  /// The designs' `InputSeq`: the LoD of a tensor input, without levels when it has none.
  const LoD& lod(std::size_t input) const { return in(input).tensor().lod(); }
  /// The elements of an integer input on the host. NotReadyError when its stream has not produced it: the executor awaits the inputs that
  /// `OpDef::host_inputs` names before it runs the kernel.
  std::vector<std::int64_t> integers(std::size_t input) const;

  std::size_t outputs() const noexcept { return outputs_.size(); }
  /// IndexError for an output that the op does not have.
  void set(std::size_t output, Value value) {
    if (output >= outputs_.size()) refuse_output(output);
    outputs_[output] = std::move(value);
  }

 private:
  [[noreturn]] void refuse_input(std::size_t input) const;
  [[noreturn]] void refuse_output(std::size_t output) const;

  const Op& op_;
  std::span<const Value* const> inputs_;
  std::span<Value> outputs_;
  StreamRef stream_;
};

}  // namespace millrace
