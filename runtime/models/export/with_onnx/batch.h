// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <set>
#include <string>

#include <millrace/runtime/program/program.h>

namespace millrace::exporting {

/// The values of a program that have rows of several sequences, and the axis of those rows: values with LoD, values that are read from an array with
/// an order, and values with one row for each sequence. UnsupportedError names an op that makes one sequence's numbers depend on another's.
class RowsOfSequences {
 public:
  explicit RowsOfSequences(const Program& program);
  /// −1: the same for all sequences.
  int axis(VarId var) const;

 private:
  void mark(VarId var, int axis);
  void ask_back();
  void follow(int block);
  void follow(const Op& op, int block);
  void hand_over(const Op& op, int inner);
  void count_steps(const Op& op);
  [[noreturn]] void refuse(const Op& op, const std::string& reason) const;

  const Program& program_;
  std::map<VarId, int> axes_;
  std::set<VarId> steps_;  ///< numbers of steps
  bool changed_ = true;
};

}  // namespace millrace::exporting
