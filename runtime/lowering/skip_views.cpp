// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/skip_views.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <millrace/runtime/lowering/internal/renamer.h>
#include <millrace/runtime/lowering/stacked_views.h>
#include <millrace/runtime/program/op_registry.h>

namespace millrace {
namespace {

using Ints = std::vector<std::int64_t>;

class Skipper {
 public:
  explicit Skipper(Program& program) : program_(program), views_(program), same_(program) {}

  void run() {
    bool changed = false;
    for (Op& op : program_.block(0).ops) {
      same_.apply(op);
      if (op.type == "tensor_array_stack" && op.attributes.get_or("axis", std::int64_t{0}) == 0)
        stacks_.emplace(op.inputs[0], op.outputs[0]);
      changed = skip(op) || undo(op) || join(op) || changed;
      for (const VarId output : op.outputs) makers_[output] = &op;
    }
    if (changed) same_.apply();
  }

 private:
  const Op* maker(VarId var, const char* type) const {
    const auto found = makers_.find(var);
    return found == makers_.end() || found->second->type != type ? nullptr : found->second;
  }

  /// A view that shows a stack as it is.
  bool skip(Op& op) {
    if (!program_.registry().at(op.type).traits.view || op.outputs.size() != 1) return false;
    const StackedView* const view = views_.find(op.outputs[0]);
    if (view == nullptr) return false;
    const auto stack = stacks_.find(view->array);
    if (stack == stacks_.end() || !in_order(view->axes)) return false;
    return program_.var(stack->second).type == program_.var(op.outputs[0]).type && put_in_place(op, stack->second);
  }
  static bool in_order(const std::vector<int>& axes) {
    if (axes.empty() || axes[0] != StackedView::iteration) return false;
    for (std::size_t i = 1; i < axes.size(); ++i)
      if (axes[i] != static_cast<int>(i) - 1) return false;
    return true;
  }
  /// Readers of the op's output read `var`, which holds the same.
  bool put_in_place(Op& op, VarId var) {
    if (!is_output(program_, op.outputs[0])) {
      same_.rename(op.outputs[0], var);
    } else {
      op = Op{"identity", {var}, op.outputs, {}, op.label};
    }
    return true;
  }

  /// A view of a view that shows what the first one saw.
  bool undo(Op& op) {
    if (op.type != "reshape" && op.type != "transpose") return false;
    const Op* const before = maker(op.inputs[0], op.type.c_str());
    if (before == nullptr || op.inputs.size() != 1 || before->inputs.size() != 1) return false;
    const VarId seen = before->inputs[0];
    const VarType &from = program_.var(seen).type, &to = program_.var(op.outputs[0]).type;
    if (from.lod_depth > 0 || from.rank() < 0 || from.rank() != to.rank()) return false;
    return (op.type == "transpose" ? turns_back(*before, op, from.rank()) : keeps_rows(from, program_.var(op.inputs[0]).type, to)) &&
           put_in_place(op, seen);
  }
  static bool turns_back(const Op& first, const Op& second, int rank) {
    const auto axis = [&](const Op& op, std::int64_t i) {
      const Ints perm = op.attributes.get_or("perm", Ints{});
      if (perm.empty()) return rank - 1 - i;
      return perm[static_cast<std::size_t>(i)] < 0 ? perm[static_cast<std::size_t>(i)] + rank : perm[static_cast<std::size_t>(i)];
    };
    for (std::int64_t i = 0; i < rank; ++i)
      if (axis(first, axis(second, i)) != i) return false;
    return true;
  }
  /// Whether reshapes from `from` to `between` and on to `to` divide rows alone, all of whose extents are known, so that neither can fail.
  static bool keeps_rows(const VarType& from, const VarType& between, const VarType& to) {
    const auto rows = [](const VarType& type) { return type.rank() > 0 ? std::optional(type.shape->erased(0)) : std::nullopt; };
    const std::optional<DDim> row = rows(from), seen = rows(between);
    const auto is_known = [](const DDim& dims) { return std::find(dims.begin(), dims.end(), DDim::unknown) == dims.end(); };
    if (!row || !seen || !is_known(*row) || !is_known(*seen) || row->elements() == 0 || row->elements() != seen->elements()) return false;
    const auto count_stays = [&](const VarType& type) { return (*type.shape)[0] == DDim::unknown || (*type.shape)[0] == (*from.shape)[0]; };
    return rows(to) == row && count_stays(between) && count_stays(to);
  }

  /// Directions beside one another.
  bool join(Op& op) {
    if (op.type != "reshape" || op.inputs.size() != 1) return false;
    const Op* const turned = maker(op.inputs[0], "transpose");
    if (turned == nullptr || turned->attributes.get_or("perm", Ints{}) != Ints{0, 2, 1, 3}) return false;
    const Op* const joined = maker(turned->inputs[0], "concat");
    if (joined == nullptr) return false;
    const auto axis = joined->attributes.get<std::int64_t>("axis");
    if ((axis != 1 && axis != -3) || op.attributes.get<Ints>("shape") != Ints{0, 0, -1}) return false;
    std::vector<VarId> parts;
    std::optional<std::int64_t> width;
    for (const VarId input : joined->inputs) {
      const Op* const direction = maker(input, "unsqueeze");
      if (direction == nullptr || direction->attributes.get<Ints>("axes") != Ints{1}) return false;
      const VarType& type = program_.var(direction->inputs[0]).type;
      // Unlike the views, one concat takes parts of different widths.
      if (!type.shape || type.rank() != 3 || (*type.shape)[2] == DDim::unknown || width.value_or((*type.shape)[2]) != (*type.shape)[2])
        return false;
      width = (*type.shape)[2];
      parts.push_back(direction->inputs[0]);
    }
    Attributes attributes;
    attributes.set("axis", std::int64_t{2});
    op = Op{"concat", std::move(parts), op.outputs, std::move(attributes), op.label};
    return true;
  }

  Program& program_;
  StackedViews views_;
  Renamer same_;
  std::map<VarId, VarId> stacks_;  // by array
  std::map<VarId, const Op*> makers_;
};

}  // namespace

void skip_views(Program& program) { Skipper(program).run(); }

}  // namespace millrace
