// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include <millrace/runtime/program/program.h>

namespace millrace {

/// The vars of a program that may stand for the same array: the input of a loop, its parameter, its next value and the result of the
/// loop; the results of both branches and the result of the `if`. Internal to the executor.
class ArrayClasses {
 public:
  ArrayClasses() = default;
  explicit ArrayClasses(const Program& program);

  /// The number of an array's class: one number for all vars of a class.
  std::size_t id(VarId array) const;
  /// The innermost block that holds all vars of a class.
  int home(std::size_t id) const { return home_[id]; }
  /// The vars by which arrays of the class are made or fed; none when one of them is made below `home`, so that it leaves its block.
  const std::vector<VarId>& makers(VarId array) const { return makers_[id(array)]; }

 private:
  void unite(const Program& program, VarId a, VarId b);
  void follow(const Program& program, const Op& op);
  static int common_block(const Program& program, int a, int b);

  std::vector<std::size_t> parent_;
  std::vector<int> home_;
  std::vector<std::vector<VarId>> makers_;
};

}  // namespace millrace
