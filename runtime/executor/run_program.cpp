// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/executor/run_program.h>

#include <fmt/format.h>

#include <millrace/runtime/executor/program_run.h>
#include <millrace/runtime/executor/run_exchange.h>
#include <millrace/runtime/task/await_point.h>
#include <millrace/runtime/task/deadline.h>
#include <millrace/runtime/task/this_task.h>
#include <millrace/runtime/trace/tracer.h>
#include <millrace/tensor/copy.h>

namespace millrace {
namespace {

std::string names_of(const std::vector<std::pair<std::string, Value>>& outputs) {
  std::string names;
  for (const auto& [name, value] : outputs) names += (names.empty() ? "" : ", ") + name;
  return names;
}

/// What a fed value is, as a type: for the comparison with what the program declares.
VarType type_of(const Value& value) {
  if (value.is_tensor()) return VarType(value.tensor().dtype(), value.tensor().dims(), value.tensor().lod().depth());
  if (value.is_list())
    return value.list().size() > 0 ? VarType::list_of(type_of(Value(value.list().at(0)))) : VarType::empty_list(DType::f32);
  return value.is_array() ? VarType::open_array(value.array().order().has_value()) : VarType::order();
}

void check_feed(const std::string& name, const VarType& wanted, const Value& value);

void check_list(const std::string& name, const VarType& wanted, const Value& value) {
  if (!value.is_list())
    throw ArgumentError(fmt::format("run: input '{}': expected {}, found {}", name, wanted.to_string(), type_of(value).to_string()));
  if (wanted.empty && value.list().size() > 0)
    throw ShapeError(fmt::format("run: input '{}': expected {}, found {}", name, wanted.to_string(), value.list().to_string()));
  for (std::int64_t i = 0; i < value.list().size(); ++i)
    check_feed(fmt::format("{}[{}]", name, i), wanted.element(), Value(value.list().at(i)));
}

void check_feed(const std::string& name, const VarType& wanted, const Value& value) {
  if (wanted.is_optional() && value.empty()) return;
  if (wanted.is_optional()) return check_feed(name, wanted.held(), value);
  if (value.empty()) throw ArgumentError(fmt::format("run: input '{}': expected {}, found nothing", name, wanted.to_string()));
  if (wanted.is_list()) return check_list(name, wanted, value);
  const VarType found = type_of(value);
  const std::string message = fmt::format("run: input '{}': expected {}, found {}", name, wanted.to_string(), found.to_string());
  if (found.kind != wanted.kind) throw ArgumentError(message);
  if (wanted.kind != VarKind::tensor) return;
  if (found.dtype != wanted.dtype) throw DTypeError(message);
  if (found.lod_depth != wanted.lod_depth) throw LoDError(message);
  if (!fits(found, wanted)) throw ShapeError(message);
}

Value place(const Value& value, const Place& wanted, StreamRef stream) {
  if (value.is_list()) {
    std::vector<Tensor> elements;
    for (const Tensor& element : value.list().elements()) elements.push_back(place(Value(element), wanted, stream).tensor().tensor());
    return TensorList(std::move(elements));
  }
  if (!value.is_tensor() || value.tensor().place() == wanted) return value;
  const LoDTensor& from = value.tensor();
  // Small integers that steer loops: a stream of the host's reaches no device.
  if (wanted.is_cpu() && !from.tensor().host_accessible()) return LoDTensor(from.tensor().copy_to(CpuPlace{}), from.lod());
  return LoDTensor(clone(from.tensor(), stream), from.lod());
}

/// What another place still makes is awaited here: a failure there is this run's, not that of a stream which other runs use too.
std::vector<Point> made_elsewhere(const Feeds& feeds, const Place& here) {
  std::vector<Point> points;
  const auto add = [&](const Tensor& tensor) {
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
  auto state = std::make_shared<ProgramRun>(std::move(executable), options, std::move(exchange));
  state->feed(feeds);
  feeds.clear();
  co_await state->run_on(me.executor());
  RunResult result = co_await state->collect();
  co_return std::move(result);
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
  const std::size_t index = executable_->index_of(id);
  for (const auto& scope : step_scopes_)
    if (scope->block() == block && scope->iteration() == iteration && scope->has(index)) return &scope->get(index);
  return nullptr;
}

void ProgramRun::feed(const Feeds& feeds) {
  const Program& program = executable_.program();
  root_ = std::make_shared<VarScope>(nullptr, executable_.block(0).vars, 0, -1, count_);
  for (const auto& [name, value] : feeds) {
    bool known = false;
    for (const Program::Port& port : program.inputs()) known = known || port.name == name;
    if (!known) throw ArgumentError(fmt::format("run: the program '{}' has no input '{}'", program.title(), name));
  }
  for (const Program::Port& port : program.inputs()) {
    const auto fed = feeds.find(port.name);
    if (fed == feeds.end() && arrives(port.name)) continue;
    take_input(port, fed == feeds.end() ? Value() : fed->second);
  }
}

void ProgramRun::take_input(const Program::Port& port, const Value& value) {
  check_feed(port.name, executable_.program().var(port.var).type, value);
  Device& device = executable_.device();
  const bool on_host = executable_.on_host(port.var);
  root_->set(executable_.index_of(port.var),
             on_host ? place(value, CpuPlace{}, executable_.host_stream()) : place(value, device.place(), device.stream(0)));
}

/// Outputs are handed out when they are there, so that an error on a stream surfaces here.
task<RunResult> ProgramRun::collect() {
  const Program& program = executable_.program();
  for (const Program::Port& port : program.outputs()) {
    if (exchange_ != nullptr && exchange_->takes(port.name)) continue;
    const Tensor* constant = program.constant(port.var);
    Value value = constant != nullptr ? Value(*constant) : root_->get(executable_.index_of(port.var));
    if (value.is_tensor()) {
      const Point point = value.tensor().ready();
      co_await ready(point);
    }
    if (value.is_list()) {
      for (const Tensor& element : value.list().elements()) {
        const Point point = element.ready();
        co_await ready(point);
      }
    }
    result_.outputs_.emplace_back(port.name, std::move(value));
  }
  root_.reset();
  result_.count_ = count_;
  if (options_.keep_step_scopes) result_.executable_ = executable_;
  co_return std::move(result_);
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
