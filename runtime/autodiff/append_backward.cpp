// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/autodiff/append_backward.h>

#include <algorithm>
#include <optional>
#include <utility>

#include <millrace/runtime/autodiff/internal/activity.h>
#include <millrace/runtime/autodiff/internal/array_gradients.h>
#include <millrace/runtime/autodiff/internal/gradient_sums.h>
#include <millrace/runtime/autodiff/internal/prepare_loops.h>
#include <millrace/runtime/autodiff/internal/recurrence_backward.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/program/op_registry.h>

namespace millrace {
namespace autodiff {
namespace {

std::string text(const Program& program, VarId var) { return "'" + program.var(var).name + "' of " + program.var(var).type.to_string(); }

void expect_tensor(const Program& program, VarId var, const std::string& what) {
  if (var < 0 || std::cmp_greater_equal(var, program.vars().size()))
    throw ProgramError("append_backward: expected a var of this program as " + what + ", found id " + std::to_string(var));
  const VarDef& def = program.var(var);
  if (def.block != 0 || !def.type.is_tensor() || !is_floating(def.type.dtype))
    throw ProgramError("append_backward: expected a floating tensor of block 0 as " + what + ", found " + text(program, var) +
                       " of block " + std::to_string(def.block));
}

/// The backward of block 0.
class Driver {
 public:
  Driver(Program program, VarId loss, const BackwardOptions& options) : program_(std::move(program)), loss_(loss), options_(options) {}

  std::vector<Gradient> run() {
    check();
    std::vector<VarId> sources = options_.with_respect_to;
    const bool all = sources.empty();
    if (all)
      for (const auto& [var, value] : program_.parameters())
        if (is_floating(value.dtype())) sources.push_back(var);
    prepare_loops(program_, active_vars(program_, sources, options_.stop_gradient));
    active_ = active_vars(program_, sources, options_.stop_gradient);
    build::Guard guard(program_);
    sums_.emplace(program_, active_, [](VarId var) { return var; });
    sums_->add(loss_, seed());
    walk();
    std::vector<Gradient> found;
    for (const VarId source : sources)
      if (!all || sums_->has(source)) found.push_back({source, sums_->sum_with_lod(source)});
    return found;
  }
  Program take() { return std::move(program_); }

 private:
  void check() const {
    expect_tensor(program_, loss_, "the loss");
    for (const VarId var : options_.with_respect_to) expect_tensor(program_, var, "a var of 'with_respect_to'");
    const VarType& type = program_.var(loss_).type;
    if (options_.seed == no_var) {
      if (type.is_static() && type.shape->elements() != 1)
        throw ProgramError("append_backward: expected a loss of one element, found " + text(program_, loss_) + ": give a seed");
      return;
    }
    expect_tensor(program_, options_.seed, "the seed");
    VarType wanted = type;
    VarType given = program_.var(options_.seed).type;
    wanted.lod_depth = given.lod_depth = 0;
    wanted.ordered = given.ordered = false;
    if (given.dtype != wanted.dtype || (given.shape && wanted.shape && given.rank() != wanted.rank()))
      throw ProgramError("append_backward: expected a seed like the loss " + text(program_, loss_) + ", found " +
                         text(program_, options_.seed));
  }

  VarId seed() {
    if (options_.seed != no_var) return options_.seed;
    const DType dtype = program_.var(loss_).type.dtype;
    const Attributes one{{"value", number(dtype, 1)}};
    const VarId plain = without_lod(program_, loss_);
    if (program_.var(plain).type.rank() == 0) return emit1(program_, "constant", {}, one, "seed");
    return emit1(program_, "constant_of_shape", {emit1(program_, "shape", {plain})}, one, "seed");
  }

  /// The ops of block 0 from the last one to the first. What is appended stands behind them; a loop's backward may also put ops in front of
  /// the loop, which have no gradient.
  void walk() {
    for (std::size_t at = program_.block(0).ops.size(); at-- > 0;) {
      const Op op = program_.block(0).ops[at];
      if (op.type == "while")
        at = visit_while(op);
      else if (!visit_array(op))
        sums_->visit(op);
    }
  }

