// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <millrace/runtime/executor/executable.h>
#include <millrace/runtime/lowering/device_step.h>
#include <millrace/runtime/lowering/recurrence.h>
#include <millrace/runtime/lowering/step_runner.h>
#include <millrace/streaming/live/tick.h>

namespace millrace {

class Tracer;

/// The states of all live sequences of one recurrence on one device, one row a slot, and the arithmetic of a tick. Bits never depend on the
/// slot or on who shares the tick. A tick waits for the device, which somebody else must drive; what fails there later than its tick fails
/// those after it. One tick at a time; not thread-safe.
class StateSlab {
 public:
  /// Compiles the recurrence for `device` (null: a CPU device of its own with one thread). The slab grows as slots are used. `gear`: as
  /// StepRunner takes it; on CUDA as DeviceStepForm does, or interpreted. A gear that cannot be had is an UnsupportedError that says why.
  explicit StateSlab(std::shared_ptr<const Recurrence> recurrence, std::shared_ptr<Device> device = nullptr, Gear gear = Gear::automatic);
  ~StateSlab();

  const Recurrence& recurrence() const noexcept { return *recurrence_; }
  /// Runs one step for the rows of `tick`. When the whole of it fails, each row is tried alone, so that an error stays with the session
  /// that caused it.
  TickResult run(const Tick& tick, Tracer* tracer = nullptr);
  /// State `index` of the recurrence in `slot`, as it is now: a copy on the host. IndexError for a slot that no tick has started.
  Tensor state(std::size_t index, Slot slot) const;
  /// Bytes of state held.
  std::size_t bytes() const noexcept;
  /// How ticks run, and why not faster: "fused", "captured: …", "interpreted: …". A tick that is traced runs op by op.
  std::string gear() const;

 private:
  void start(const Tick::Start& start);
  void grow(Slot slot);
  Tensor on_device(const Tensor& value) const;
  void cross(const Tick& tick, TickResult& result, Tracer* tracer);
  void cross(std::size_t boundary, const std::vector<const Tick::Crossing*>& all, const std::vector<TickResult::Crossed*>& results,
             Tracer* tracer);
  std::vector<Value> with_states(std::vector<Value> inputs, const std::vector<Slot>& slots) const;
  std::vector<Tensor> step(const std::vector<Slot>& slots, const std::vector<Tensor>& inputs, Tracer* tracer);

  std::shared_ptr<const Recurrence> recurrence_;
  std::shared_ptr<Device> device_;
  void fuse(Gear gear);
  StepRunner& op_by_op();

  std::optional<StepRunner> step_;
  std::unique_ptr<DeviceStep> on_device_;  ///< in place of it, on CUDA
  bool required_ = false;
  std::string reason_;
  Executable start_;
  std::vector<Executable> boundaries_;
  std::vector<Tensor> zeros_;                ///< of `given`
  std::optional<std::vector<Value>> fresh_;  ///< the states of a sequence that was given nothing
  std::vector<Tensor> slabs_;                ///< one per state: [slots, its extents]
  Slot capacity_ = 0;
};

}  // namespace millrace
