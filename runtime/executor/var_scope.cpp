// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/executor/var_scope.h>

#include <algorithm>
#include <new>

namespace millrace {

VarScope::VarScope(std::shared_ptr<VarScope> parent, std::size_t vars, int block, std::int64_t iteration, std::shared_ptr<Count> count)
    : parent_(std::move(parent)), cells_(vars), block_(block), iteration_(iteration), count_(std::move(count)) {
  if (iteration_ < 0) return;
  ++count_->live;
  count_->peak = std::max(count_->peak, count_->live);
}

VarScope::~VarScope() {
  if (iteration_ >= 0) --count_->live;
}

void VarScope::begin_iteration(std::int64_t iteration) {
  for (Cell& cell : cells_) {
    if (!cell.value.empty()) cell.value = Value();
    cell.link = Link();
    cell.set = false;
    cell.gate.reset();
  }
  iteration_ = iteration;
}

void VarScope::set(std::size_t var, Value&& value) {
  Cell& cell = cells_[var];
  cell.value = std::move(value);
  cell.set = true;
  if (cell.gate) cell.gate->open();
}

const Value* VarScope::find(std::size_t var) {
  Cell& cell = cells_[var];
  if (cell.set) return &cell.value;
  if (cell.link.scope == nullptr) return nullptr;
  const Value* value = cell.link.scope->find(cell.link.index);
  if (value == nullptr) return nullptr;
  cell.value = *value;
  cell.set = true;
  cell.link = Link();
  return &cell.value;
}

std::pair<std::shared_ptr<VarScope>, std::size_t> VarScope::origin(std::size_t var) {
  const Link& link = cells_[var].link;
  if (link.scope == nullptr) return {shared_from_this(), var};
  return link.scope->origin(link.index);
}

Gate& VarScope::gate(std::size_t var, const std::string& name) {
  Cell& cell = cells_[var];
  if (cell.link.scope != nullptr) return cell.link.scope->gate(cell.link.index, name);
  if (!cell.gate) {
    cell.gate = std::make_unique<Gate>("var '" + name + "'");
    if (cell.set) cell.gate->open();
  }
  return *cell.gate;
}

std::shared_ptr<VarScope> ScopePool::take(std::shared_ptr<VarScope::Count> count) {
  std::shared_ptr<VarScope> scope;
  {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_shared<VarScope>(nullptr, vars_, 0, -1, std::move(count));
    scope = std::move(free_.back());
    free_.pop_back();
  }
  scope->begin_run(std::move(count));
  return scope;
}

void ScopePool::give_back(std::shared_ptr<VarScope> scope) noexcept {
  if (scope == nullptr || scope.use_count() > 1) return;
  scope->leave();
  try {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(scope));
  } catch (const std::bad_alloc&) {  // the next run makes another
    return;
  }
}

}  // namespace millrace
