// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <millrace/kernels/lstm_cell.h>
#include <millrace/runtime/lowering/loop_form.h>

namespace millrace {

/// A while op whose iteration is one `lstm_cell` between ops that treat each row alone, with a mask that holds the states of rows or without: what a device can run as three pieces, the ops before the
/// cell for the rows of all iterations at once, all iterations of the cell as one kernel (kernels/lstm_sequence.h), and the ops behind it. The same bits
/// as the loop iteration by iteration.
class LstmLoop {
 public:
  /// UnsupportedError says what does not fit.
  LstmLoop(const Program& program, int block, const Op& loop);

  const LoopForm& form() const noexcept { return form_; }

  /// A part of the iteration as a program of its own; its inputs and outputs are vars of `step()`. No program where there is nothing to do.
  struct Piece {
    std::optional<Program> program;
    std::vector<VarId> inputs, outputs;
  };
  /// The iteration that the vars below are of.
  const Program& step() const noexcept { return step_; }
  const Piece& before() const noexcept { return before_; }
  const Piece& behind() const noexcept { return behind_; }
  /// The cell: its description less what the weights tell; X, W, R, bias and peepholes (`no_var`: none); the next h and
  /// c; whether c of every iteration is wanted; and which states of the form h and c are.
  const LstmDesc& cell() const noexcept { return cell_; }
  VarId x = no_var, w = no_var, r = no_var, bias = no_var, peepholes = no_var, h_next = no_var, c_next = no_var;
  /// The rows that step, bool [rows, 1]: the next states are `where(live, result of the cell, state)`. None: all rows step, and h_made and c_made are
  /// the next h and c. Other readers of the cell's results read rows that step, so they may be given the next states.
  VarId live = no_var, h_made = no_var, c_made = no_var;
  /// The states before the iteration; outputs of the form may be these.
  VarId h_before = no_var, c_before = no_var;
  bool keeps_c = false;
  std::size_t h = 0, c = 0;
  /// By output of the form.
  const std::vector<VarId>& outputs() const noexcept { return outputs_; }

  std::string to_string() const;

 private:
  struct Reader;
  LoopForm form_;
  Program step_;
  Piece before_, behind_;
  LstmDesc cell_;
  std::vector<VarId> outputs_;
};

}  // namespace millrace