  // ---- Arrays ----

  bool has_arrays(VarId array) const { return arrays_.contains(array); }
  void add(VarId array, ArrayGradient gradient) {
    if (sums_->active(array)) arrays_[array].push_back(gradient);
  }
  VarId with_lod(VarId output) { return sums_->sum_with_lod(output); }

  /// True: the op works on arrays and is done.
  bool visit_array(const Op& op) {
    if (op.type == "pack" || op.type == "restore_lod_tensor_from_timesteps") {
      if (const VarId given = with_lod(op.outputs[0]); given != no_var) add(op.inputs[0], {ArrayGradient::Kind::packed, given});
      return true;
    }
    if (op.type == "last_rows") {
      if (const VarId given = with_lod(op.outputs[0]); given != no_var) add(op.inputs[0], {ArrayGradient::Kind::last, given, op.inputs[2]});
      return true;
    }
    if (op.type == "unpack" || op.type == "split_lod_tensor_to_timesteps") {
      for (const ArrayGradient& each : arrays_[op.outputs[0]]) {
        if (each.kind != ArrayGradient::Kind::packed) refuse_array(op);
        sums_->add(op.inputs[0], each.var);
      }
      return true;
    }
    if (op.type == "reorder" || op.type == "same_steps") return visit_same(op);
    return op.type == "tensor_array" || op.type == "tensor_array_size" || op.type == "constant_rows";
  }

  /// `same_steps` gives its first input.
  bool visit_same(const Op& op) {
    if (op.type != "same_steps") return false;
    sums_->add(op.inputs[0], sums_->sum(op.outputs[0]));
    return true;
  }

  [[noreturn]] void refuse_array(const Op& op) const {
    throw UnsupportedError("append_backward: op " + op.type + ": gradients of slots of '" + program_.var(op.outputs[0]).name +
                           "' are not in its order");
  }

  // ---- Loops ----

  /// Gives where the walk goes on.
  std::size_t visit_while(const Op& op) {
    const int body = op.attributes.get<BlockId>("sub_block").index;
    if (wanted(op, body)) {
      Program made = program_;
      const LoopGradients found = recurrence_backward(made, active_, body, arrays_);
      program_ = std::move(made);
      for (const auto& [var, gradient] : found.tensors) sums_->add(var, gradient);
      for (const auto& [array, gradient] : found.arrays) add(array, gradient);
    }
    const std::vector<Op>& ops = program_.block(0).ops;
    const auto place = std::find_if(ops.begin(), ops.end(), [body](const Op& each) {
      return each.type == "while" && each.attributes.get<BlockId>("sub_block").index == body;
    });
    return static_cast<std::size_t>(place - ops.begin());
  }

  /// Whether a gradient gets to anything that the loop makes.
  bool wanted(const Op& op, int body) const {
    for (const VarId output : op.outputs)
      if (sums_->has(output) || has_arrays(output)) return true;
    for (const Op& inner : program_.block(body).ops) {
      const auto& stores = program_.registry().at(inner.type).stores;
      if (stores && has_arrays(inner.inputs[stores->first])) return true;
      bool found = false;
      for_each_sub_block(inner, [&](int block) { found = found || wanted(inner, block); });
      if (found) return true;
    }
    return false;
  }

  Program program_;
  const VarId loss_;
  const BackwardOptions& options_;
  std::set<VarId> active_;
  std::optional<GradientSums> sums_;
  ArrayGradients arrays_;
};

}  // namespace
}  // namespace autodiff

std::vector<Gradient> append_backward(Program& program, VarId loss, const BackwardOptions& options) {
  autodiff::Driver driver(program, loss, options);
  std::vector<Gradient> gradients = driver.run();
  program = driver.take();
  return gradients;
}

}  // namespace millrace
