// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/stacked_views.h>

#include <algorithm>
#include <cstdint>

#include <millrace/runtime/program/op_registry.h>

namespace millrace {
namespace {

using Axes = std::vector<int>;
using Ints = std::vector<std::int64_t>;

constexpr int iteration = StackedView::iteration;
constexpr int one = StackedView::one;

/// Places among `rank` axes, in order; none when one of them is not.
std::optional<std::set<std::size_t>> places(const Ints& axes, std::size_t rank) {
  std::set<std::size_t> found;
  for (const std::int64_t axis : axes) {
    const std::int64_t at = axis < 0 ? axis + static_cast<std::int64_t>(rank) : axis;
    if (at < 0 || std::cmp_greater_equal(at, rank)) return std::nullopt;
    found.insert(static_cast<std::size_t>(at));
  }
  return found;
}

std::optional<Axes> unsqueezed(const Axes& axes, const Ints& where) {
  const auto put_in = places(where, axes.size() + where.size());
  if (!put_in || put_in->size() != where.size()) return std::nullopt;
  Axes made;
  for (std::size_t i = 0, from = 0; i < axes.size() + where.size(); ++i) made.push_back(put_in->contains(i) ? one : axes[from++]);
  return made;
}

std::optional<Axes> squeezed(const Axes& axes, const Ints& where) {
  const auto taken = places(where, axes.size());
  if (!taken) return std::nullopt;
  Axes made;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (!taken->contains(i))
      made.push_back(axes[i]);
    else if (axes[i] != one)
      return std::nullopt;
  }
  return made;
}

std::optional<Axes> transposed(const Axes& axes, const Ints& perm) {
  if (perm.size() != axes.size()) return std::nullopt;
  Axes made;
  for (const std::int64_t axis : perm) {
    const auto at = places({axis}, axes.size());
    if (!at) return std::nullopt;
    made.push_back(axes[*at->begin()]);
  }
  return made;
}

/// Extents that stay (0), or −1 for the last axes, which are one and any number of extent 1.
std::optional<Axes> reshaped(const Axes& axes, const Ints& shape) {
  Axes made;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0 && i < axes.size()) {
      made.push_back(axes[i]);
      continue;
    }
    if (shape[i] != -1 || i + 1 != shape.size() || i > axes.size()) return std::nullopt;
    Axes rest(axes.begin() + static_cast<std::ptrdiff_t>(i), axes.end());
    std::erase(rest, one);
    if (rest.size() > 1) return std::nullopt;
    made.push_back(rest.empty() ? one : rest[0]);
    return made;
  }
  return made.size() == axes.size() ? std::optional(made) : std::nullopt;
}

void add_written(const Program& program, const Block& block, std::set<VarId>& found) {
  for (const Op& op : block.ops) {
    const auto& stores = program.registry().at(op.type).stores;
    if (stores) found.insert(op.inputs[stores->first]);
    for (const char* attribute : {"sub_block", "then_block", "else_block"})
      if (op.attributes.has(attribute)) add_written(program, program.block(op.attributes.get<BlockId>(attribute).index), found);
  }
}

}  // namespace

std::set<VarId> written_arrays(const Program& program, const Op& loop) {
  std::set<VarId> found;
  add_written(program, program.block(loop.attributes.get<BlockId>("sub_block").index), found);
  return found;
}

StackedViews::StackedViews(const Program& program) {
  for (const Op& op : program.block(0).ops) follow(program, op);
}

const StackedView* StackedViews::find(VarId var) const {
  const auto found = views_.find(var);
  return found == views_.end() ? nullptr : &found->second;
}

void StackedViews::follow(const Program& program, const Op& op) {
  if (op.type == "tensor_array") {
    const bool open = op.attributes.has("window") || op.attributes.get_or("growable", false);
    const bool ordered = op.inputs.size() > 1 && op.inputs[1] != no_var;
    const VarType& type = program.var(op.outputs[0]).type;
    if (!open && !ordered && !op.inputs.empty() && op.inputs[0] != no_var && type.shape && type.lod_depth == 0)
      fixed_.insert(op.outputs[0]);
    return;
  }
  if (op.type == "tensor_array_stack" && fixed_.contains(op.inputs[0])) {
    const int rank = program.var(op.inputs[0]).type.rank();
    Axes axes;
    for (int axis = 0; axis < rank; ++axis) axes.push_back(axis);
    const auto at = places({op.attributes.get_or("axis", std::int64_t{0})}, axes.size() + 1);
    if (!at) return;
    axes.insert(axes.begin() + static_cast<std::ptrdiff_t>(*at->begin()), iteration);
    views_[op.outputs[0]] = {op.inputs[0], std::move(axes)};
    return;
  }
  const StackedView* from = op.inputs.empty() || op.inputs[0] == no_var ? nullptr : find(op.inputs[0]);
  if (from == nullptr) return;
  if (std::optional<Axes> axes = moved(program, op, from->axes)) views_[op.outputs[0]] = {from->array, std::move(*axes)};
}

std::optional<Axes> StackedViews::moved(const Program& program, const Op& op, const Axes& axes) const {
  const Attributes& attributes = op.attributes;
  if (op.type == "unsqueeze") return unsqueezed(axes, attributes.get_or("axes", Ints{}));
  if (op.type == "squeeze" && attributes.has("axes")) return squeezed(axes, attributes.get<Ints>("axes"));
  if (op.type == "transpose" && attributes.has("perm")) return transposed(axes, attributes.get<Ints>("perm"));
  if (op.type == "reshape") return reshaped(axes, attributes.get_or("shape", Ints{}));
  if (op.type == "cast" && program.var(op.inputs[0]).type.dtype == program.var(op.outputs[0]).type.dtype) return axes;
  if (program.registry().at(op.type).traits.forwards) return axes;
  return std::nullopt;
}

bool StackedViews::shows_slots(const StackedView& view, int axis) {
  Axes rest = view.axes;
  const int at = axis < 0 ? axis + static_cast<int>(rest.size()) : axis;
  if (at < 0 || std::cmp_greater_equal(at, rest.size()) || rest[static_cast<std::size_t>(at)] != iteration) return false;
  rest.erase(rest.begin() + at);
  for (std::size_t i = 0; i < rest.size(); ++i)
    if (std::cmp_not_equal(rest[i], i)) return false;
  return true;
}

bool StackedViews::reads_extents(const Program& program, const Op& op, std::size_t input) {
  return program.registry().at(op.type).traits.reads_extents(input);
}

std::set<VarId> StackedViews::behind(const Program& program, const LoopGroup& group) const {
  const std::vector<Op>& ops = program.block(0).ops;
  std::set<VarId> written;
  for (const std::size_t loop : group) written.merge(written_arrays(program, ops[loop]));
  std::set<VarId> found;
  for (const Op& op : ops) {
    const bool stacks = op.type == "tensor_array_stack" && written.contains(op.inputs[0]);
    if (stacks || std::any_of(op.inputs.begin(), op.inputs.end(), [&](VarId input) { return found.contains(input); }))
      found.insert(op.outputs.begin(), op.outputs.end());
  }
  return found;
}

}  // namespace millrace
