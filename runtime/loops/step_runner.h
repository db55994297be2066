// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <millrace/runtime/loops/backend.h>
#include <millrace/runtime/loops/cpu_fused/row_kernel.h>
#include <millrace/runtime/program/straight_program.h>

namespace millrace {

class Tracer;

/// A straight-line program over N rows (`Recurrence::batched`: one step of N sequences), run again and again: as one kernel where it fits,
/// else op by op; the same bits. Not thread-safe.
class StepRunner {
 public:
  /// Inputs and outputs have rows along axis 0, of unknown extent. `backend`: interpreted, op by op; fused, as one kernel, or UnsupportedError
  /// that says why not; captured: UnsupportedError. On CUDA see DeviceStep, which works on slabs.
  StepRunner(const Program& program, std::shared_ptr<Device> device, Backend backend = Backend::automatic);
  ~StepRunner();
  StepRunner(StepRunner&&) noexcept;
  StepRunner& operator=(StepRunner&&) noexcept;

  /// Whether it runs as one kernel, and if not, why.
  bool fused() const noexcept { return kernel_.has_value(); }
  const std::string& reason() const noexcept { return reason_; }

  /// `inputs`: contiguous, all with the same number of rows. On a device the outputs may still be under way. Traced, it runs op by op.
  std::vector<Tensor> run(const std::vector<Tensor>& inputs, Tracer* tracer = nullptr);
  /// Runs a step of `rows` rows from and to memory of the caller; only when `fused`. Allocates nothing once it ran with so many threads.
  void run(std::span<const RowView> inputs, std::span<const RowView> outputs, std::int64_t rows);

 private:
  struct Room;
  void fuse();
  StraightProgram step_;
  std::optional<RowKernel> kernel_;
  RowWeights weights_;
  std::string reason_;
  std::shared_ptr<Device> device_;
  std::vector<std::unique_ptr<Room>> rooms_;  // one for each thread
};

}  // namespace millrace
