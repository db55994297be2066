// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <millrace/runtime/program/value.h>
#include <millrace/runtime/task/gate.h>

namespace millrace {

/// The values of one run of a block: of a whole program, or, as a *step scope*, of one iteration of a loop. A value is a one-shot future:
/// an op that needs one which is still under way waits for it. Used by the tasks of one run, one at a time (its executor is serial).
class VarScope : public std::enable_shared_from_this<VarScope> {
 public:
  /// The number of step scopes of one run that are alive, and the most that were.
  struct Count {
    std::int64_t live = 0;
    std::int64_t peak = 0;
  };

  VarScope(std::shared_ptr<VarScope> parent, std::size_t vars, int block, std::int64_t iteration, std::shared_ptr<Count> count);
  ~VarScope();
  VarScope(const VarScope&) = delete;
  VarScope& operator=(const VarScope&) = delete;

  /// The designs' NewScope: a scope for one run of a sub-block.
  std::shared_ptr<VarScope> new_child(std::size_t vars, int block, std::int64_t iteration) {
    return std::make_shared<VarScope>(shared_from_this(), vars, block, iteration, count_);
  }
  /// Makes a step scope, which has no other holder, the new scope of another iteration.
  void begin_iteration(std::int64_t iteration);
  /// A scope that is no step scope and that nobody else holds becomes that of another run of its block, in `parent`; `leave` lets go of all
  /// values and of the parent.
  void enter(std::shared_ptr<VarScope> parent) { parent_ = std::move(parent); }
  void leave() {
    begin_iteration(iteration_);
    parent_.reset();
  }
  /// The scope of a block 0 that `leave` has emptied becomes that of another run.
  void begin_run(std::shared_ptr<Count> count) { count_ = std::move(count); }
  const std::shared_ptr<VarScope>& parent() const noexcept { return parent_; }
  int block() const noexcept { return block_; }
  /// The iteration this scope belongs to; −1 for a scope that is no step scope.
  std::int64_t iteration() const noexcept { return iteration_; }
  /// The step scope that this scope is or lies in (a branch lies in an iteration, an inner loop in an iteration of the outer one); null: none.
  const VarScope* step() const noexcept {
    const VarScope* at = this;
    while (at != nullptr && at->iteration_ < 0) at = at->parent_.get();
    return at;
  }

  /// The value, or null while it is under way.
  const Value* find(std::size_t var);
  bool has(std::size_t var) { return find(var) != nullptr; }
  const Value& get(std::size_t var) { return *find(var); }
  void set(std::size_t var, Value&& value);
  void set(std::size_t var, const Value& value) { set(var, Value(value)); }
  /// Makes the value that of `other` in `scope`, an older scope that does not know it yet.
  void link(std::size_t var, std::shared_ptr<VarScope> scope, std::size_t other) { cells_[var].link = Link{std::move(scope), other}; }
  /// Where a value that is under way will be set: here, or where a link says.
  std::pair<std::shared_ptr<VarScope>, std::size_t> origin(std::size_t var);
  /// The value will never come: its waiters, present and later, get `error`.
  void fail(std::size_t var, const std::string& name, const std::exception_ptr& error) { gate(var, name).fail(error); }
  /// Hands out a value that is there, to its last reader.
  Value take(std::size_t var) { return std::exchange(cells_[var].value, Value()); }
  /// Lets go of a value that has no reader left.
  void drop(std::size_t var) { cells_[var].value = Value(); }
  /// The gate that a task awaits until the value is set, at its origin; open when it is there already.
  Gate& gate(std::size_t var, const std::string& name);

 private:
  struct Link {
    std::shared_ptr<VarScope> scope;
    std::size_t index = 0;
  };
  struct Cell {
    Value value;
    Link link;
    bool set = false;
    std::unique_ptr<Gate> gate;
  };
  std::shared_ptr<VarScope> parent_;
  std::vector<Cell> cells_;
  int block_;
  std::int64_t iteration_;
  std::shared_ptr<Count> count_;
};

/// Scopes of block 0 of one program, which runs take and leave. Thread-safe.
class ScopePool {
 public:
  explicit ScopePool(std::size_t vars) : vars_(vars) {}
  std::shared_ptr<VarScope> take(std::shared_ptr<VarScope::Count> count);
  /// Empties a scope that nobody else holds, and keeps it; another one stays with its holders.
  void give_back(std::shared_ptr<VarScope> scope) noexcept;

 private:
  std::size_t vars_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<VarScope>> free_;
};

}  // namespace millrace
