// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <millrace/kernels/cell_sequence.h>
#include <millrace/runtime/loops/cuda_recurrent/cell_loop.h>
#include <millrace/runtime/loops/loop_backend.h>
#include <millrace/runtime/program/straight_program.h>

namespace millrace {

/// A CellLoop on one CUDA device. Its kernel is compiled when it is made, or read from the user's cache of code (files/code_cache.h). Immutable;
/// runs may go on at the same time.
class DeviceCell {
 public:
  /// UnsupportedError says what does not fit, the device and its compiler included.
  explicit DeviceCell(const LoopSite& site);

  const LoopForm& form() const noexcept { return loop_.form(); }
  std::string to_string() const;
  bool begins_early(const TensorArray&, const LoopOperands::Slots&, std::int64_t) const { return false; }

  /// A run of all iterations at once. UnsupportedError: the values do not fit. This must outlive the run. Slots that the kernel itself writes are
  /// ready step by step, behind the stream's watermark; others when it has ended.
  std::unique_ptr<LoopRun> prepare(LoopOperands operands, StreamRef stream) const;

 private:
  class Run;
  PackedCell packed(const std::vector<Tensor>& matrices, StreamRef stream) const;

  CellLoop loop_;
  std::shared_ptr<Device> device_;
  std::optional<StraightProgram> invariant_, ahead_, behind_;
  std::vector<Tensor> constants_;  // on the device
  std::optional<CellSequence> cell_;
  std::optional<PackedCell> packed_;  // where all matrices are constants
};

}  // namespace millrace
