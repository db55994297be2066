// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <millrace/kernels/gemm.h>
#include <millrace/kernels/lstm_sequence.h>
#include <millrace/runtime/executor/executable.h>
#include <millrace/runtime/lowering/fused_loop.h>
#include <millrace/runtime/lowering/lstm_loop.h>

namespace millrace {

/// An LstmLoop on one CUDA device. Immutable but for what is packed once; runs may go on at the same time.
class DeviceLstm {
 public:
  /// UnsupportedError says what does not fit, the device included.
  DeviceLstm(const Program& program, int block, const Op& loop, std::shared_ptr<Device> device);

  const LoopForm& form() const noexcept { return loop_.form(); }
  std::string to_string() const;

  /// Enqueues all turns on `stream`, writes the arrays and gives the last states, in the order of the form; none of it is awaited.
  /// Slots that the kernel itself writes are ready step by step, behind the stream's watermark; others when it has ended. Nothing when
  /// the values do not fit (a slot that is not there yet, extents that differ): then the loop must run turn by turn, which says what is wrong.
  std::optional<std::vector<SlotValue>> run(const FusedOperands& operands, StreamRef stream) const;

 private:
  struct Rows;
  using Values = std::map<VarId, Tensor>;
  void run_piece(const LstmLoop::Piece& piece, const std::optional<Executable>& program, Values& values) const;
  Tensor value(const Values& values, VarId var) const;
  bool of_cell(VarId var) const;
  std::shared_ptr<Watermark> watermark(const Rows& rows, StreamRef stream) const;
  Tensor project(const Values& values, StreamRef stream) const;
  LstmSequenceRows sequence(const Rows& rows, const Values& values, StreamRef stream) const;
  PackedLstmSequence packed(const Values& values, StreamRef stream) const;

  LstmLoop loop_;
  std::shared_ptr<Device> device_;
  std::optional<Executable> before_, behind_;
  std::map<VarId, Tensor> constants_;  // weights, on the device
  std::optional<LstmSequencePlan> plan_;
  std::optional<GemmPlan> projection_;
  std::optional<PackedLstmSequence> packed_;  // where all weights are constants
  std::optional<PackedMatrix> packed_w_;
};

}  // namespace millrace
