// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <millrace/runtime/executor/row_group.h>
#include <millrace/runtime/loops/loop_backend.h>
#include <millrace/runtime/lowering/loop_groups.h>
#include <millrace/runtime/lowering/stacked_views.h>
#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/prepared_op.h>
#include <millrace/runtime/program/program.h>
#include <millrace/runtime/task/task.h>
#include <millrace/tensor/caller_devices.h>
#include <millrace/tensor/device.h>

namespace millrace {

class ExtentValuesPool;
class ScopePool;

/// Where a value is found from a block: `up` scopes above at `index`, or among the constants.
struct ValueSource {
  static constexpr int constant = -1;
  int up = 0;
  std::size_t index = 0;
  VarId var = no_var;  ///< `no_var`: an optional input that is absent
};

struct CompiledOp : PreparedOp {
  enum class Kind : std::uint8_t { kernel, task, while_loop, break_if, branch };
  using TaskOp = task<void> (*)(OpContext&);

  Kind kind = Kind::kernel;
  std::string name;  ///< of its task, for people: "while 1 (step)", "y", "tensor_array_write"
  TaskOp run_task = nullptr;
  bool (*run_now)(OpContext&) = nullptr;  ///< the same without a task, or null (array_ops.h)
  std::vector<ValueSource> inputs;
  std::vector<std::size_t> outputs;
  std::vector<ValueSource> stores_to;  ///< where the array that the op writes was made: one place, or several that it may be from
  std::vector<std::size_t> appends;    ///< places in the block's `appended`: arrays that the op, or a block of it, may append to
  std::vector<std::size_t> last_uses;  ///< vars of the block that nothing reads after this op
  bool makes_written = false;          ///< an output is an array that ops of the block, or below it, write
  int sub_block = -1;
  int else_block = -1;
  std::vector<std::shared_ptr<LoopBackend>> backends;  ///< of a loop, the fastest first; the interpreter stands behind them all
  /// The group of ops that runs as one kernel (join_ops.h), and its ops, which run one by one where the group does not fit.
  std::shared_ptr<const RowGroup> group;
  std::vector<CompiledOp> members;
};

struct CompiledBlock {
  const Block* block = nullptr;
  std::vector<CompiledOp> ops;
  std::vector<std::size_t> params;
  std::vector<ValueSource> results;
  std::vector<bool> last_of_var;  ///< by result: a var of this block that no later result is too
  std::size_t vars = 0;
  /// The first ops of a loop's body that are its *test*: a `break_if`, or several, which hand on the values that the iteration was given, and before
  /// which stands nothing but the ops they need, without stores, loops and branches. An iteration that ends here left nothing behind and is no
  /// iteration.
  std::size_t test = 0;
  /// Vars that are there when a run of the block begins.
  std::vector<std::size_t> inputs;
  /// For each array that ops of this block or below it write: where it was made, and the last op of this block that may write it. An
  /// array that leaves the block that made it (carried, or the result of a branch) is not among them.
  struct Written {
    ValueSource array;
    std::size_t last_op = 0;
  };
  std::vector<Written> written;
  /// Arrays that ops of this block or below it append to, by an id for all vars that may stand for the same array. Appending happens in
  /// the order of the program, iteration by iteration.
  std::vector<std::size_t> appended;
  /// Whether all ops are pure kernels, or branches whose blocks are plain: a run of the block that stops in the middle has changed nothing.
  bool plain = false;
};

/// The parts of an Executable (executable.h), which the tasks of a run read.
struct CompiledProgram {
  CompiledProgram(Program source, std::shared_ptr<Device> target) : program(std::move(source)), device(std::move(target)) {}

  Program program;
  std::shared_ptr<Device> device;
  std::shared_ptr<Device> host;  ///< small integers are computed on its first stream
  std::vector<CompiledBlock> blocks;
  std::vector<std::optional<CompiledBlock>> joined;  ///< by block: with ops joined into groups, where the interpreter runs it (join_ops.h)
  static constexpr std::size_t unset = ~std::size_t{0};
  std::vector<std::size_t> index;                  ///< by var: its position in the scope of its block; `unset`: runs do not set it
  std::vector<bool> on_host;                       ///< by var: a small integer that is computed on the host (prepared_op.h)
  std::vector<Value> constants;                    ///< weights and literals, on the device, or on the host for small integers
  std::vector<std::unique_ptr<const Value>> held;  ///< by var: a constant as the program holds it, on the host; null: it is none
  std::vector<LoopGroup> loop_groups;
  std::vector<std::set<VarId>> behind_groups;  ///< by group: vars that come of the stacked slots of its loops (stacked_views.h)
  StackedViews stacked_views;
  std::vector<bool> extent_ops;                     ///< by op of block 0 (extent_values.h); empty: none
  std::shared_ptr<ExtentValuesPool> extent_values;  ///< null where there are no such ops

  std::shared_ptr<ScopePool> root_scopes;  ///< of block 0

  const CompiledBlock& block(int idx) const { return blocks.at(static_cast<std::size_t>(idx)); }
  std::size_t index_of(VarId var) const { return index.at(static_cast<std::size_t>(var)); }
  const std::string& name_of(VarId var) const { return program.var(var).name; }
  /// Devices that give each run streams of its own: the program's, and the host where that is another one.
  std::unique_ptr<CallerDevices> for_runs;
  std::unique_ptr<CallerDevices> hosts_for_runs;

  /// The program with all its loops, where ops stand in the place of some, and that program compiled, for the runs that ask for iterations.
  std::optional<Program> given;
  mutable std::once_flag compiles_given;
  mutable std::shared_ptr<const CompiledProgram> with_loops;
};

}  // namespace millrace
