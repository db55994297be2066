// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <millrace/kernels/lstm_cell.h>
#include <millrace/runtime/loops/backend.h>
#include <millrace/runtime/loops/cuda_graph/tick_graph.h>
#include <millrace/runtime/lowering/recurrence.h>
#include <millrace/tensor/device.h>

namespace millrace {

/// A step of live sequences (Recurrence::batched) as a device runs it in one go: each `lstm_cell` whose h and c are states is the kernel of
/// kernels/lstm_sequence.h, which finds them in the slab by slot and leaves them there; the ops between are what they are. Needs no device.
class DeviceStepForm {
 public:
  /// `backend`: captured, every op is what it is; fused, UnsupportedError unless there is a cell with the kernel; automatic, what there is.
  /// UnsupportedError says why such a step cannot run without the host.
  explicit DeviceStepForm(const Recurrence& recurrence, Backend backend = Backend::automatic);

  /// A cell with the kernel. Vars of `step()`; what it is not given is `no_var`.
  struct Cell {
    VarId x = no_var, w = no_var, r = no_var, bias = no_var, peepholes = no_var, h_next = no_var, c_next = no_var;
    std::size_t h = 0, c = 0;  ///< states
    bool keeps_c = false;      ///< others look at its next c
    LstmDesc desc;
  };
  /// A part of the step, run one after the other: a cell, or a program whose inputs and outputs are vars of `step()`.
  struct Stage {
    std::optional<Cell> cell;
    std::optional<Program> program;
    std::vector<VarId> inputs, outputs;
  };

  const Program& step() const noexcept { return step_; }
  const std::vector<Stage>& stages() const noexcept { return stages_; }
  std::size_t inputs() const noexcept { return inputs_; }
  std::size_t outputs() const noexcept { return outputs_; }
  /// `gathered()[i]`: an op reads the rows of state i. `next()[i]`: the output of `step()` that is its next value; none where the state stays, or
  /// where a cell leaves it in the slab.
  const std::vector<bool>& gathered() const noexcept { return gathered_; }
  const std::vector<std::optional<std::size_t>>& next() const noexcept { return next_; }
  /// Fused, or captured; and why not fused.
  Backend backend() const noexcept { return cells_ > 0 ? Backend::fused : Backend::captured; }
  const std::string& reason() const noexcept { return reason_; }
  /// For people.
  std::string to_string() const;

 private:
  struct Reader;
  Program step_;
  std::vector<Stage> stages_;
  std::vector<bool> gathered_;
  std::vector<std::optional<std::size_t>> next_;
  std::size_t inputs_ = 0, outputs_ = 0, cells_ = 0;
  std::string reason_;
};

/// A DeviceStepForm on one CUDA device: a graph for so many rows and the slabs of now, made when it is first wanted and kept. The bits are those
/// of the step op by op. Not thread-safe.
class DeviceStep {
 public:
  /// UnsupportedError where `device` is none of CUDA's, or says what of the step does not fit it.
  DeviceStep(DeviceStepForm form, std::shared_ptr<Device> device);
  ~DeviceStep();

  const DeviceStepForm& form() const noexcept { return form_; }
  /// The slabs, [slots, …] by state, have moved: graphs are made anew.
  void moved(const std::vector<Tensor>& slabs);
  /// One step of `slots`, in place; `inputs` on the host, [rows, …]. The call does not wait: the outputs are on the host when `done` is reached, and
  /// steps run in the order in which they were started. Errors come before anything is enqueued: UnsupportedError names the part that cannot be recorded,
  /// OutOfMemoryError says that memory ran out.
  using Started = cuda::TickGraph::Started;
  Started start(const std::vector<std::int64_t>& slots, const std::vector<Tensor>& inputs);
  /// Makes ready for so many rows, as `start` would.
  void prepare(std::int64_t rows);

 private:
  struct Parts;
  DeviceStepForm form_;
  std::unique_ptr<Parts> parts_;
};

}  // namespace millrace
