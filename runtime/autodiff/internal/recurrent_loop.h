// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <millrace/runtime/program/program.h>

namespace millrace::autodiff {

/// The forward loop as its backward sees it.
struct RecurrentLoop {
  struct State {
    VarId array = no_var;
    VarId boot = no_var;
  };
  int body = 0;
  int block = 0;
  std::int64_t level = 0;
  DType dtype = DType::f32;        ///< in which the loop's values can be kept
  bool dense = false;              ///< slots of [T, N, …] with as many rows each, not of ragged rows; no orders, no statics
  bool reverse = false;            ///< the forward loop goes from the ends of its sequences to their beginnings
  std::map<VarId, VarId> sources;  ///< array that the loop reads alone → its rows, packed, where they are at hand; dense: [T, N, …]
  std::map<VarId, VarId> orders;   ///< of those arrays
  std::vector<State> states;       ///< arrays that the loop reads one iteration back
  std::set<VarId> rows;            ///< vars of the body with rows
  std::map<VarId, VarId> written;  ///< array → value that an iteration writes
  std::map<VarId, int> lag;        ///< output of a read of such an array → iterations back
  std::map<VarId, VarId> statics;  ///< outer var that the loop shrinks → var of one row for each sequence, in the caller's order

  /// The state whose slots `array` holds; none: it holds no state's.
  std::optional<std::size_t> state_of(VarId array) const;
};

/// Reads the loop whose body is block `body`: a recurrence over ragged rows in an order (DynamicRNN), or over the slots of dense tensors (StaticRNN),
/// through all of them. UnsupportedError for any other loop.
RecurrentLoop read_recurrent_loop(Program& program, int body);

/// Whether `index`, a number around the loop, is that of the last slot of the arrays that a dense loop goes through.
bool is_last_slot(const Program& program, const RecurrentLoop& loop, VarId index);

/// UnsupportedError: the loop has the general form of a backward.
[[noreturn]] void refuse_recurrence(const std::string& why);

}  // namespace millrace::autodiff
