// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/executor/run_ports.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <millrace/runtime/executor/feeds.h>
#include <millrace/runtime/task/await_point.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/task/this_task.h>
#include <millrace/tensor/copy.h>

namespace millrace {
namespace {

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

std::string inputs_of(const Program& program) {
  std::string names;
  for (const Program::Port& port : program.inputs()) names += (names.empty() ? "" : ", ") + port.name;
  return names.empty() ? "none" : names;
}

/// A shared result as its caller gets it: a copy where the host can reach the elements, else a read-only view.
Tensor unshared(const Tensor& made) { return made.host_accessible() ? made.copy_to(CpuPlace{}) : made.read_only(); }

}  // namespace

bool RunPorts::arrives(VarId var) const {
  const auto& inputs = state_->program().inputs();
  return exchanges() &&
         std::any_of(inputs.begin(), inputs.end(), [&](const Program::Port& port) { return port.var == var && arrives(port.name); });
}

bool RunPorts::any_arrives(const std::set<VarId>& vars) const {
  return std::any_of(vars.begin(), vars.end(), [this](VarId var) { return arrives(var); });
}

bool RunPorts::leaves(VarId var) const {
  const auto& outputs = state_->program().outputs();
  return exchanges() && std::any_of(outputs.begin(), outputs.end(),
                                    [&](const Program::Port& port) { return port.var == var && exchange_->takes(port.name); });
}

void RunPorts::feed(const Feeds& feeds) {
  const Program& program = state_->program();
  for (const auto& [name, value] : feeds) {
    bool known = false;
    for (const Program::Port& port : program.inputs()) known = known || port.name == name;
    if (!known && program.constant(program.find_var(name)) != nullptr)
      throw ArgumentError(fmt::format(
          "run: the program '{}' has no input '{}', which has a default value in the model, taken as a constant", program.title(), name));
    if (!known)
      throw ArgumentError(fmt::format("run: the program '{}' has no input '{}': expected {}", program.title(), name, inputs_of(program)));
  }
  for (const Program::Port& port : program.inputs()) {
    const auto fed = feeds.find(port.name);
    if (fed == feeds.end() && arrives(port.name)) continue;
    const Value value = fed == feeds.end() ? Value() : fed->second;
    take_input(port, value);
    const auto note = [this](const Tensor& given) {
      if (!given.is_read_only()) fed_.insert(given.storage().get());
    };
    if (value.is_tensor()) note(value.tensor().tensor());
    if (value.is_list()) std::for_each(value.list().elements().begin(), value.list().elements().end(), note);
  }
}

void RunPorts::take_input(const Program::Port& port, const Value& value) {
  check_feed(port.name, state_->program().var(port.var).type, value);
  const CompiledProgram& compiled = state_->compiled();
  const bool on_host = compiled.on_host.at(static_cast<std::size_t>(port.var));
  state_->root()->set(compiled.index_of(port.var), on_host ? place(value, CpuPlace{}, state_->host_stream())
                                                           : place(value, compiled.device->place(), state_->device().stream(0)));
}

bool RunPorts::is_shared(const Tensor& made) const {
  const Allocation* const storage = made.storage().get();
  return fed_.contains(storage) || (state_->extent_values() != nullptr && state_->extent_values()->holds(storage));
}

/// Outputs are handed out when they are there, so that an error on a stream surfaces here.
task<RunResult> RunPorts::collect() {
  std::vector<std::pair<std::string, Value>> outputs;
  for (const Program::Port& port : state_->program().outputs()) {
    if (exchange_ != nullptr && exchange_->takes(port.name)) continue;
    Value value = *state_->find(port.var, *state_->root());
    if (value.is_tensor()) {
      const Point point = value.tensor().ready();
      co_await ready(point);
      const Tensor& given = value.tensor().tensor();
      if (is_shared(given)) value = Value(LoDTensor(unshared(given), value.tensor().lod()));
    }
    if (value.is_list()) {
      const auto& all = value.list().elements();
      for (const Tensor& element : all) {
        const Point point = element.ready();
        co_await ready(point);
      }
      if (std::any_of(all.begin(), all.end(), [this](const Tensor& element) { return is_shared(element); })) {
        std::vector<Tensor> elements;
        for (const Tensor& element : all) elements.push_back(is_shared(element) ? unshared(element) : element);
        value = Value(TensorList(std::move(elements)));
      }
    }
    outputs.emplace_back(port.name, std::move(value));
  }
  co_return state_->take_result(std::move(outputs));
}

void RunPorts::start(Executor& executor, Scope& scope) {
  if (exchange_ == nullptr) return;
  const Program& program = state_->program();
  for (const Program::Port& port : program.inputs())
    if (arrives(port.name) && !state_->root()->has(state_->compiled().index_of(port.var)))
      scope.spawn_on(executor, receive(shared_from_this(), port), fmt::format("'{}' to arrive", port.name));
  for (const Program::Port& port : program.outputs())
    if (exchange_->takes(port.name)) scope.spawn_on(executor, send(shared_from_this(), port), fmt::format("'{}' to leave", port.name));
}

task<void> RunPorts::receive(std::shared_ptr<RunPorts> ports, Program::Port port) {
  TaskInfo& me = co_await this_task::info();
  Scope rest(me);
  std::exception_ptr failed;
  try {
    const Value value = co_await ports->exchange_->receive(port.name, &rest);
    ports->take_input(port, value);
  } catch (...) {
    failed = std::current_exception();
    // A task that was cancelled along with the run must not blame the value.
    if (!me.cancelled())
      ports->state_->root()->fail(ports->state_->compiled().index_of(port.var), ports->state_->compiled().name_of(port.var), failed);
  }
  if (failed != nullptr) rest.fail(failed);
  co_await rest.join();
}

task<void> RunPorts::send(std::shared_ptr<RunPorts> ports, Program::Port port) {
  TaskInfo& me = co_await this_task::info();
  co_await ports->state_->wait_for(port.var, ports->state_->root());
  Value value = *ports->state_->find(port.var, *ports->state_->root());
  Scope rest(me);
  std::exception_ptr failed;
  try {
    co_await ports->exchange_->send(port.name, std::move(value), &rest);
  } catch (...) {
    failed = std::current_exception();
  }
  if (failed != nullptr) rest.fail(failed);
  co_await rest.join();
}

}  // namespace millrace
