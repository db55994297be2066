// SPDX-License-Identifier: Apache-2.0
// How loops in one piece pass slots on to other ranks, and take theirs, while they run.
#include <millrace/runtime/executor/program_run.h>

#include <algorithm>

#include <fmt/format.h>

#include <millrace/runtime/loops/cpu_fused/wavefront.h>
#include <millrace/runtime/task/await_point.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/task/this_task.h>
#include <millrace/runtime/trace/tracer.h>

namespace millrace {
namespace {

/// Tasks of this thread that a message goes through, one behind the other: iterations would keep them waiting.
constexpr int tasks_of_a_message = 6;

}  // namespace

/// Whether somebody on another rank waits for slots of the loop, or makes what it reads.
bool ProgramRun::passes_slots(const CompiledOp& op, const VarScope& scope) {
  if (exchange_ == nullptr) return false;
  const std::shared_ptr<const FusedLoop> loop = fused_form(op, scope);
  if (loop == nullptr) return false;
  const LoopForm& form = loop->form();
  return std::any_of(form.inputs.begin(), form.inputs.end(), [&](const auto& input) { return arrives_slot_by_slot(input.array); }) ||
         std::any_of(form.outputs.begin(), form.outputs.end(), [&](const auto& output) { return leaves_slot_by_slot(output.array); });
}

/// Waits until slots are issued. One that does not come, the loop says better iteration by iteration.
task<bool> ProgramRun::slots_there(std::vector<std::pair<TensorArray, std::int64_t>> slots) {
  try {
    for (const auto& slot : slots) co_await slot.first.read(slot.second);
  } catch (const CancelledError&) {
    throw;
  } catch (const Error&) {
    co_return false;
  }
  co_return true;
}

/// Waits for what the next iteration needs, and takes what is there of those before `end`.
task<bool> ProgramRun::bind_next(FusedRun* fused, std::int64_t end, StreamRef stream) {
  const bool there = co_await slots_there(fused->next_slots());
  co_return there && fused->bind(end, stream);
}

/// As `iteration_fused`, some iterations at a time, so that the loops of several ranks work at once: `runs` in the order in which they feed one another. Ends
/// before the last iteration where what arrives does not fit.
task<void> ProgramRun::pass_slots(std::shared_ptr<ProgramRun> run, const CompiledOp* op, ScopePtr scope,
                                  const std::vector<std::unique_ptr<FusedRun>>* runs, Wavefront* several) {
  const StreamRef stream = run->stream(*op, *scope);
  std::vector<const FusedRun*> all;
  for (const auto& one : *runs) all.push_back(one.get());
  const std::int64_t step = iterations_of_a_run(all);
  const std::string name = run->name_of(*op);
  const std::uint64_t track = run->loop_tracks_.empty() ? 0 : run->loop_tracks_[static_cast<std::size_t>(op->sub_block)];
  for (int task = 0; task < tasks_of_a_message; ++task) co_await this_task::yield();
  for (bool fits = true; fits;) {
    // What feeds the first that is not at its end is at its own.
    const auto left = std::find_if(all.begin(), all.end(), [](const FusedRun* one) { return one->turned() < one->iterations(); });
    if (left == all.end()) co_return;
    const std::int64_t begin = (*left)->turned(), end = begin + step;
    for (const auto& one : *runs) {
      if (!fits || one->turned() >= end) continue;
      fits = co_await bind_next(one.get(), end, stream);
    }
    const std::int64_t last = std::min(end, (*left)->bound()) - 1;
    const TraceSpan span(run->options_.tracer, "iterations", fmt::format("{}, iterations {} to {}", name, begin, last), track, begin);
    if (several != nullptr) {
      while (several->advance(stream, end)) co_await turned(stream);
    } else {
      for (const auto& one : *runs)
        while (one->advance(stream, end)) co_await turned(stream);
    }
    for (const auto& one : *runs) one->publish();
    for (int task = 0; task < tasks_of_a_message; ++task) co_await this_task::yield();
  }
}

}  // namespace millrace
