// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <millrace/runtime/executor/executable.h>
#include <millrace/runtime/executor/var_scope.h>
#include <millrace/runtime/loops/backend.h>
#include <millrace/runtime/program/value.h>
#include <millrace/runtime/task/executor.h>
#include <millrace/runtime/task/task.h>

namespace millrace {

class Tracer;

/// Inputs by name: tensors, rows with LoD, lists, or arrays that another task fills while the program runs. An optional input that is not
/// fed, or fed an empty Value, holds nothing.
using Feeds = std::map<std::string, Value>;

struct RunOptions {
  Tracer* tracer = nullptr;
  /// The run is cancelled and fails with a DeadlineError when it takes longer.
  std::optional<Duration> deadline;
  Backend backend = Backend::automatic;
  /// With Backend::captured or Backend::fused: a loop that cannot run so is an UnsupportedError that says why, and does not run iteration by iteration.
  bool backend_required = false;
  /// Keeps the scope of every iteration in the result. Else a scope goes as soon as its iteration is over.
  bool keep_step_scopes = false;
};

/// The result of a run: the program's outputs, ready.
class RunResult {
 public:
  /// A tensor output. IndexError lists the names otherwise.
  const LoDTensor& operator[](const std::string& name) const { return value(name).tensor(); }
  const Value& value(const std::string& name) const;
  const std::vector<std::pair<std::string, Value>>& outputs() const noexcept { return outputs_; }

  /// The value of a var in iteration `iteration` of the loop whose body is block `block`; only kept with `keep_step_scopes`. Null: none such.
  const Value* step_value(int block, std::int64_t iteration, const std::string& var) const;
  /// The kept step scopes, in the order in which their iterations began.
  const std::vector<std::shared_ptr<VarScope>>& step_scopes() const noexcept { return step_scopes_; }
  /// The most step scopes that were alive at once, and the number of those that still are besides the kept ones.
  std::int64_t peak_step_scopes() const noexcept { return count_ == nullptr ? 0 : count_->peak; }
  std::int64_t live_step_scopes() const noexcept {
    return count_ == nullptr ? 0 : count_->live - static_cast<std::int64_t>(step_scopes_.size());
  }
  /// Iterations of all loops together. An iteration that ends at the body's test, the `break_if` it begins with, is none.
  std::int64_t iterations = 0;
  /// Runs of loops in the fused backend.
  std::int64_t fused_loops = 0;
  /// Runs of loops in the captured backend.
  std::int64_t captured_loops = 0;
  /// Why loops ran in the interpreter though another backend was asked for, or tried: a line for each loop and reason.
  std::set<std::string> iteration_by_iteration;
  /// Fused loops that ran concurrently with another loop, each on its own thread.
  std::int64_t loops_side_by_side = 0;

 private:
  friend class RunState;
  std::vector<std::pair<std::string, Value>> outputs_;
  std::vector<std::shared_ptr<VarScope>> step_scopes_;
  std::shared_ptr<VarScope::Count> count_;
  std::optional<Executable> executable_;
};

/// Evaluates a program, the one way there is: each op is a task or part of one, each iteration of a loop is a task, values flow as futures.
/// Part of the awaiting task's run: its cancellation, its executor (one at a time there), its deadlock detection. Errors of ops keep their
/// type and say which op, block and iteration. Feeds are checked against the program's inputs (ArgumentError, DTypeError, ShapeError, LoDError
/// name both sides; UninitializedError for a tensor that nothing ever wrote). An output that shares the elements of a feed which its owner may still write is
/// a copy.
task<RunResult> run(Executable executable, Feeds feeds, RunOptions options = {});
/// Compiles for a one-thread CPU device first; to run more than once, keep an Executable.
task<RunResult> run(Program program, Feeds feeds, RunOptions options = {});

}  // namespace millrace
