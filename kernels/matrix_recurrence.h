// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// Matrices S [D, E] of H heads that sequences carry from step to step, as in linear attention. At each step, for each head,
///   S ← g·S + k ⊗ v,  o = Σ over the keys of S·q  for each query of the head,
/// where v may be corrected: β·(v − Σ over the keys of (g·S)·k) stands in its place. Products are rounded before they are added, in the order of the keys: the
/// bits of `mul`, `add` and `reduce`, one op after another.
struct MatrixRecurrence {
  Tensor
      key;  ///< [.., H·D]: as all inputs of steps [T, N, ..], or [N, T, ..] where `steps` is 1; the axes behind the first two count as one
  Tensor value;                 ///< [.., H·E]
  Tensor query;                 ///< [.., H·Q·D]: Q queries of a head stand side by side
  Tensor past;                  ///< [N, ..] with H·D·E elements a row: S before the first step; one row may be that of all sequences
  std::optional<Tensor> decay;  ///< g: [.., H] or [.., H·D]
  std::optional<Tensor> rate;   ///< β: [.., 1] or [.., H]
  std::int64_t heads = 1;
  bool corrects = false;
  int steps = 0;  ///< the axis of steps
};

/// The reads of the steps, [T, N, H·Q·E] or [N, T, H·Q·E], and S behind the last step, with the axes of `past`.
struct MatrixReads {
  Tensor out;
  Tensor last;
};

/// f32 or f64, all of one dtype, in host memory alone. ShapeError, DTypeError, ArgumentError name both sides.
MatrixReads matrix_recurrence(const MatrixRecurrence& call, StreamRef stream);

}  // namespace millrace
