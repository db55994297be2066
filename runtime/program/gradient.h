// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <millrace/runtime/program/program.h>

namespace millrace {

/// The view that the gradient rule of an op has: values and gradients of one op, and the block where the rule appends ops.
///
/// Gradients have dtype and extents of the value they belong to. A rule may set a gradient without LoD: `append_backward` restores the LoD
/// of the value. A rule appends ops through `append` alone. A rule depends on types and attributes, never on elements.
class GradientContext {
 public:
  GradientContext() = default;
  GradientContext(const GradientContext&) = delete;
  GradientContext& operator=(const GradientContext&) = delete;
  virtual ~GradientContext() = default;

  virtual const Program& program() const = 0;
  /// The forward op. Its vars may belong to another block than the one where the rule appends: take them from `input` and `output`.
  virtual const Op& op() const = 0;
  bool has(std::size_t input) const { return input < op().inputs.size() && op().inputs[input] != no_var; }
  /// Types of the forward values.
  const VarType& input_type(std::size_t input) const { return program().var(op().inputs.at(input)).type; }
  const VarType& output_type(std::size_t output) const { return program().var(op().outputs.at(output)).type; }

  /// True when the gradient of this input is read later. A rule may set others too; they are dropped.
  virtual bool wants(std::size_t input) const = 0;
  /// The forward value of an input or output, with its LoD, as a var that is visible where the rule appends. A call makes the value needed: a
  /// loop keeps it, or computes it again.
  virtual VarId input(std::size_t input) = 0;
  virtual VarId output(std::size_t output) = 0;
  /// The gradient of the loss with respect to an output; `no_var` when it is zero.
  virtual VarId gradient(std::size_t output) const = 0;

  /// Appends an op (program.h, `Program::append`) and gives its outputs.
  virtual std::vector<VarId> append(Op op) = 0;
  /// Appends an op of one output, and gives that.
  VarId append1(const std::string& type, std::vector<VarId> inputs, Attributes attributes = {}) {
    return append(Op{type, std::move(inputs), {}, std::move(attributes), {}}).at(0);
  }

  /// Sets the gradient of an input, once. An input without one has gradient zero.
  virtual void set(std::size_t input, VarId gradient) = 0;
};

/// Appends the ops that make the gradients of an op's inputs. Called only when some output has a gradient and some input is wanted.
using GradientRule = std::function<void(GradientContext&)>;

}  // namespace millrace
