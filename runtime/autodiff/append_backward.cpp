// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/autodiff/append_backward.h>

#include <string>
#include <utility>

#include <millrace/runtime/autodiff/internal/activity.h>
#include <millrace/runtime/autodiff/internal/block_backward.h>
#include <millrace/runtime/autodiff/internal/clone_block.h>
#include <millrace/runtime/autodiff/internal/gradient_sums.h>
#include <millrace/runtime/autodiff/internal/memory_policy.h>
#include <millrace/runtime/autodiff/internal/prepare_loops.h>
#include <millrace/runtime/builder/ops.h>

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
    set_policies(program_, options_);
    std::vector<VarId> sources = options_.with_respect_to;
    const bool all = sources.empty();
    if (all)
      for (const auto& [var, value] : program_.parameters())
        if (is_floating(value.dtype())) sources.push_back(var);
    prepare_loops(program_, active_vars(program_, sources, options_.stop_gradient));
    Transform transform{program_, active_vars(program_, sources, options_.stop_gradient), options_};
    build::Guard guard(program_);
    BlockBackward block(transform, 0, nullptr);
    const std::vector<Op> ops = program_.block(0).ops;
    block.add(loss_, seed());
    for (const Seed& more : options_.more_seeds) block.add(more.var, more.seed);
    block.walk(ops);
    std::vector<Gradient> found;
    for (const VarId source : sources)
      if (!all || block.has(source)) found.push_back({source, block.sum_with_lod(source)});
    return found;
  }
  Program take() {
    clear_policies(program_);
    for (std::size_t i = 0; i < program_.blocks().size(); ++i)
      std::erase_if(program_.block(static_cast<int>(i)).ops, [](const Op& op) { return op.type == "tensor_array_written"; });
    return without_unowned_blocks(program_);
  }

 private:
  void check() const {
    expect_tensor(program_, loss_, "the loss");
    for (const VarId var : options_.with_respect_to) expect_tensor(program_, var, "a var of 'with_respect_to'");
    for (const Seed& more : options_.more_seeds) {
      expect_tensor(program_, more.var, "a loss");
      check_seed(more.var, more.seed);
    }
    const VarType& type = program_.var(loss_).type;
    if (options_.seed == no_var) {
      if (type.is_static() && type.shape->elements() != 1)
        throw ProgramError("append_backward: expected a loss of one element, found " + text(program_, loss_) + ": give a seed");
      return;
    }
    check_seed(loss_, options_.seed);
  }
  void check_seed(VarId var, VarId seed) const {
    expect_tensor(program_, seed, "the seed");
    VarType wanted = program_.var(var).type;
    VarType given = program_.var(seed).type;
    wanted.lod_depth = given.lod_depth = 0;
    wanted.ordered = given.ordered = false;
    if (given.dtype != wanted.dtype || (given.shape && wanted.shape && given.rank() != wanted.rank()))
      throw ProgramError("append_backward: expected a seed like the loss " + text(program_, var) + ", found " + text(program_, seed));
  }

  VarId seed() {
    if (options_.seed != no_var) return options_.seed;
    const DType dtype = program_.var(loss_).type.dtype;
    const Attributes one{{"value", number(dtype, 1)}};
    const VarId plain = without_lod(program_, loss_);
    if (program_.var(plain).type.rank() == 0) return emit1(program_, "constant", {}, one, "seed");
    return emit1(program_, "constant_of_shape", {emit1(program_, "shape", {plain})}, one, "seed");
  }

  Program program_;
  const VarId loss_;
  const BackwardOptions& options_;
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
