// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/executor/var_scope.h>

#include <algorithm>

namespace millrace {

VarScope::VarScope(std::shared_ptr<VarScope> parent, std::size_t vars, int block, std::int64_t turn, std::shared_ptr<Count> count)
    : parent_(std::move(parent)), cells_(vars), block_(block), turn_(turn), count_(std::move(count)) {
  if (turn_ < 0) return;
  ++count_->live;
  count_->peak = std::max(count_->peak, count_->live);
}

VarScope::~VarScope() {
  if (turn_ >= 0) --count_->live;
}

void VarScope::set(std::size_t var, Value value) {
  Cell& cell = cells_[var];
  cell.value = std::move(value);
  cell.set = true;
  if (cell.gate) cell.gate->open();
}

Gate& VarScope::gate(std::size_t var, const std::string& name) {
  Cell& cell = cells_[var];
  if (!cell.gate) cell.gate = std::make_unique<Gate>("var '" + name + "'");
  return *cell.gate;
}

}  // namespace millrace
