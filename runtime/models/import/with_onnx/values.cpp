// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/import/with_onnx/values.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include <millrace/runtime/program/fold_constants.h>
#include <millrace/runtime/program/ops/internal/inference.h>
#include <millrace/runtime/program/ops/internal/unary_names.h>

namespace millrace::importing {
namespace {

/// Shapes, axes and pads are short.
constexpr std::int64_t few = 1024;
/// Chains of ops are followed so far.
constexpr int deepest = 64;

/// Ops whose result is not larger than what they read, or than two lists that broadcast.
constexpr std::string_view followed[] = {
    "gather",  "slice",      "slice_by",  "concat", "split",         "cast",  "identity",    "reshape",    "reshape_to", "squeeze",
    "flatten", "unsqueeze",  "add",       "sub",    "mul",           "div",   "mod",         "neg",        "minimum",    "maximum",
    "abs",     "floor",      "ceil",      "sqrt",   "reduce",        "where", "equal",       "less",       "greater",    "less_equal",
    "reverse", "logical_or", "transpose", "size",   "greater_equal", "clip",  "logical_and", "logical_not"};

bool follows(const std::string& type) { return std::find(std::begin(followed), std::end(followed), type) != std::end(followed); }

/// Bounds of `shape`, counted from 0.
std::pair<int, int> bounds(const Op& op, int rank) {
  const auto bound = [&](const char* name, std::int64_t otherwise) {
    const std::int64_t given = op.attributes.get_or(name, otherwise);
    return static_cast<int>(std::clamp<std::int64_t>(given < 0 ? given + rank : given, 0, rank));
  };
  const int begin = bound("start", 0);
  return {begin, std::max(begin, bound("end", rank))};
}

/// Integers of one axis or none: what elements() looks into.
bool is_list(const VarType& type) {
  return type.is_tensor() && (type.dtype == DType::i64 || type.dtype == DType::i32) && (type.rank() == 0 || type.rank() == 1);
}

}  // namespace

void Values::clear() {
  makers_.clear();
  tensors_.clear();
  structures_.clear();
  origins_.clear();
  same_.clear();
}

const Op* Values::maker(VarId var) const {
  const auto found = makers_.find(var);
  if (found == makers_.end()) return nullptr;
  const auto& ops = program_.block(found->second.block).ops;
  return found->second.op < ops.size() ? &ops[found->second.op] : nullptr;
}

const Tensor* Values::tensor(VarId var, int depth) {
  if (const Tensor* constant = program_.constant(var)) return constant->elements() <= few ? constant : nullptr;
  const auto [found, fresh] = tensors_.try_emplace(var);
  if (fresh) found->second = computed(var, depth);
  return found->second ? &*found->second : nullptr;
}

std::optional<Tensor> Values::extents(const Op& op) const {
  const std::optional<DDim>& shape = program_.var(op.inputs[0]).type.shape;
  if (!shape) return std::nullopt;
  const auto [begin, end] = bounds(op, shape->rank());
  const std::vector<std::int64_t> list(shape->begin() + begin, shape->begin() + end);
  if (std::any_of(list.begin(), list.end(), [](std::int64_t extent) { return extent < 0; })) return std::nullopt;
  return Tensor::from(list, DDim{end - begin}).read_only();
}

std::optional<Tensor> Values::computed(VarId var, int depth) {
  const Op* op = depth < deepest ? maker(var) : nullptr;
  if (op == nullptr) return std::nullopt;
  if (std::optional<Tensor> made = op->type == "shape" ? extents(*op) : evaluated(var, *op, depth)) return made;
  if (op->type == "size" && program_.var(op->inputs[0]).type.is_static())
    return Tensor::scalar(program_.var(op->inputs[0]).type.shape->elements()).read_only();
  // One known extent may be picked from a shape that is not known as a whole.
  const VarType& type = program_.var(var).type;
  if (!is_list(type) || type.dtype != DType::i64) return std::nullopt;
  const auto list = structure(var, depth);
  if (!list || std::any_of(list->begin(), list->end(), [](const Element& each) { return !each.number; })) return std::nullopt;
  std::vector<std::int64_t> numbers;
  for (const Element& each : *list) numbers.push_back(*each.number);
  if (type.rank() == 0) return numbers.size() == 1 ? std::optional(Tensor::scalar(numbers[0]).read_only()) : std::nullopt;
  return Tensor::from(numbers, DDim{static_cast<std::int64_t>(numbers.size())}).read_only();
}

std::optional<Tensor> Values::evaluated(VarId var, const Op& op, int depth) {
  const bool filled = op.type == "constant_of_shape", repeated = op.type == "tile";
  if (!filled && !repeated && !follows(op.type)) return std::nullopt;
  std::vector<const Tensor*> inputs;
  for (const VarId input : op.inputs) {
    inputs.push_back(input == no_var ? nullptr : tensor(input, depth + 1));
    if (input != no_var && inputs.back() == nullptr) return std::nullopt;
  }
  if (filled && inputs.at(0)->dtype() != DType::i64) return std::nullopt;
  if (repeated && inputs.at(1)->dtype() != DType::i64) return std::nullopt;
  if (filled || repeated) {
    std::int64_t count = filled ? 1 : inputs.at(0)->elements();
    for (const std::int64_t extent : inputs.at(filled ? 0 : 1)->to_vector<std::int64_t>())
      count = extent < 0 || extent > few ? few + 1 : std::min(few + 1, count * extent);
    if (count > few) return std::nullopt;
  }
  try {
    std::vector<Tensor> outputs = evaluate_op(program_, op, inputs);
    const auto at = std::find(op.outputs.begin(), op.outputs.end(), var) - op.outputs.begin();
    Tensor& made = outputs.at(static_cast<std::size_t>(at));
    if (made.elements() <= few) return std::move(made);
  } catch (const Error&) {
    // An op that fails is left to the run, which says why.
  }
  return std::nullopt;
}

bool Values::keeps_integers(const Op& cast) const {
  const DType from = program_.var(cast.inputs[0]).type.dtype, to = program_.var(cast.outputs[0]).type.dtype;
  if (!is_integer(from)) return false;
  return is_floating(to) || from == to || (is_integer(to) && size_of(to) > size_of(from));
}

VarId Values::source(VarId var, bool casts) const {
  for (int depth = 0; depth < deepest; ++depth) {
    const Op* op = var == no_var ? nullptr : maker(var);
    const bool same =
        op != nullptr && (op->type == "identity" || op->type == "unsqueeze" || op->type == "squeeze" || op->type == "reshape" ||
                          (op->type == "cast" && (casts ? keeps_integers(*op) : program_.var(var).type.dtype == DType::i64)));
    if (!same) return var;
    var = op->inputs[0];
  }
  return var;
}

VarId Values::copied(VarId var) const {
  for (const Op* op = maker(var); op != nullptr && op->type == "identity"; op = maker(var)) var = op->inputs[0];
  return var;
}

bool Values::picks(VarId var) const {
  for (int depth = 0; depth < deepest; ++depth) {
    const Op* op = maker(var);
    if (op == nullptr) return false;
    if (op->type == "gather" || op->type == "slice" || op->type == "slice_by" || op->type == "split") return true;
    if (op->type != "identity" && op->type != "unsqueeze" && op->type != "squeeze" && op->type != "reshape" && op->type != "cast")
      return false;
    var = op->inputs[0];
  }
  return false;
}

std::vector<Element> Values::broadcast_places(const Op& op, VarId var, int axis) const {
  std::vector<Element> places;
  const int rank = program_.var(var).type.rank();
  for (const VarId input : op.inputs) {
    const std::optional<DDim>& shape = program_.var(input).type.shape;
    if (!shape) return {};
    const int at = axis - (rank - shape->rank());
    if (at >= 0 && (*shape)[at] != 1) places.push_back({std::nullopt, input, at});
  }
  return places;
}

std::vector<Element> Values::broadcast_from(VarId var, int axis) const {
  const Op* op = maker(var);
  const bool broadcasts = op != nullptr && (ops::find_binary(op->type) || op->type == "where");
  return broadcasts ? broadcast_places(*op, var, axis) : std::vector<Element>();
}

/// The place of an operand that an axis of `var` has its extent from, whatever the others have there: they have no such axis, one element along it, or
/// the same extent.
std::optional<Element> Values::broadcast_axis(const Op& op, VarId var, int axis, int depth) {
  const std::vector<Element> places = broadcast_places(op, var, axis);
  if (places.empty() || depth >= deepest) return std::nullopt;
  for (std::size_t i = 1; i < places.size(); ++i)
    if (origin(places[i].of, places[i].axis, depth + 1) != origin(places[0].of, places[0].axis, depth + 1)) return std::nullopt;
  return places[0];
}

/// The place that an extent is read of, where a list of extents says it: of a value that has one element there, or no such axis. A stretched value keeps an
/// extent beside 1.
std::optional<Element> Values::listed_axis(const Op& op, VarId var, int axis, int depth) {
  const bool stretched = op.type == "expand";
  const auto list = depth < deepest ? elements(op.inputs[op.type == "constant_of_shape" ? 0 : 1], depth + 1) : std::nullopt;
  if (!list) return std::nullopt;
  const int rank = program_.var(var).type.rank();
  const int place = axis - (rank - static_cast<int>(list->size()));
  const Element asked = place < 0 ? Element{1} : (*list)[static_cast<std::size_t>(place)];
  if (stretched) {
    const std::optional<DDim>& shape = program_.var(op.inputs[0]).type.shape;
    const int own = shape ? axis - (rank - shape->rank()) : 0;
    if (!shape) return std::nullopt;
    if (own >= 0 && (*shape)[own] != 1) return asked.number == 1 ? std::optional(Element{std::nullopt, op.inputs[0], own}) : std::nullopt;
  }
  return asked.of == no_var ? std::nullopt : std::optional(asked);
}

/// The axis that a reshape copies, or that is the only open one of both shapes, among as many elements.
std::optional<Element> Values::reshaped_axis(const Op& op, int axis) const {
  const auto shape = op.attributes.get_or("shape", std::vector<std::int64_t>{});
  const std::optional<DDim>& from = program_.var(op.inputs[0]).type.shape;
  const bool zeros = op.attributes.get_or("allowzero", false);
  if (!from || std::cmp_greater_equal(axis, shape.size())) return std::nullopt;
  if (shape[static_cast<std::size_t>(axis)] == 0 && !zeros && axis < from->rank()) return Element{std::nullopt, op.inputs[0], axis};
  std::int64_t made = 1, taken = 1;  // of the known extents
  for (std::size_t i = 0; i < shape.size(); ++i) {
    const bool copied = shape[i] == 0 && !zeros && std::cmp_less(i, from->rank());
    const std::int64_t extent = copied ? (*from)[static_cast<int>(i)] : shape[i];
    if (std::cmp_equal(i, axis) ? extent != -1 : extent < 1 || extent > few || made > few) return std::nullopt;
    made *= std::cmp_equal(i, axis) ? 1 : extent;
  }
  int open = -1;
  for (int i = 0; i < from->rank(); ++i) {
    const std::int64_t extent = (*from)[i];
    if (extent == DDim::unknown ? open >= 0 : extent < 1 || extent > few || taken > few) return std::nullopt;
    if (extent == DDim::unknown)
      open = i;
    else
      taken *= extent;
  }
  return open >= 0 && made == taken ? std::optional(Element{std::nullopt, op.inputs[0], open}) : std::nullopt;
}

/// The axis of the tensor outside that an axis of one of its steps is.
std::optional<Element> Values::step_axis(const Op& op, int axis) const {
  const Op* steps = maker(op.inputs[0]);
  if (steps == nullptr || steps->type != "tensor_array_unstack") return std::nullopt;
  const std::int64_t along = steps->attributes.get_or("axis", std::int64_t{0});
  const int rank = program_.var(steps->inputs[0]).type.rank();
  if (rank < 1) return std::nullopt;
  return Element{std::nullopt, steps->inputs[0], axis < (along < 0 ? along + rank : along) ? axis : axis + 1};
}

/// The place whose extent a count from 0 goes up to.
std::optional<Element> Values::counted_axis(const Op& op, int depth) {
  if (depth >= deepest) return std::nullopt;
  const Tensor *const first = tensor(op.inputs[0], depth + 1), *const step = tensor(op.inputs[2], depth + 1);
  if (first == nullptr || step == nullptr || first->item() != 0 || step->item() != 1) return std::nullopt;
  const auto end = elements(op.inputs[1], depth + 1);
  return end && end->size() == 1 && end->front().of != no_var ? std::optional(end->front()) : std::nullopt;
}

/// The place of an input that an axis of an output is; none: the op does not keep it, or may not.
std::optional<Element> Values::kept_axis(const Op& op, VarId var, int axis, int depth) {
  const std::string& type = op.type;
  const int rank = program_.var(var).type.rank(), from = op.inputs.empty() ? -1 : program_.var(op.inputs[0]).type.rank();
  if (rank < 0 || from < 0) return std::nullopt;
  if (ops::find_binary(type) || type == "where") return broadcast_axis(op, var, axis, depth);
  const bool listed = type == "expand" || type == "constant_of_shape" || (type == "reshape_to" && op.attributes.get_or("allowzero", false));
  if (listed) return listed_axis(op, var, axis, depth);
  using Ints = std::vector<std::int64_t>;
  const auto list = [&](const char* name) { return op.attributes.get_or(name, Ints{}); };
  const auto at = [&](int kept) { return Element{std::nullopt, op.inputs[0], kept}; };
  const auto among = [&](const Ints& axes, int each) {
    return std::any_of(axes.begin(), axes.end(), [&](std::int64_t one) { return (one < 0 ? one + std::max(rank, from) : one) == each; });
  };
  const auto unless = [&](const Ints& axes) { return axes.empty() || among(axes, axis) ? std::nullopt : std::optional(at(axis)); };
  const auto without = [&](const Ints& axes) -> std::optional<Element> {  // behind axes that are taken away
    for (int each = 0, kept = 0; !axes.empty() && each < from; ++each)
      if (!among(axes, each) && kept++ == axis) return at(each);
    return std::nullopt;
  };
  const Ints own{op.attributes.get_or("axis", std::int64_t{0})};
  if (type == "transpose")
    return at(list("perm").empty() ? rank - 1 - axis : static_cast<int>(list("perm")[static_cast<std::size_t>(axis)]));
  if (type == "reshape") return reshaped_axis(op, axis);
  if (type == "tensor_array_read") return step_axis(op, axis);
  if (type == "concat") return unless(own);
  if (type == "pad") {
    const Ints pads = list("pads");
    const auto none = [&](int side) { return pads.at(static_cast<std::size_t>(axis + side * rank)) == 0; };
    return std::cmp_equal(pads.size(), 2 * rank) && none(0) && none(1) ? std::optional(at(axis)) : std::nullopt;
  }
  if (type == "lstm_cell") return axis == 0 ? std::optional(at(0)) : std::nullopt;
  const int second = type == "matmul" ? program_.var(op.inputs[1]).type.rank() : -1;
  if (second > 2 && axis < rank - 2) return broadcast_axis(op, var, axis, depth);
  if (second >= 2 && axis == rank - 1) return Element{std::nullopt, op.inputs[1], second - 1};
  if (type == "squeeze") return without(list("axes"));
  if (type == "reduce") return op.attributes.get_or("keepdims", true) ? unless(list("axes")) : without(list("axes"));
  if (type == "argmax" || type == "argmin") return rank == from ? unless(own) : without(own);
  if (type == "scatter_elements" || type == "scatter_nd") return at(axis);
  if (type == "range") return counted_axis(op, depth);
  if (type == "top_k") return unless({op.attributes.get_or("axis", std::int64_t{-1})});
  if (type == "gather" && rank == from - 1) return without(own);
  if (type == "gather" || type == "split") return rank == from ? unless(own) : std::nullopt;
  if (type == "slice") return unless(list("axes"));
  if (type == "unsqueeze") {
    int kept = axis;
    for (int each = 0; each < axis; ++each) kept -= among(list("axes"), each) ? 1 : 0;
    return among(list("axes"), axis) ? std::nullopt : std::optional(at(kept));
  }
  const auto is_matrix = [&] { return program_.var(op.inputs[1]).type.rank() == 2; };
  const auto keeps_places = [&] {  // a convolution with as much padding as its kernel reaches
    const std::optional<DDim>& w = program_.var(op.inputs[1]).type.shape;
    const auto number = [&](const char* name) { return op.attributes.get_or(name, std::int64_t{1}); };
    const auto pads = op.attributes.get_or("pads", Ints{0, 0});
    return w && w->rank() == 3 && number("stride") == 1 && pads[0] + pads[1] == ((*w)[2] - 1) * number("dilation");
  };
  const bool keeps = type == "identity" || type == "cast" || type == "reverse" || type == "softmax" || type == "log_softmax" ||
                     type == "cumsum" || type == "layer_norm" || type == "clip" || ops::find_unary(type) != nullptr ||
                     (type == "matmul" && axis < rank - 1 && is_matrix()) ||
                     (type == "gemm" && axis == 0 && !op.attributes.get_or("trans_a", false)) ||
                     (type == "conv1d" && (axis == 0 || (axis == 2 && keeps_places())));
  return keeps && rank == from ? std::optional(at(axis)) : std::nullopt;
}

Element Values::origin(VarId var, int axis, int depth) {
  const std::pair place{var, axis};
  if (const auto found = origins_.find(place); found != origins_.end()) return found->second;
  Element made{std::nullopt, var, axis};
  for (; depth < deepest; ++depth) {
    if (const auto same = same_.find({made.of, made.axis}); same != same_.end()) {
      made = same->second;
      continue;
    }
    const Op* op = maker(made.of);
    const auto kept = op == nullptr ? std::nullopt : kept_axis(*op, made.of, made.axis, depth);
    if (!kept) break;
    made = *kept;
  }
  return origins_[place] = made;
}

std::optional<std::vector<Element>> Values::elements(VarId var, int depth) {
  const VarType& type = program_.var(var).type;
  if (!is_list(type)) return std::nullopt;
  std::vector<Element> made;
  if (const Tensor* known = tensor(var, depth)) {
    for (std::int64_t i = 0; i < known->elements(); ++i)
      made.push_back({known->rank() == 0 ? known->item_int() : known->rows(i, i + 1).item_int()});
    return made;
  }
  return structure(var, depth);
}

const std::optional<std::vector<Element>>& Values::structure(VarId var, int depth) {
  const auto [found, fresh] = structures_.try_emplace(var);
  if (fresh) {
    std::optional<std::vector<Element>> made = structured(var, depth);
    if (made && std::cmp_less_equal(made->size(), few)) found->second = std::move(made);
  }
  return found->second;
}

std::optional<std::vector<Element>> Values::structured(VarId var, int depth) {
  const VarType& type = program_.var(var).type;
  std::vector<Element> made;
  const Op* op = depth < deepest ? maker(var) : nullptr;
  if (op != nullptr && op->type == "shape" && program_.var(op->inputs[0]).type.shape) {
    const DDim& shape = *program_.var(op->inputs[0]).type.shape;
    const auto [begin, end] = bounds(*op, shape.rank());
    for (int axis = begin; axis < end; ++axis)
      made.push_back(shape[axis] >= 0 ? Element{shape[axis]} : Element{std::nullopt, op->inputs[0], axis});
    return made;
  }
  if (op != nullptr && (op->type == "gather" || op->type == "slice" || op->type == "slice_by")) return picked(*op, depth);
  if (op != nullptr && op->type == "concat") return joined(*op, depth);
  if (op != nullptr && op->type == "split") return part(*op, var, depth);
  const bool same = op != nullptr && (op->type == "identity" || op->type == "unsqueeze" || op->type == "squeeze" || op->type == "reshape" ||
                                      op->type == "cast");
  if (same && program_.var(op->inputs[0]).type.rank() <= 1) return elements(op->inputs[0], depth + 1);
  // A number that nobody knows, or as many of them as the type says.
  if (type.rank() == 0) return std::vector<Element>(1);
  if (type.rank() == 1 && (*type.shape)[0] >= 0 && (*type.shape)[0] <= few)
    return std::vector<Element>(static_cast<std::size_t>((*type.shape)[0]));
  return std::nullopt;
}

/// An op that picks from a list is evaluated on the places of its elements.
std::optional<std::vector<Element>> Values::picked(const Op& op, int depth) {
  const auto from = elements(op.inputs[0], depth + 1);
  if (!from || program_.var(op.inputs[0]).type.rank() != 1) return std::nullopt;
  std::vector<std::int64_t> places(from->size());
  for (std::size_t i = 0; i < places.size(); ++i) places[i] = static_cast<std::int64_t>(i);
  const Tensor list = Tensor::from(places, DDim{static_cast<std::int64_t>(places.size())});
  std::vector<const Tensor*> inputs{&list};
  for (std::size_t i = 1; i < op.inputs.size(); ++i) {
    inputs.push_back(op.inputs[i] == no_var ? nullptr : tensor(op.inputs[i], depth + 1));
    if (op.inputs[i] != no_var && inputs.back() == nullptr) return std::nullopt;
  }
  try {
    const Tensor chosen = evaluate_op(program_, op, inputs).at(0);
    std::vector<Element> made;
    for (const std::int64_t place : chosen.to_vector<std::int64_t>()) made.push_back(from->at(static_cast<std::size_t>(place)));
    return made;
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// The part of a list that `var` is, of an op that splits it.
std::optional<std::vector<Element>> Values::part(const Op& op, VarId var, int depth) {
  const auto from = elements(op.inputs[0], depth + 1);
  const auto sizes = op.attributes.get_or("sizes", std::vector<std::int64_t>{});
  if (!from || program_.var(op.inputs[0]).type.rank() != 1 || sizes.size() != op.outputs.size()) return std::nullopt;
  std::int64_t begin = 0;
  for (std::size_t i = 0; op.outputs[i] != var; ++i) begin += sizes[i];
  const std::int64_t count = sizes[static_cast<std::size_t>(std::find(op.outputs.begin(), op.outputs.end(), var) - op.outputs.begin())];
  if (begin + count > std::ssize(*from)) return std::nullopt;
  return std::vector<Element>(from->begin() + begin, from->begin() + begin + count);
}

std::optional<std::vector<Element>> Values::joined(const Op& op, int depth) {
  std::vector<Element> made;
  for (const VarId input : op.inputs) {
    const auto part = elements(input, depth + 1);
    if (!part) return std::nullopt;
    made.insert(made.end(), part->begin(), part->end());
    if (std::cmp_greater(made.size(), few)) return std::nullopt;
  }
  return made;
}

}  // namespace millrace::importing
