// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <millrace/runtime/loops/cuda_recurrent/device_step.h>
#include <millrace/runtime/loops/step_runner.h>
#include <millrace/runtime/lowering/recurrence.h>
#include <millrace/runtime/program/straight_program.h>
#include <millrace/streaming/live/tick.h>

namespace millrace {

class Tracer;

/// The states of all live sequences of one recurrence on one device, one row a slot, and the arithmetic of a tick. Bits never depend on the
/// slot or on the other sequences of the tick. A tick waits for the device, which another thread must drive. One tick at a time; not thread-safe.
///
/// The state of a slot changes when all of its step is known to be good, so a sequence that shares a tick with a failure goes on with the same bits. After a failure
/// that left the device good (memory ran out, an index outside) the streams are renewed and each row is tried alone. A sequence whose state could not
/// be written, which shows later than its tick, fails at its next step. Once the device is lost every row fails with PlaceLostError.
class StateSlab {
 public:
  /// Compiles the recurrence for `device` (null: a CPU device of its own with one thread). The slab grows as slots are used. `backend`: as
  /// StepRunner takes it; on CUDA as DeviceStepForm does, or interpreted. A backend that cannot be had is an UnsupportedError that says why.
  explicit StateSlab(std::shared_ptr<const Recurrence> recurrence, std::shared_ptr<Device> device = nullptr,
                     Backend backend = Backend::automatic);
  ~StateSlab();

  const Recurrence& recurrence() const noexcept { return *recurrence_; }
  /// Runs one step for the rows of `tick`. When the whole of it fails, each row is tried alone, so that an error stays with the session
  /// that caused it. A start that fails is tried again at the first step of its slot, which it fails otherwise. Ticks that were started come first.
  /// std::bad_alloc only before anything of `tick` was done: the same tick can be run again, and no later one before it.
  TickResult run(const Tick& tick, Tracer* tracer = nullptr);
  /// Runs to a `result` whose memory is used again; none of its tensors is held elsewhere. Where `backend` is fused on the CPU, steps allocate nothing
  /// once as many rows were in a tick.
  void run(const Tick& tick, TickResult& result, Tracer* tracer = nullptr);
  /// Starts what `run` does, behind the ticks that were started before; `tick.inputs` stay as they are until it is finished. The device goes from one
  /// to the next without the host where `backend` is fused or captured, no value of a step can be wrong, and the tick starts and crosses nothing;
  /// any other tick, and the first that is started, ends here, and so do those before it.
  void start(const Tick& tick);
  /// Waits for the tick that was started first of those not finished, and gives what `run` would have. A failure of the device fails all that it had
  /// begun, those of ticks behind it too. UninitializedError when there is none.
  TickResult finish();
  /// State `index` of the recurrence in `slot`, behind all ticks so far: a copy on the host. IndexError for a slot that no tick has started.
  Tensor state(std::size_t index, Slot slot) const;
  /// Later steps and starts go by `recurrence`, which is like the one before in all but the values of its weights; states stay. On a CPU, where no inner sequences
  /// are and no tick is under way (UnsupportedError). ArgumentError for another recurrence. Nothing is changed on error.
  void renew_weights(std::shared_ptr<const Recurrence> recurrence);
  /// Bytes of state held.
  std::size_t bytes() const noexcept;
  /// The backend of ticks, and the reason why it is no faster one: "fused", "captured: …", "interpreted: …". A tick that is traced runs op by op.
  std::string backend() const;
  /// PlaceLostError once the device is gone, as far as ticks have shown; else null.
  const std::exception_ptr& lost() const noexcept { return lost_; }

 private:
  struct UnderWay {
    Tick tick;
    DeviceStep::Started step{};
    std::optional<TickResult> result{};  ///< once it is known
  };

  void fuse(Backend backend);
  StepRunner& op_by_op();
  void run_to_end(const Tick& tick, TickResult& result, Tracer* tracer);
  bool can_follow(const Tick& tick) const;
  bool arrived(UnderWay& one);
  void conclude();
  void settle();
  void begin(const std::vector<Tick::Start>& starts);
  void start(const Tick::Start& start);
  void check_state(const std::vector<Slot>& slots);
  void grow(Slot slot);
  void grow_to(Slot wanted);
  void wait_for_states() const;
  template <class Change>
  void commit(const std::vector<Slot>& slots, Change&& change);
  void recover();
  void lose(std::exception_ptr failed);
  Tensor on_device(const Tensor& value) const;
  struct Crossings;
  void cross(const Crossings& crossings, Tracer* tracer);
  void step_all(const Tick& tick, TickResult& result, Tracer* tracer);
  void cross(std::size_t boundary, const std::vector<const Tick::Crossing*>& all, const std::vector<TickResult::Crossed*>& results,
             Tracer* tracer);
  std::vector<Value> with_states(std::vector<Value> inputs, const std::vector<Slot>& slots) const;
  std::vector<Tensor> step_in_place(const std::vector<Slot>& slots, const std::vector<Tensor>& inputs);
  void tear(const std::vector<Slot>& slots);
  void put_back();
  void step_alone(const Tick& tick, TickResult& result, Tracer* tracer);
  void tell_lost(TickResult& result) const;
  void save(const Tick& tick, TickResult& result);
  bool fits_host_step(const std::vector<Tensor>& inputs, std::size_t rows) const;
  void step_on_host(const std::vector<Slot>& slots, const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs);
  void step(const std::vector<Slot>& slots, const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, Tracer* tracer);

  std::shared_ptr<const Recurrence> recurrence_;
  std::shared_ptr<Device> device_;
  Backend backend_;

  std::optional<StepRunner> step_;
  /// Memory of a step that runs as one kernel on the CPU, kept from step to step.
  struct HostStep {
    std::vector<Tensor> states{}, next{};  ///< rows of the slots: before, and of the states that change behind it
    std::vector<RowView> from{}, to{};
  };
  HostStep on_host_;
  std::unique_ptr<DeviceStep> on_device_;  ///< in place of it, on CUDA
  struct Before {
    std::vector<Slot> slots{};
    std::vector<Tensor> states{};
    bool wanted = false;  ///< the step failed
  };
  Before before_;  ///< states of the slots of the step that `on_device_` runs
  bool may_fault_ = false;
  bool required_ = false;
  std::string reason_;
  StraightProgram start_;
  std::vector<StraightProgram> boundaries_;
  std::vector<Tensor> not_given_;            ///< values of `given` where none is given
  std::optional<std::vector<Value>> fresh_;  ///< the states of a sequence that was given nothing
  std::vector<Tensor> slabs_;                ///< one per state: [slots, its extents]
  Slot capacity_ = 0;
  std::map<Slot, Tick::Start> unstarted_;    ///< those whose start has not succeeded
  std::map<Slot, std::exception_ptr> torn_;  ///< why the state of a slot is not what it should be
  std::vector<Slot> written_;                ///< whose state the last tick changed
  std::exception_ptr lost_;
  std::deque<UnderWay> under_way_;
  bool settled_ = false;
};

}  // namespace millrace
