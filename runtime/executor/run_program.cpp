// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/executor/run_program.h>

#include <fmt/format.h>

#include <millrace/runtime/executor/program_run.h>
#include <millrace/runtime/executor/run_exchange.h>
#include <millrace/runtime/task/await_point.h>
#include <millrace/runtime/task/deadline.h>
#include <millrace/runtime/task/this_task.h>
#include <millrace/tensor/pool.h>

namespace millrace {
namespace {

std::string names_of(const std::vector<std::pair<std::string, Value>>& outputs) {
  std::string names;
  for (const auto& [name, value] : outputs) names += (names.empty() ? "" : ", ") + name;
  return names;
}

/// Feeds that another place still makes are awaited here: a failure there is this run's, not that of a stream which other runs use too.
std::vector<Point> made_elsewhere(const Feeds& feeds, const Place& here) {
  std::vector<Point> points;
  const auto add = [&](const Tensor& tensor) {
    if (tensor.storage() == nullptr) return;  // moved from: the check of the feed says so
    if (tensor.place() != here && !tensor.ready().reached()) points.push_back(tensor.ready());
  };
  for (const auto& [name, value] : feeds) {
    if (value.is_tensor()) add(value.tensor().tensor());
    if (value.is_list())
      for (const Tensor& element : value.list().elements()) add(element);
  }
  return points;
}

task<RunResult> run_now(Executable executable, Feeds feeds, RunOptions options, std::shared_ptr<RunExchange> exchange) {
  TaskInfo& me = co_await this_task::info();
  if (options.tracer == nullptr) options.tracer = me.tracer();
  const std::vector<Point> elsewhere = made_elsewhere(feeds, executable.device().place());
  for (const Point& point : elsewhere) co_await ready(point);
  const auto program_run = make_pooled<ProgramRun>(std::move(executable), options, std::move(exchange));
  program_run->feed(feeds);
  feeds.clear();
  try {
    RunResult result = co_await ProgramRun::run(program_run, &me.executor());
    co_return std::move(result);
  } catch (const OutOfMemoryError&) {
    program_run->forget_extent_values();
    throw;
  } catch (const std::bad_alloc&) {
    program_run->forget_extent_values();
    throw;
  }
}

}  // namespace

const Value& RunResult::value(const std::string& name) const {
  for (const auto& [held, value] : outputs_)
    if (held == name) return value;
  throw IndexError(fmt::format("run result: expected one of the outputs {}, found '{}'", names_of(outputs_), name));
}

const Value* RunResult::step_value(int block, std::int64_t iteration, const std::string& var) const {
  const VarId id = executable_ ? executable_->program().find_var(var) : no_var;
  if (id == no_var || executable_->program().var(id).block != block) return nullptr;
  const std::size_t index = executable_->compiled().index_of(id);
  if (index == CompiledProgram::unset) return nullptr;
  for (const auto& scope : step_scopes_)
    if (scope->block() == block && scope->iteration() == iteration && scope->has(index)) return &scope->get(index);
  return nullptr;
}

task<RunResult> run(Executable executable, Feeds feeds, RunOptions options) {
  return run(std::move(executable), std::move(feeds), options, nullptr);
}

task<RunResult> run(Executable executable, Feeds feeds, RunOptions options, std::shared_ptr<RunExchange> exchange) {
  const std::optional<Duration> deadline = options.deadline;
  task<RunResult> work = run_now(std::move(executable), std::move(feeds), options, std::move(exchange));
  if (!deadline) {
    RunResult result = co_await std::move(work);
    co_return std::move(result);
  }
  RunResult result = co_await with_deadline(*deadline, std::move(work));
  co_return std::move(result);
}

task<RunResult> run(Program program, Feeds feeds, RunOptions options) {
  Executable executable(std::move(program));
  RunResult result = co_await run(executable, std::move(feeds), options);
  co_return std::move(result);
}

}  // namespace millrace
