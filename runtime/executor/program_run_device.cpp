// SPDX-License-Identifier: Apache-2.0
// How ProgramRun runs a loop as a kernel of a device.
#include <millrace/runtime/executor/program_run.h>

#include <string>

#include <millrace/runtime/loops/cuda_recurrent/device_lstm.h>
#include <millrace/runtime/loops/device_form.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/task/this_task.h>
#include <millrace/runtime/trace/tracer.h>
#include <millrace/tensor/cuda_device.h>

namespace millrace {

std::shared_ptr<const DeviceLstm> DeviceForm::get(const Program& program, int block, const Op& loop) {
  std::call_once(once_, [&] {
    try {
      loop_ = std::make_shared<const DeviceLstm>(program, block, loop, device_);
    } catch (const Error& error) {
      reason_ = error.what();
    }
  });
  return loop_;
}

namespace {

/// What is wrong with the values, the loop says better iteration by iteration; what is wrong with the device, it would say too. A kernel that the device
/// does not start is a reason to do without it.
template <class F>
auto unless_unfit(std::string& why, const F& work) -> decltype(work()) {
  try {
    return work();
  } catch (const CudaError& error) {
    if (error.is_sticky()) throw;
    why = error.what();
    return {};
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

/// The slots that a kernel writes are issued all at once, and ready as it comes to them.
task<void> ProgramRun::trace_slots(std::shared_ptr<ProgramRun> run, TensorArray array, std::int64_t first, std::int64_t iterations) {
  const std::string name = array.name();
  for (std::int64_t index = first; index < first + iterations; ++index) {
    const Point at = array.peek(index)->tensor().ready();
    co_await trace_ready(run, at, name + "[" + std::to_string(index) + "]", index);
  }
}

/// Some iterations at a time, as what they read is issued; gives how many were enqueued. Nothing when none could be. Awaited by who holds `loop`.
task<std::optional<std::vector<SlotValue>>> ProgramRun::pass_slots_on_device(std::shared_ptr<ProgramRun> run, const CompiledOp* op,
                                                                             const DeviceLstm* loop, FusedOperands operands,
                                                                             StreamRef stream, std::int64_t* iterations, std::string* why) {
  const std::unique_ptr<DeviceLstm::Run> pass = unless_unfit(*why, [&] { return loop->begin(std::move(operands), stream); });
  if (pass == nullptr) co_return std::nullopt;
  const std::string name = run->name_of(*op);
  const std::uint64_t track = run->loop_tracks_.empty() ? 0 : run->loop_tracks_[static_cast<std::size_t>(op->sub_block)];
  for (bool fits = true; fits && pass->turned() < pass->iterations();) {
    fits = co_await slots_there(pass->next_slots());
    const std::int64_t begin = pass->turned();
    if (!fits) continue;
    const TraceSpan span(run->options_.tracer, "iterations", name + ", from iteration " + std::to_string(begin) + " on", track, begin);
    fits = unless_unfit(*why, [&] { return pass->advance(begin + pass->at_once()); });
    co_await this_task::checkpoint();
  }
  *iterations = pass->turned();
  if (*iterations == 0) co_return std::nullopt;
  std::vector<SlotValue> last = pass->finish();
  co_return std::optional<std::vector<SlotValue>>(std::move(last));
}

/// False when the loop has to run iteration by iteration after all.
task<bool> ProgramRun::run_fused_on_device(std::shared_ptr<ProgramRun> run, const CompiledOp* op, ScopePtr scope, LoopStart* start) {
  if (!run->one_piece() || run->options_.backend == Backend::captured) co_return false;
  const std::shared_ptr<const DeviceLstm> loop = op->on_device->get(run->executable_.program(), scope->block(), *op->op);
  if (loop == nullptr) {
    run->why_[op] = "there is no fused kernel for it on " + run->executable_.device().place().to_string() + ": " + op->on_device->reason();
    co_return false;
  }
  const std::vector<std::unique_ptr<FusedRun>> none;
  const FusedOperands operands = co_await fused_operands(run, &loop->form(), op, scope, Beside{&none, nullptr}, Slots::all_on_device);
  const std::int64_t limit = op->op->attributes.get_or<std::int64_t>("max_trips", -1);
  if (limit >= 0 && operands.iterations > limit) co_return false;
  const StreamRef stream = run->executable_.device().stream(op->stream);
  const TraceSpan span(run->options_.tracer, "loop", run->name_of(*op) + ", fused", run->track(*op, *scope), scope->iteration());
  std::string why = "what it works on does not fit: slots that are not there yet, or extents that differ";
  std::optional<std::vector<SlotValue>> last;
  std::int64_t turned = operands.iterations;
  if (loop->passes(operands))
    last = co_await pass_slots_on_device(run, op, loop.get(), operands, stream, &turned, &why);
  else
    last = unless_unfit(why, [&] { return loop->run(operands, stream); });
  if (!last) {
    if (operands.iterations > 0) run->why_[op] = why;
    co_return false;
  }
  if (run->options_.tracer != nullptr && run->options_.tracer->records())
    for (std::size_t i = 0; i < operands.outputs.size(); ++i) {
      const TensorArray& array = operands.outputs[i];
      run->whole_->spawn(trace_slots(run, array, operands.written[i].first, turned), "slots of " + array.name() + " to be ready");
    }
  const bool whole = co_await end_loop(run, &loop->form(), op, scope, std::move(*last), turned, operands.iterations, start);
  co_return whole;
}

}  // namespace millrace
