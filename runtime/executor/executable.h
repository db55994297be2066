// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <millrace/runtime/loops/backend.h>
#include <millrace/runtime/lowering/loop_groups.h>
#include <millrace/runtime/lowering/stacked_views.h>
#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/op_def.h>
#include <millrace/runtime/program/prepared_op.h>
#include <millrace/runtime/program/program.h>
#include <millrace/runtime/task/task.h>
#include <millrace/tensor/device.h>

namespace millrace {

class DeviceForm;

/// A program made ready for one device: ops resolved, attributes read, weights placed and packed, streams chosen. Immutable and shared by
/// copy; any number of runs may use it at the same time.
class Executable {
 public:
  /// Where a value is found from a block: `up` scopes above at `index`, or among the constants.
  struct Source {
    static constexpr int constant = -1;
    int up = 0;
    std::size_t index = 0;
    VarId var = no_var;  ///< `no_var`: an optional input that is absent
  };
  enum class Kind : std::uint8_t { kernel, task, while_loop, break_if, branch };
  using TaskOp = task<void> (*)(OpContext&);

  struct CompiledOp : PreparedOp {
    Kind kind = Kind::kernel;
    TaskOp run_task = nullptr;
    std::vector<Source> inputs;
    std::vector<std::size_t> outputs;
    std::vector<Source> stores_to;       ///< where the array that the op writes was made: one place, or several that it may be from
    std::vector<std::size_t> appends;    ///< places in the block's `appended`: what the op, or a block of it, may append to
    std::vector<std::size_t> last_uses;  ///< vars of the block that nothing reads after this op
    int sub_block = -1;
    int else_block = -1;
    std::shared_ptr<FusedForm> fused;          ///< of a loop
    std::shared_ptr<CapturedGraphs> captured;  ///< of a loop on CUDA
    std::shared_ptr<DeviceForm> on_device;     ///< of a loop on CUDA: its fused kernel
  };
  struct CompiledBlock {
    const Block* block = nullptr;
    std::vector<CompiledOp> ops;
    std::vector<std::size_t> params;
    std::vector<Source> results;
    std::vector<bool> last_of_var;  ///< by result: a var of this block that no later result is too
    std::size_t vars = 0;
    /// The first ops of a loop's body that are its *test*: a `break_if`, or several, which hand on what the iteration was given, and before
    /// which stands nothing but what they need, without stores, loops and branches. An iteration that ends here left nothing behind and is no
    /// iteration.
    std::size_t test = 0;
    /// Vars that are there when a run of the block begins.
    std::vector<std::size_t> inputs;
    /// For each array that ops of this block or below it write: where it was made, and the last op of this block that may write it. An
    /// array that leaves the block that made it (carried, or the result of a branch) is not among them.
    struct Written {
      Source array;
      std::size_t last_op = 0;
    };
    std::vector<Written> written;
    /// Arrays that ops of this block or below it append to, by an id for all vars that may stand for the same array. Appending happens in
    /// the order of the program, iteration by iteration.
    std::vector<std::size_t> appended;
  };

  /// ProgramError when the program holds an op that no device can run. `device` null: a CPU device of its own with one thread.
  explicit Executable(Program program, std::shared_ptr<Device> device = nullptr);

  const Program& program() const noexcept { return state_->program; }
  Device& device() const noexcept { return *state_->device; }
  const std::shared_ptr<Device>& shared_device() const noexcept { return state_->device; }
  /// Where small integers are computed: a CPU stream, one for all.
  StreamRef host_stream() const { return state_->host->stream(0); }
  const CompiledBlock& block(int index) const { return state_->blocks.at(static_cast<std::size_t>(index)); }
  /// The position of a var in the scope of its block.
  std::size_t index_of(VarId var) const { return state_->index.at(static_cast<std::size_t>(var)); }
  /// True for small integers that steer loops: their values lie on the host, whatever the device.
  bool on_host(VarId var) const { return state_->on_host.at(static_cast<std::size_t>(var)); }
  /// Weights and literals, on the device (or on the host, for those that steer loops).
  const Value& constant(std::size_t index) const { return state_->constants[index]; }
  /// Loops of block 0 that may run side by side (loop_groups.h).
  const std::vector<LoopGroup>& loop_groups() const noexcept { return state_->loop_groups; }
  /// By group: vars that come of the stacked slots of its loops (stacked_views.h).
  const std::vector<std::set<VarId>>& behind_groups() const noexcept { return state_->behind_groups; }
  const StackedViews& stacked_views() const noexcept { return state_->stacked_views; }

 private:
  friend class Compiler;
  struct State {
    State(Program source, std::shared_ptr<Device> target) : program(std::move(source)), device(std::move(target)) {}
    Program program;
    std::shared_ptr<Device> device;
    std::shared_ptr<Device> host;
    std::vector<CompiledBlock> blocks;
    std::vector<std::size_t> index;
    std::vector<bool> on_host;
    std::vector<Value> constants;
    std::vector<LoopGroup> loop_groups;
    std::vector<std::set<VarId>> behind_groups;
    StackedViews stacked_views;
  };
  std::shared_ptr<const State> state_;
};

}  // namespace millrace
