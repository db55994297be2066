// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/executor/pending_value.h>

#include <utility>

#include <fmt/format.h>

#include <millrace/runtime/executor/run_state.h>
#include <millrace/runtime/task/await_point.h>
#include <millrace/runtime/task/this_task.h>

namespace millrace {
namespace {

task<void> forward(PendingValue from, std::shared_ptr<VarScope> to, std::size_t index) {
  TaskInfo& me = co_await this_task::info();
  try {
    co_await from.scope->gate(from.index, *from.name).wait();
  } catch (...) {
    if (!is_cut_off(me)) to->fail(index, *from.name, std::current_exception());
    throw;
  }
  to->set(index, from.scope->get(from.index));
}

}  // namespace

void deliver(PendingValue from, const std::shared_ptr<VarScope>& to, std::size_t index, Scope& tasks) {
  if (from.scope == nullptr) return to->set(index, std::move(from.value));
  if (from.scope->has(from.index)) return to->set(index, from.scope->get(from.index));
  std::string name = "carried " + *from.name;
  tasks.spawn(forward(std::move(from), to, index), std::move(name));
}

void set_or_link(PendingValue from, VarScope& to, std::size_t index) {
  if (from.scope == nullptr) return to.set(index, std::move(from.value));
  if (const Value* value = from.scope->find(from.index)) return to.set(index, *value);
  to.link(index, std::move(from.scope), from.index);
}

bool is_known(const Value& condition) { return condition.tensor().ready().reached(); }

bool known_truth(const Value& condition, std::string_view what) {
  const Tensor& tensor = condition.tensor().tensor();
  if (tensor.dtype() != DType::boolean || tensor.elements() != 1)
    throw ShapeError(fmt::format("{}: expected a boolean of one element, found {}", what, tensor.to_string()));
  if (tensor.host_accessible()) return *tensor.data<bool>();
  return *tensor.copy_to(CpuPlace{}).data<bool>();
}

task<bool> truth(PendingValue condition, std::string what) {
  if (condition.scope != nullptr) {
    co_await condition.scope->gate(condition.index, *condition.name).wait();
    condition.value = condition.scope->get(condition.index);
  }
  const Point point = condition.value.tensor().ready();
  co_await ready(point);
  co_return known_truth(condition.value, what);
}

}  // namespace millrace
