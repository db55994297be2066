// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <millrace/runtime/program/program.h>

namespace millrace::lowering {

struct ArrayModel;

/// A var of the whole program, as far as it is known while its one step is being built.
struct Symbol {
  enum class Kind : std::uint8_t {
    none,
    constant,  ///< `value`, known now
    session,   ///< known when a sequence starts: var of the start program
    step,      ///< known at each step, or when an inner sequence opens or closes: var of the program of `phase`
    length,    ///< the number of items of a sequence of `level`, plus `offset`: known only at its end
    counter,   ///< the number of the item, plus `offset`
    extents,   ///< a list of integers: `value`, which has 1 where the list has the number of items of a sequence of `level`, plus `offset`
    running,   ///< a condition that only says whether the sequence of `level` goes on
    array,
    order,  ///< of the sequences of `level`
    final   ///< a result of a loop over time: known only at the end
  };
  Kind kind = Kind::none;
  Tensor value{};
  Tensor lengths{};  ///< of extents: 1 where the list has the number of items, else 0
  VarId var = no_var;
  std::int64_t offset = 0;
  /// When it is known. Of a program whose live inputs have `depth` levels: 0 when the session starts, k < depth when a sequence of level k
  /// opens, depth at a row, 2·depth − k when a sequence of level k closes.
  int phase = 0;
  int clock = 0;  ///< how many levels lie above one of its rows: depth for the rows that arrive, 1 for a row to each sequence of level 1
  int level = 0;  ///< of length, counter, running and order
  int rows = -1;  ///< the axis along which the sequence's rows lie (extent 1 in the step); −1: none
  /// The number of rows that the sequence has before that of the first step, all zeros or all `before`; negative: the number of first steps that have no
  /// row, and whose results do not matter.
  std::int64_t left_pad = 0;
  std::shared_ptr<const Symbol> before{};  ///< one of these rows, constant or session; null: zeros
  std::int64_t right_pad = 0;              ///< rows behind that of the last step, which no step knows
  bool first = false;                      ///< the sequence has the row of the first step alone
  std::string deviates{};                  ///< what made the sequence have other rows than steps, for messages
  std::shared_ptr<ArrayModel> array{};
  std::string origin{};  ///< for messages

  bool is(Kind wanted) const noexcept { return kind == wanted; }
  bool has_row_each_step() const noexcept { return left_pad == 0 && right_pad == 0 && !first; }
};

/// A TensorArray of the whole program, seen from one step.
struct ArrayModel {
  std::string name;
  /// Rows of the live input: slot t is the row of step t.
  bool of_rows = false;
  Symbol source;
  int axis = 0;
  bool unpacked = false;
  int level = 0;  ///< whose items are the slots

  /// Slots written at known indices, and the size where it is known.
  std::map<std::int64_t, Symbol> slots;
  std::optional<std::int64_t> size;

  /// Written once an iteration by a loop over the items of `level`, at step + `write_at`.
  bool over_time = false;
  std::int64_t write_at = 0;
  Symbol latest;                  ///< the value that this iteration writes; none before it has
  std::vector<std::size_t> lags;  ///< states that hold what was written 1, 2, … iterations ago

  /// Of kind `final` once an op that only the end of the sequence decides may have written slots; else none.
  Symbol decided_late;
};

}  // namespace millrace::lowering
