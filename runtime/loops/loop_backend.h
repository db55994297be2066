// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <millrace/runtime/loops/backend.h>
#include <millrace/runtime/loops/loop_operands.h>
#include <millrace/runtime/lowering/loop_form.h>
#include <millrace/tensor/device.h>
#include <millrace/tensor/error.h>
#include <millrace/tensor/point.h>
#include <millrace/tensor/pool.h>

namespace millrace {

/// A while op of a program that was made ready for a device. The program outlives the backends of its loops.
struct LoopSite {
  const Program* program = nullptr;
  int block = 0;
  const Op* op = nullptr;
  std::shared_ptr<Device> device;
  std::size_t stream = 0;  ///< of the device's ring
  int beside = 1;          ///< the number of loops that may run at the same time, this one included (lowering/loop_groups.h)
  int among = 0;           ///< which of them it is, in the order in which they feed one another
};

/// One run of a loop in a backend. `advance` enqueues iterations; nothing is written to an array before `publish` or `finish`, unless
/// the run says otherwise. Not thread-safe.
class LoopRun : public Pooled {
 public:
  virtual ~LoopRun() = default;
  LoopRun(const LoopRun&) = delete;
  LoopRun& operator=(const LoopRun&) = delete;

  virtual const LoopForm& form() const noexcept = 0;
  virtual std::int64_t iterations() const noexcept = 0;
  /// Iterations that `advance` has enqueued.
  virtual std::int64_t iterations_done() const noexcept = 0;
  /// Iterations whose inputs are known: `advance` does not go beyond.
  virtual std::int64_t iterations_bound() const noexcept { return iterations(); }
  /// Whether slots arrive or leave while the iterations run. Then the loop advances by `stride` iterations: await `next_slots`, `bind`,
  /// `advance`, `publish`.
  virtual bool passes_slots() const noexcept { return false; }
  virtual std::int64_t stride() const { return iterations(); }
  /// Arrays whose slots arrive, and the slots that the next iteration reads.
  virtual std::vector<std::pair<TensorArray, std::int64_t>> next_slots() const { return {}; }
  /// Takes the slots that are there for the iterations before `end`. False when there are none, or they do not fit: then the loop can only
  /// go on iteration by iteration, from `iterations_done` on.
  virtual bool bind(std::int64_t end) { return end > 0; }
  /// Enqueues some milliseconds of iterations, none beyond `end` and `iterations_bound`. False when there are none left, or the device
  /// refuses them (`reason`).
  virtual bool advance(std::int64_t end) = 0;
  /// Whether all iterations take less time than a task that waits for them is worth: then they are one `advance` of a host stream.
  virtual bool brief() const { return false; }
  /// Writes the slots that leave of the iterations that are done.
  virtual void publish() {}
  /// Writes the arrays, and gives the last states in the order of the form, of the iterations so far: at least one. On the host they are
  /// done: the `position` of the last `advance` was awaited.
  virtual std::vector<SlotValue> finish() = 0;
  /// Reached when the iterations enqueued so far are done; reached at once where nobody on the host waits for them.
  virtual Point position() const { return {}; }
  /// After `finish`: the point at which a loop that goes on by itself is done. Its awaiter calls `cancel` when it is cancelled. Nothing:
  /// nobody needs to await the loop.
  virtual std::optional<Point> end() const { return std::nullopt; }
  /// The results are not wanted any more: the device leaves the loop at an iteration of its choice.
  virtual void cancel() noexcept {}
  /// After `finish`: arrays, and slots of them by iteration, that are ready one by one, as a kernel comes to them.
  virtual std::vector<std::pair<TensorArray, LoopOperands::Slots>> marked_slots() const { return {}; }
  /// Extents of the slots of output `output`, stacked, of an array of fixed size without an order. Nothing: not known before the end.
  virtual std::optional<DDim> stacked(std::size_t output) const;
  /// Why the run ended before its last iteration; empty: it did not, or its inputs do not fit.
  virtual std::string reason() const { return {}; }

 protected:
  LoopRun() = default;
};

/// Runs of one backend that advance together, in the order in which they feed one another.
class LoopStages : public Pooled {
 public:
  virtual ~LoopStages() = default;
  LoopStages(const LoopStages&) = delete;
  LoopStages& operator=(const LoopStages&) = delete;

  /// Advances all runs, each as LoopRun::advance does.
  virtual bool advance(std::int64_t end) = 0;
  /// Iterations to advance by where slots pass.
  virtual std::int64_t stride() const = 0;

 protected:
  LoopStages() = default;
};

/// One way to run one while op on one device. Each backend is a folder beside this header; docs/adding_a_backend.md is a worked example.
/// Thread-safe.
class LoopBackend {
 public:
  explicit LoopBackend(LoopSite site) : site_(std::move(site)) {}
  virtual ~LoopBackend() = default;
  LoopBackend(const LoopBackend&) = delete;
  LoopBackend& operator=(const LoopBackend&) = delete;

  /// The choice of RunOptions::backend that asks for it.
  virtual Backend kind() const noexcept = 0;
  /// Whether iterations run on the host: then operands must be ready, not just issued, and loops may run concurrently.
  virtual bool on_host() const noexcept { return false; }
  /// The loop as the backend runs it; null when it cannot, and `reason` says why. Analysed once, at the first call.
  const LoopForm* form();
  /// After `form`.
  const std::string& reason() const noexcept { return reason_; }

  /// A run on these operands, of at least one iteration; null when they do not fit, and `why` says why. Then the loop runs in another
  /// backend, which reports errors of the values. After `form` was not null. Nothing is written.
  std::unique_ptr<LoopRun> prepare(LoopOperands operands, StreamRef stream, std::string& why);

  /// Whether a run may begin while an array that it reads, at `slots`, is being filled, and the first of these slots is issued: the run awaits the
  /// others itself. After `form` was not null.
  virtual bool begins_early(const TensorArray& array, const LoopOperands::Slots& slots, std::int64_t iterations) const;
  /// Whether runs of `other`, a backend of another loop, may be stages beside runs of this one.
  virtual bool runs_beside(const LoopBackend& other) const noexcept;
  /// Whether a loop with the rows of `first` gains from other loops beside it on `threads` threads.
  virtual bool gains_from_others(const LoopRun& first, int threads) const;
  /// `runs`, of this backend and of those that run beside it, in the order in which they feed one another, as stages that advance together on `threads` threads; they outlive the stages.
  virtual std::unique_ptr<LoopStages> stages(std::vector<LoopRun*> runs, int threads) const;

 protected:
  const LoopSite& site() const noexcept { return site_; }
  /// Called once. UnsupportedError says why the loop does not fit.
  virtual const LoopForm& analyse() = 0;
  /// Any Error says why the operands do not fit.
  virtual std::unique_ptr<LoopRun> make_run(LoopOperands operands, StreamRef stream) = 0;
  /// Whether an error of `make_run` ends the program's run.
  virtual bool is_fatal(const Error& error) const noexcept;

 private:
  LoopSite site_;
  std::once_flag once_;
  const LoopForm* form_ = nullptr;
  std::string reason_;
};

}  // namespace millrace
