// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/executor/program_run.h>

#include <string>
#include <utility>

#include <millrace/runtime/task/strand.h>
#include <millrace/runtime/task/this_task.h>
#include <millrace/runtime/trace/tracer.h>
#include <millrace/tensor/pool.h>

namespace millrace {
namespace {

/// Whether somebody looks at iterations, or says how loops run.
bool asks_for_loops(const RunOptions& options) {
  return options.keep_step_scopes || options.backend != Backend::automatic || (options.tracer != nullptr && options.tracer->records());
}

}  // namespace

ProgramRun::ProgramRun(Executable executable, RunOptions options, std::shared_ptr<RunExchange> exchange)
    : state_(make_pooled<RunState>(asks_for_loops(options) ? executable.with_loops() : std::move(executable), options)),
      ports_(make_pooled<RunPorts>(state_, std::move(exchange))),
      walker_(make_pooled<BlockWalker>(state_, make_pooled<OpRunner>(state_), make_pooled<LoopRunner>(state_, ports_))) {}

/// Whether the run begins in the calling task: nobody looks at its tasks in a trace, and no value comes from another rank.
bool ProgramRun::at_once() const {
  return state_->options().tracer == nullptr && !ports_->exchanges() && state_->compiled().device->place().is_cpu();
}

task<RunResult> ProgramRun::run(std::shared_ptr<ProgramRun> self, Executor* executor) {
  TaskInfo& me = co_await this_task::info();
  if (self->at_once()) {
    co_await this_task::checkpoint();
    if (self->walker_->walk_at_once(me)) {
      RunResult result = co_await self->ports_->collect();
      co_return std::move(result);
    }
  }
  const std::shared_ptr<Strand> strand = executor->serial() ? nullptr : Strand::on(*executor);
  Executor& one_at_a_time = strand ? static_cast<Executor&>(*strand) : *executor;
  {
    Scope scope(me);
    self->state_->whole = &scope;
    self->ports_->start(one_at_a_time, scope);
    std::string name = self->state_->program().title();
    scope.spawn_on(one_at_a_time, BlockWalker::run_program(self->walker_), std::move(name));
    co_await scope.join();
  }
  RunResult result = co_await self->ports_->collect();
  co_return std::move(result);
}

}  // namespace millrace
