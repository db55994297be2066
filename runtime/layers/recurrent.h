// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <millrace/runtime/builder/var.h>

/// Layers: functions that append to the program that is being built. Each recurrent one is a DynamicRNN (rows with LoD) or a StaticRNN
/// (dense), so it runs, streams and lowers as a loop that the user wrote.
namespace millrace::layers {

using build::Var;

/// A function of one element: the op's name ("sigmoid", "hard_sigmoid", docs/ops.md), and its numbers where they are not ONNX's. ProgramError for a number
/// that the op does not have.
struct Activation {
  std::string name;
  std::optional<double> alpha = std::nullopt;
  std::optional<double> beta = std::nullopt;
};
Var apply(const Activation& activation, const Var& x);

enum class Direction { forward, reverse, bidirectional };
inline std::size_t directions(Direction direction) { return direction == Direction::bidirectional ? 2 : 1; }

/// The sequences that a recurrent layer goes over: rows with LoD, [rows, C], whose innermost level are the sequences; or dense, [T, N, C].
struct Sequences {
  Sequences(Var rows, Var lens = {}) : x(std::move(rows)), lengths(std::move(lens)) {}
  Var x;
  /// Dense only, undefined: all sequences have T steps. i64 or i32 [N], each 0 … T (IndexError). Past its end a sequence gives zeros and
  /// keeps its state; reversed, it starts at its own end.
  Var lengths;
};

/// The results of one step: a row for each sequence, and the next states.
struct CellStep {
  Var output;
  std::vector<Var> states;
};
using Cell = std::function<CellStep(const Var& x, const std::vector<Var>& states)>;

/// A carried value of `width` units for each sequence: `initial` [N, width] in the caller's order, or undefined: zeros.
struct CellState {
  std::int64_t width = 0;
  Var initial = {};
};

/// `output`: as `Sequences::x`, each row what the cell gave. `last`: each state behind the last step of its sequence, [N, width], in the
/// caller's order; the initial one where there was no step.
struct Unrolled {
  Var output;
  std::vector<Var> last;
};

/// A cell of one's own over sequences. `cell` is called once, and describes one step; rows must not look at one another, then the result
/// streams.
///
///     auto minimal = [&](const Var& x, const std::vector<Var>& s) {          // h' = z·h + (1 − z)·tanh(x·W)
///       Var z = sigmoid(matmul(x, Wz) + matmul(s[0], U));
///       Var h = z * s[0] + (1.0 - z) * tanh(matmul(x, W));
///       return CellStep{h, {h}};
///     };
///     Unrolled y = unroll(minimal, {x}, {{hidden}});
///
/// ProgramError when the input is neither of the two forms, or the cell gives another number of states.
Unrolled unroll(const Cell& cell, const Sequences& sequences, const std::vector<CellState>& states, bool reverse = false);

/// A cell of several inputs: a row of each.
using RowsCell = std::function<CellStep(const std::vector<Var>& rows, const std::vector<Var>& states)>;
/// `unroll` over several inputs of one form and the same lengths, at least one; a run refuses other lengths. An input that lies in a memory of its own is
/// read there.
Unrolled unroll_together(const RowsCell& cell, const std::vector<Var>& inputs, const std::vector<CellState>& states);

/// Layers one over the other. `run(k, sequences, reverse)` unrolls direction k = layer · directions + direction; the outputs of two
/// directions stand side by side, forward first.
struct Stacked {
  Var output;
  std::vector<std::vector<Var>> last;  ///< of each k
};
Stacked stack(std::size_t layers, Direction direction, Sequences sequences,
              const std::function<Unrolled(std::size_t k, const Sequences&, bool reverse)>& run);

}  // namespace millrace::layers
