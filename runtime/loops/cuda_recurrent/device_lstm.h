// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <millrace/kernels/gemm.h>
#include <millrace/kernels/lstm_sequence.h>
#include <millrace/runtime/loops/loop_backend.h>
#include <millrace/runtime/lowering/lstm_loop.h>
#include <millrace/runtime/program/straight_program.h>

namespace millrace {

struct DeviceRows;

/// An LstmLoop on one CUDA device. Immutable but for what is packed once; runs may go on at the same time.
class DeviceLstm {
 public:
  /// UnsupportedError says what does not fit, the device included.
  explicit DeviceLstm(const LoopSite& site);

  const LoopForm& form() const noexcept { return loop_.form(); }
  std::string to_string() const;

  /// Whether `prepare` gives a run that goes some iterations at a time, as slots of the array come: a kernel makes them, and says how far it is.
  bool begins_early(const TensorArray& array, const LoopOperands::Slots& slots, std::int64_t iterations) const;
  /// A run of all iterations at once, or some iterations at a time where the inputs come from another kernel while it runs, which says by
  /// its watermark how far it is. UnsupportedError: the values do not fit (a slot that is not there yet, extents that differ). This must
  /// outlive the run. Slots that the kernel itself writes are ready step by step, behind the stream's watermark; others when it has ended.
  std::unique_ptr<LoopRun> prepare(LoopOperands operands, StreamRef stream) const;

 private:
  class Run;
  class PassingRun;
  using Values = std::map<VarId, Tensor>;
  /// Whether the loop may go some iterations at a time: nothing stands behind the cell, and all that is written the cell makes.
  bool may_pass() const;
  std::unique_ptr<LoopRun> begin_passing(LoopOperands operands, StreamRef stream) const;
  void run_piece(const LstmLoop::Piece& piece, const std::optional<StraightProgram>& program, Values& values) const;
  Tensor value(const Values& values, VarId var) const;
  bool of_cell(VarId var) const;
  std::shared_ptr<Watermark> watermark(const DeviceRows& rows, StreamRef stream) const;
  Tensor project(const Values& values, StreamRef stream) const;
  LstmSchedule schedule(std::int64_t sequences) const;
  LstmSequenceRows sequence(const DeviceRows& rows, StreamRef stream, const std::optional<Tensor>& y = {},
                            const std::optional<Tensor>& c_steps = {}) const;
  void take_steps(LstmSequenceRows& sequence, const Values& values, StreamRef stream) const;
  std::vector<SlotValue> last_states(const DeviceRows& rows, const LstmSequenceRows& sequence, std::int64_t iterations,
                                     StreamRef stream) const;
  PackedLstmSequence packed(const Values& values, StreamRef stream) const;

  LstmLoop loop_;
  std::shared_ptr<Device> device_;
  int beside_;       // loops that run at the same time, each on a stream of its own
  bool has_stream_;  // whether no earlier one of them has this one's
  std::optional<StraightProgram> before_, behind_;
  std::map<VarId, Tensor> constants_;  // weights, on the device
  std::optional<LstmSequencePlan> plan_;
  std::optional<GemmPlan> projection_;
  std::optional<PackedLstmSequence> packed_;  // where all weights are constants
  std::optional<PackedMatrix> packed_w_;
};

}  // namespace millrace
