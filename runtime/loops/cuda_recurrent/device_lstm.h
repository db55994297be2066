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
#include <millrace/runtime/loops/cpu_fused/fused_loop.h>
#include <millrace/runtime/lowering/lstm_loop.h>
#include <millrace/runtime/program/straight_program.h>

namespace millrace {

/// An LstmLoop on one CUDA device. Immutable but for what is packed once; runs may go on at the same time.
class DeviceLstm {
 public:
  /// UnsupportedError says what does not fit, the device included.
  DeviceLstm(const Program& program, int block, const Op& loop, std::shared_ptr<Device> device);

  const LoopForm& form() const noexcept { return loop_.form(); }
  std::string to_string() const;

  /// Enqueues all iterations on `stream`, writes the arrays and gives the last states, in the order of the form; none of it is awaited.
  /// Slots that the kernel itself writes are ready step by step, behind the stream's watermark; others when it has ended. Nothing when
  /// the values do not fit (a slot that is not there yet, extents that differ): then the loop must run iteration by iteration, which says what is wrong.
  std::optional<std::vector<SlotValue>> run(const FusedOperands& operands, StreamRef stream) const;

  /// Whether the loop may go some iterations at a time: nothing stands behind the cell, and nothing but what the cell makes is written.
  bool may_pass() const;
  /// Whether it should: what it reads comes while it runs, from another kernel, which says by its watermark how far it is.
  bool passes(const FusedOperands& operands) const;
  /// The same loop, some iterations at a time. Null when the values do not fit. What `operands` names must be known of the first iteration alone; this
  /// must outlive the run.
  class Run;
  std::unique_ptr<Run> begin(FusedOperands operands, StreamRef stream) const;

 private:
  struct Rows;
  using Values = std::map<VarId, Tensor>;
  void run_piece(const LstmLoop::Piece& piece, const std::optional<StraightProgram>& program, Values& values) const;
  Tensor value(const Values& values, VarId var) const;
  bool of_cell(VarId var) const;
  std::shared_ptr<Watermark> watermark(const Rows& rows, StreamRef stream) const;
  Tensor project(const Values& values, StreamRef stream) const;
  LstmSequenceRows sequence(const Rows& rows, StreamRef stream) const;
  void take_steps(LstmSequenceRows& sequence, const Values& values, StreamRef stream) const;
  std::vector<SlotValue> last_states(const Rows& rows, const LstmSequenceRows& sequence, std::int64_t iterations, StreamRef stream) const;
  PackedLstmSequence packed(const Values& values, StreamRef stream) const;

  LstmLoop loop_;
  std::shared_ptr<Device> device_;
  std::optional<StraightProgram> before_, behind_;
  std::map<VarId, Tensor> constants_;  // weights, on the device
  std::optional<LstmSequencePlan> plan_;
  std::optional<GemmPlan> projection_;
  std::optional<PackedLstmSequence> packed_;  // where all weights are constants
  std::optional<PackedMatrix> packed_w_;
};

/// A run of the loop in runs of iterations: for each, the ops before the cell and x·W for its rows, behind what made them, and the kernel. Await
/// `next_slots`, then `advance`, until `turned` is `iterations`. All that is there is enqueued without waiting for it, so the host runs ahead of
/// the device: each run of iterations begins on the device as soon as what it reads is made, while the kernel that makes it goes on.
class DeviceLstm::Run {
 public:
  ~Run();
  std::int64_t iterations() const noexcept;
  std::int64_t turned() const noexcept;
  /// How many iterations a run has: see iterations_of_a_run (fused_loop.h), with the device's times.
  std::int64_t at_once() const;
  /// Arrays and slots that the next iteration waits for.
  std::vector<std::pair<TensorArray, std::int64_t>> next_slots() const;
  /// Enqueues the iterations before `end` whose slots are issued, and writes theirs. False when there are none, or some do not fit: then the loop
  /// can only go on iteration by iteration, from `turned` on.
  bool advance(std::int64_t end);
  /// The last states, in the order of the form, of the iterations so far: at least one. Writes what was not written by then.
  std::vector<SlotValue> finish();

 private:
  friend class DeviceLstm;
  struct State;
  explicit Run(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace millrace
