// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <map>

#include <millrace/runtime/program/program.h>

namespace millrace {

/// Replaces vars by others that hold the same.
class Renamer {
 public:
  explicit Renamer(Program& program) : program_(program) {}

  void rename(VarId from, VarId to) { names_[from] = to; }
  VarId at(VarId var) const {
    const auto found = names_.find(var);
    return found == names_.end() ? var : found->second;
  }
  void apply(Op& op) const {
    for (VarId& input : op.inputs) input = at(input);
  }
  /// Renames in all blocks.
  void apply() const {
    for (std::size_t i = 0; i < program_.blocks().size(); ++i) {
      Block& block = program_.block(static_cast<int>(i));
      for (Op& op : block.ops) apply(op);
      for (VarId& result : block.results) result = at(result);
    }
  }

 private:
  Program& program_;
  std::map<VarId, VarId> names_;
};

inline bool is_output(const Program& program, VarId var) {
  return std::any_of(program.outputs().begin(), program.outputs().end(), [var](const auto& port) { return port.var == var; });
}

}  // namespace millrace
