// SPDX-License-Identifier: Apache-2.0
// How ProgramRun runs a loop as a graph of its device.
#include <millrace/runtime/executor/program_run.h>

#include <fmt/format.h>

#include <millrace/runtime/loops/cuda_graph/captured_loop.h>
#include <millrace/runtime/task/await_point.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/trace/tracer.h>

namespace millrace {

std::shared_ptr<CapturedLoop> CapturedGraphs::get(const Program& program, int block, const Op& loop, const std::shared_ptr<Device>& device,
                                                  std::size_t stream) {
  std::call_once(once_, [&] {
    try {
      loop_ = std::make_shared<CapturedLoop>(program, block, loop, device, stream);
    } catch (const Error& error) {
      reason_ = error.what();
    }
  });
  return loop_;
}

/// The graphs of a loop, where this run may use them.
std::shared_ptr<CapturedLoop> ProgramRun::captured_loop(const CompiledOp& op, const VarScope& scope) {
  if (!one_piece() || options_.backend == Backend::fused) return nullptr;
  if (op.captured == nullptr) {
    if (options_.backend == Backend::captured) why_[&op] = "there are no graphs of kernels on " + executable_.device().place().to_string();
    return nullptr;
  }
  std::shared_ptr<CapturedLoop> loop =
      op.captured->get(executable_.program(), scope.block(), *op.op, executable_.shared_device(), op.stream);
  if (loop == nullptr) why_[&op] = op.captured->reason();
  return loop;
}

namespace {

/// Null, and why, when the loop has to run iteration by iteration. What is wrong with the values, it says better there.
std::unique_ptr<CapturedLoop::Run> prepared(CapturedLoop& loop, FusedOperands operands, std::string& why) {
  try {
    return loop.prepare(std::move(operands));
  } catch (const Error& error) {
    why = error.what();
    return nullptr;
  }
}

}  // namespace

/// False when the loop has to run iteration by iteration after all.
task<bool> ProgramRun::run_captured(std::shared_ptr<ProgramRun> run, const CompiledOp* op, ScopePtr scope) {
  const std::shared_ptr<CapturedLoop> loop = run->captured_loop(*op, *scope);
  if (loop == nullptr) co_return false;
  const std::vector<std::unique_ptr<FusedRun>> none;
  FusedOperands operands = co_await fused_operands(run, &loop->form(), op, scope, Beside{&none, nullptr}, Slots::all_on_device);
  const std::int64_t limit = op->op->attributes.get_or<std::int64_t>("max_trips", -1);
  if (operands.iterations <= 0 || (limit >= 0 && operands.iterations > limit)) co_return false;
  const std::shared_ptr<CapturedLoop::Run> ready = prepared(*loop, std::move(operands), run->why_[op]);
  if (ready == nullptr) co_return false;
  run->why_.erase(op);
  const TraceSpan span(run->options_.tracer, "loop", run->name_of(*op) + ", captured", run->track(*op, *scope), scope->iteration());
  std::vector<SlotValue> last = ready->start();
  co_await finish_loop(run, &loop->form(), op, scope, std::move(last), ready->iterations());
  ++run->result_.captured_loops;
  run->whole_->spawn(watch_captured(ready), run->name_of(*op) + ", captured");
  co_return true;
}

/// Nobody waits for a loop's end that goes on by itself; but a run that is given up takes it along, and one whose values nobody reads hears
/// of its errors.
task<void> ProgramRun::watch_captured(std::shared_ptr<CapturedLoop::Run> loop) {
  const Point done = loop->done();
  try {
    co_await millrace::ready(done);
  } catch (const CancelledError&) {
    loop->cancel();
    throw;
  }
}

/// A loop runs iteration by iteration: the trace and the result say why, if something else was to be tried.
void ProgramRun::note_iteration_by_iteration(const CompiledOp& op, const VarScope& scope) {
  const auto found = why_.find(&op);
  if (found == why_.end() || found->second.empty()) return;
  const std::string line = fmt::format("{} runs iteration by iteration, because {}", name_of(op), found->second);
  why_.erase(found);
  if (options_.backend_required)
    throw UnsupportedError(fmt::format("backend {}: expected every loop to run so, but {}", millrace::name_of(options_.backend), line));
  result_.iteration_by_iteration.insert(line);
  if (options_.tracer != nullptr) options_.tracer->instant("backend", line, track(op, scope), scope.iteration());
}

}  // namespace millrace
