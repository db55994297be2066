// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <millrace/kernels/cell_sequence.h>
#include <millrace/runtime/loops/cpu_fused/row_kernel.h>
#include <millrace/runtime/lowering/loop_form.h>
#include <millrace/runtime/lowering/passes.h>

namespace millrace {

/// A while op whose iteration is any row-wise cell, as a device can run it: ops that depend on no state for the rows of all iterations at once, the
/// iterations as one generated kernel (kernels/cell_sequence.h), and products that no state depends on behind them. `lstm_cell`s are written
/// out. The same bits as the loop iteration by iteration on that device. No device is needed to make one. Immutable.
class CellLoop {
 public:
  /// UnsupportedError says what does not fit. `tf32`: whether the device multiplies f32 as tf32.
  CellLoop(const Program& program, int block, const Op& loop, bool tf32);

  const LoopForm& form() const noexcept { return form_; }
  const CellPlan& plan() const noexcept { return plan_; }
  const passes::Phases& phases() const noexcept { return phases_; }

  using Source = passes::Source;
  /// The source of each input of the row plan, in the order in which the plan's `input_rows` and `shared` count the inputs.
  const std::vector<Source>& inputs() const noexcept { return inputs_; }
  /// By constant of the row plan.
  const std::vector<Tensor>& constants() const noexcept { return constants_; }
  /// By product of the plan: the matrix [k, n] as it stands in the program.
  struct Matrix {
    std::optional<Tensor> value;
    Source source;  ///< without a value
    bool transposed = false;
  };
  const std::vector<Matrix>& matrices() const noexcept { return matrices_; }
  /// Values that the kernel writes: an output of the iteration's program or a state, by output of the plan. And the extents of one row of it.
  const std::vector<Source>& written() const noexcept { return written_; }
  const std::vector<DDim>& written_dims() const noexcept { return written_dims_; }
  /// The place of the value of `source` in `written()`.
  std::size_t place(const Source& source) const;

  std::string to_string() const;

 private:
  class Reader;
  LoopForm form_;
  passes::Phases phases_;
  std::vector<Source> inputs_, written_;
  std::vector<DDim> written_dims_;
  std::vector<Tensor> constants_;
  std::vector<Matrix> matrices_;
  CellPlan plan_;
};

}  // namespace millrace
