// SPDX-License-Identifier: Apache-2.0
// How ProgramRun runs a loop as a kernel of a device.
#include <millrace/runtime/executor/program_run.h>

#include <string>

#include <millrace/runtime/executor/device_form.h>
#include <millrace/runtime/lowering/device_lstm.h>
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

/// What is wrong with the values, the loop says better turn by turn; what is wrong with the device, it would say too. A kernel that the device
/// does not start is a reason to do without it.
std::optional<std::vector<SlotValue>> enqueued(const DeviceLstm& loop, const FusedOperands& operands, StreamRef stream, std::string& why) {
  try {
    return loop.run(operands, stream);
  } catch (const CudaError& error) {
    if (error.is_sticky()) throw;
    why = error.what();
    return std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

/// The slots that a kernel writes are issued all at once, and ready as it comes to them.
task<void> ProgramRun::trace_slots(std::shared_ptr<ProgramRun> run, TensorArray array, std::int64_t first, std::int64_t turns) {
  const std::string name = array.name();
  for (std::int64_t index = first; index < first + turns; ++index) {
    const Point at = array.peek(index)->tensor().ready();
    co_await trace_ready(run, at, name + "[" + std::to_string(index) + "]", index);
  }
}

/// False when the loop has to run turn by turn after all.
task<bool> ProgramRun::run_fused_on_device(std::shared_ptr<ProgramRun> run, const CompiledOp* op, ScopePtr scope) {
  if (!run->one_piece() || run->options_.gear == Gear::captured) co_return false;
  const std::shared_ptr<const DeviceLstm> loop = op->on_device->get(run->executable_.program(), scope->block(), *op->op);
  if (loop == nullptr) {
    run->why_[op] = "there is no fused kernel for it on " + run->executable_.device().place().to_string() + ": " + op->on_device->reason();
    co_return false;
  }
  const std::vector<std::unique_ptr<FusedRun>> none;
  const FusedOperands operands = co_await fused_operands(run, &loop->form(), op, scope, Beside{&none, nullptr}, true);
  const std::int64_t limit = op->op->attributes.get_or<std::int64_t>("max_trips", -1);
  if (limit >= 0 && operands.turns > limit) co_return false;
  const StreamRef stream = run->executable_.device().stream(op->stream);
  const TraceSpan span(run->options_.tracer, "loop", run->name_of(*op) + ", fused", run->track(*op, *scope), scope->turn());
  std::string why = "what it works on does not fit: slots that are not there yet, or extents that differ";
  std::optional<std::vector<SlotValue>> last = enqueued(*loop, operands, stream, why);
  if (!last) {
    if (operands.turns > 0) run->why_[op] = why;
    co_return false;
  }
  if (run->options_.tracer != nullptr && run->options_.tracer->records())
    for (std::size_t i = 0; i < operands.outputs.size(); ++i) {
      const TensorArray& array = operands.outputs[i];
      run->whole_->spawn(trace_slots(run, array, operands.written[i].first, operands.turns), "slots of " + array.name() + " to be ready");
    }
  co_await finish_loop(run, &loop->form(), op, scope, std::move(*last), operands.turns);
  ++run->result_.fused_loops;
  co_return true;
}

}  // namespace millrace
