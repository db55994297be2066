// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <millrace/runtime/loops/cuda_graph/loop_graph.h>
#include <millrace/runtime/loops/loop_backend.h>
#include <millrace/runtime/lowering/loop_form.h>
#include <millrace/runtime/program/straight_program.h>

namespace millrace {

/// UnsupportedError when an op of the straight-line program looks at values on the host: it would look while a graph is made of it.
void expect_no_host(const Program& step);

/// A while op as a graph, without a device: its recurrence, and whether its iterations may lose rows.
class CapturedForm {
 public:
  /// UnsupportedError says why the loop is no recurrence, or which op of an iteration waits for the host.
  CapturedForm(const Program& program, int block, const Op& loop);

  const LoopForm& form() const noexcept { return form_; }
  /// Empty: each row of an iteration comes of its own row, so that sequences may end at different iterations. Else which op says otherwise: then all
  /// iterations must have the same rows.
  const std::string& couples_rows() const noexcept { return couples_rows_; }
  /// "backend: captured", and what follows from `couples_rows`.
  std::string to_string() const;

 private:
  LoopForm form_;
  std::string couples_rows_;
};

/// A while op that runs as a CUDA graph on one device (loop_graph.h): the kernels of the ops of an iteration as the interpreted backend
/// starts them, hence its bits, and no step of the host's between iterations. A graph is made for the extents that a run brings and kept for the
/// next ones, the latest 16. Thread-safe.
class CapturedLoop {
 public:
  /// UnsupportedError says what does not fit. `stream`: of the device's ring, which the graphs run on.
  CapturedLoop(const Program& program, int block, const Op& loop, std::shared_ptr<Device> device, std::size_t stream);
  ~CapturedLoop();

  const LoopForm& form() const noexcept { return form_.form(); }

  class Run;
  /// UnsupportedError (or the error of an op of the iteration) says why these values do not fit: then the loop must run iteration by
  /// iteration. Values need not be ready, just issued. `iterations` ≥ 1.
  std::unique_ptr<LoopRun> prepare(LoopOperands operands);

 private:
  class Values;
  struct Kept {
    std::string key;
    std::shared_ptr<cuda::LoopGraph> graph;
  };
  std::shared_ptr<cuda::LoopGraph> graph_for(const cuda::LoopIteration& iteration);

  CapturedForm form_;
  std::shared_ptr<cuda::RecordingDevice> device_;
  StraightProgram iteration_;
  std::mutex mutex_;
  std::vector<Kept> kept_;  // the latest first
};

/// One run of a captured loop: a single `advance` enqueues all iterations and writes the arrays. The loop outlives it.
class CapturedLoop::Run final : public LoopRun {
 public:
  const LoopForm& form() const noexcept override { return *form_; }
  std::int64_t iterations() const noexcept override { return operands_.iterations; }
  std::int64_t iterations_done() const noexcept override { return started_ ? iterations() : 0; }
  bool advance(std::int64_t end) override;
  std::vector<SlotValue> finish() override;
  std::optional<Point> end() const override;
  void cancel() noexcept override { graph_->cancel(number_); }

 private:
  friend class CapturedLoop;
  LoopOperands operands_;
  const LoopForm* form_ = nullptr;
  std::shared_ptr<cuda::LoopGraph> graph_;
  cuda::LoopSlots slots_;
  std::optional<SequenceOrder> order_;
  LoopOperands::Slots ordered_;
  std::int64_t number_ = 0;
  bool started_ = false;
};

}  // namespace millrace
