// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <millrace/kernels/concat.h>
#include <millrace/runtime/program/errors.h>
#include <millrace/runtime/program/internal/input_name.h>
#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/ops/internal/define.h>
#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/inference.h>
#include <millrace/runtime/program/ops/internal/rows.h>
#include <millrace/tensor/checked.h>

/// Lists: immutable values, so that a loop carries them as it carries tensors. Elements are shared, never copied.
namespace millrace::ops {
namespace {

const VarType& list_type(const InferContext& context, std::size_t input) {
  const VarType& type = context.type(input);
  if (!type.is_list())
    throw ProgramError("expected a list as " + millrace::internal::input_name(context.program(), context.op(), input) + ", found " +
                       context.describe(input));
  return type;
}

/// A tensor that may be an element: a list holds no LoD.
const VarType& element_type(const InferContext& context, std::size_t input) {
  const VarType& type = context.tensor(input);
  if (type.lod_depth > 0)
    throw ProgramError("would silently lose the LoD of " + context.describe(input) + " in a list: use drop_lod first");
  return type;
}

void expect_position(const InferContext& context, std::size_t input) {
  if (!context.has(input)) return;
  expect_index(context, input);
  expect_scalar(context, input);
}

/// The position that an input says, or `otherwise` where there is none.
std::int64_t position_of(const OpContext& run, std::size_t input, std::int64_t otherwise) {
  if (!run.has(input)) return otherwise;
  const std::vector<std::int64_t> said = run.integers(input);
  if (said.size() != 1) throw ShapeError("expected a scalar as position, found " + run.tensor(input).to_string());
  return said[0];
}

OpDef list_op(const char* name, std::vector<std::string> inputs, void (*infer)(InferContext&), void (*run)(OpContext&),
              std::vector<std::string> attributes = {}) {
  OpDef def = define(name, std::move(inputs), {"Out"}, std::move(attributes));
  for (std::size_t i = 1; i < def.inputs.size(); ++i)
    if (def.inputs[i].starts_with("Position") || def.inputs[i].starts_with("Lengths")) def.host_inputs.push_back(i);
  def.infer = infer;
  def.prepare = [run](const PrepareContext&) -> OpKernel { return run; };
  def.follow_rows = [](const InferContext&, const std::vector<int>& axes) -> std::vector<int> {
    if (std::any_of(axes.begin(), axes.end(), [](int axis) { return axis >= 0; })) refuse_rows("puts what is whole into a list");
    return {-1};
  };
  def.passes_lod = false;
  return def;
}

// ---- list_of, list_insert, list_erase ----

void infer_list_of(InferContext& context) {
  if (context.inputs() == 0) return context.result(VarType::empty_list(context.attributes().get<DType>("dtype")));
  VarType all = VarType::list_of(element_type(context, 0));
  for (std::size_t input = 1; input < context.inputs(); ++input) {
    element_type(context, input);
    expect_same_dtype(context, 0, input);
    all = common(all, VarType::list_of(context.tensor(input)));
  }
  context.result(std::move(all));
}

void run_list_of(OpContext& run) {
  std::vector<Tensor> elements;
  for (std::size_t input = 0; input < run.inputs(); ++input) elements.push_back(run.tensor(input));
  run.set(0, TensorList(std::move(elements)));
}

void infer_insert(InferContext& context) {
  const VarType& list = list_type(context, 0);
  const VarType added = VarType::list_of(element_type(context, 1));
  if (list.dtype != added.dtype)
    throw ProgramError("expected an element of the list's dtype, found " + context.describe(0) + " and " + context.describe(1) +
                       ": use cast");
  expect_position(context, 2);
  context.result(common(list, added));
}

void run_insert(OpContext& run) {
  const TensorList& list = run.in(0).list();
  run.set(0, list.insert(position_of(run, 2, list.size()), run.tensor(1)));
}

void infer_erase(InferContext& context) {
  expect_position(context, 1);
  context.result(list_type(context, 0));
}

void run_erase(OpContext& run) { run.set(0, run.in(0).list().erase(position_of(run, 1, -1))); }

// ---- list_at, list_length ----

void infer_at(InferContext& context) {
  expect_position(context, 1);
  context.result(list_type(context, 0).element());
}

void run_at(OpContext& run) { run.set(0, run.in(0).list().at(position_of(run, 1, 0))); }

void infer_length(InferContext& context) {
  list_type(context, 0);
  context.result(VarType(DType::i64, DDim{}));
}

void run_length(OpContext& run) { run.set(0, Tensor::scalar(run.in(0).list().size())); }

// ---- list_split ----

std::int64_t split_axis(const Attributes& attributes) { return attributes.get_or("axis", std::int64_t{0}); }

/// Whether parts keep their axis. Without keepdims single slices lose it: those of no lengths, and those of a scalar length of 1, as ONNX Runtime
/// and the exporter of PyTorch have it for `x.unbind()`.
bool keeps_axis(const Attributes& attributes, bool lengths, bool scalar, std::int64_t length) {
  return attributes.get_or("keepdims", true) || (lengths && (!scalar || length != 1));
}

/// None: the run computes a scalar length, which may be 1.
std::optional<bool> keeps_axis(const InferContext& context) {
  if (!context.has(1)) return keeps_axis(context.attributes(), false, false, 1);
  const std::optional<Ints> length = constant_integers(context, 1);
  const int rank = context.tensor(1).rank();
  if (context.attributes().get_or("keepdims", true) || rank > 0) return true;
  if (rank < 0 || !length || length->size() != 1) return std::nullopt;
  return keeps_axis(context.attributes(), true, true, length->front());
}

/// The extent that each part has, when that is known of all of them.
std::int64_t part_extent(const InferContext& context, std::int64_t whole) {
  if (!context.has(1)) return 1;
  const auto lengths = constant_integers(context, 1);
  if (!lengths || lengths->empty()) return DDim::unknown;
  const std::int64_t first = lengths->front();
  if (context.tensor(1).rank() != 0)
    return std::all_of(lengths->begin(), lengths->end(), [&](std::int64_t each) { return each == first; }) ? first : DDim::unknown;
  return first > 0 && whole >= 0 && whole % first == 0 ? first : DDim::unknown;
}

void infer_split(InferContext& context) {
  const VarType& x = element_type(context, 0);
  if (context.has(1)) {
    expect_index(context, 1);
    if (context.tensor(1).rank() > 1) throw ProgramError("expected a length or a list of lengths, found " + context.describe(1));
  }
  const std::optional<bool> keeps = keeps_axis(context);
  if (!keeps) return context.result(VarType::list_of(VarType::unranked(x.dtype)));
  VarType part = tensor_type(x.dtype, x.shape);
  if (part.shape) {
    const int axis = checked_axis(split_axis(context.attributes()), part.rank());
    if (*keeps)
      (*part.shape)[axis] = part_extent(context, (*part.shape)[axis]);
    else
      part.shape = part.shape->erased(axis);
  }
  context.result(VarType::list_of(part));
}

/// As many parts of `length` as there are, the last one shorter when it does not divide `whole`.
Ints equal_parts(std::int64_t whole, std::int64_t length) {
  if (length < 1) throw ArgumentError("expected parts of 1 or more, found " + std::to_string(length));
  const std::int64_t count = whole / length + (whole % length != 0 ? 1 : 0);
  TensorList::check_count(count);
  Ints sizes(static_cast<std::size_t>(count), length);
  if (whole % length != 0) sizes.back() = whole % length;
  return sizes;
}

void run_split(OpContext& run) {
  const Tensor& x = run.tensor(0);
  const int axis = checked_axis(split_axis(run.op().attributes), x.rank());
  Ints sizes;
  if (run.has(1) && run.tensor(1).rank() > 0) {
    TensorList::check_count(run.tensor(1).elements());
    sizes = run.integers(1);
  } else {
    sizes = equal_parts(x.dim(axis), run.has(1) ? run.tensor(1).item_int() : 1);
  }
  std::vector<Tensor> parts = split(x, axis, sizes);
  const bool scalar = run.has(1) && run.tensor(1).rank() == 0;
  if (!keeps_axis(run.op().attributes, run.has(1), scalar, scalar ? run.tensor(1).item_int() : 1))
    for (Tensor& part : parts) part = part.select(axis, 0);
  run.set(0, TensorList(std::move(parts)));
}

// ---- list_concat, list_stack ----

void infer_concat(InferContext& context) {
  const VarType& list = list_type(context, 0);
  VarType all = tensor_type(list.dtype, list.shape);
  if (all.rank() == 0) throw ProgramError("expected elements that have axes, found " + context.describe(0) + ": use list_stack");
  if (all.shape) (*all.shape)[checked_axis(context.attributes().get<std::int64_t>("axis"), all.rank())] = DDim::unknown;
  context.result(std::move(all));
}

void infer_stack(InferContext& context) {
  const VarType& list = list_type(context, 0);
  VarType all = tensor_type(list.dtype, list.shape);
  if (all.shape) {
    if (all.rank() == max_rank) throw ProgramError("expected elements of at most 8 axes to stack, found " + context.describe(0));
    all.shape = all.shape->inserted(checked_axis(context.attributes().get<std::int64_t>("axis"), all.rank() + 1), DDim::unknown);
  }
  context.result(std::move(all));
}

const TensorList& list_with_elements(const OpContext& run) {
  const TensorList& list = run.in(0).list();
  if (list.size() == 0) throw ShapeError("expected a list with elements to join, found an empty one");
  return list;
}

void run_concat(OpContext& run) {
  const TensorList& list = list_with_elements(run);
  const std::vector<Tensor> parts(list.elements().begin(), list.elements().end());
  run.set(0, concat(parts, checked_axis(run.op().attributes.get<std::int64_t>("axis"), parts[0].rank()), run.stream()));
}

/// A view with an axis of one element at `axis`.
Tensor with_axis(const Tensor& x, int axis) {
  return Tensor(x.dtype(), x.dims().inserted(axis, 1), x.strides().inserted(axis, 0),
                static_cast<std::int64_t>((static_cast<const std::byte*>(x.raw()) - x.storage()->data()) /
                                          static_cast<std::ptrdiff_t>(size_of(x.dtype()))),
                x.storage());
}

void run_stack(OpContext& run) {
  const TensorList& list = list_with_elements(run);
  const Tensor& first = list.at(0);
  if (first.rank() == max_rank) throw ShapeError("expected elements of at most 8 axes to stack, found " + first.to_string());
  const int axis = checked_axis(run.op().attributes.get<std::int64_t>("axis"), first.rank() + 1);
  std::vector<Tensor> parts;
  for (const Tensor& element : list.elements()) {
    if (element.dims() != first.dims())
      throw ShapeError("expected elements of one shape to stack, found " + first.to_string() + " and " + element.to_string());
    parts.push_back(with_axis(element, axis));
  }
  run.set(0, concat(parts, axis, run.stream()));
}

// ---- Optionals: what they hold, or an empty value ----

const VarType& optional_type(const InferContext& context, std::size_t input) {
  const VarType& type = context.type(input);
  if (!type.is_optional())
    throw ProgramError("expected an optional as " + millrace::internal::input_name(context.program(), context.op(), input) + ", found " +
                       context.describe(input));
  return type;
}

void infer_optional_of(InferContext& context) {
  if (context.has(0)) {
    if (context.type(0).is_list()) return context.result(VarType::optional_of(context.type(0)));
    return context.result(VarType::optional_of(element_type(context, 0)));
  }
  VarType held = VarType::empty_list(context.attributes().get<DType>("dtype"));
  if (!context.attributes().get_or("list", false)) held.kind = VarKind::tensor;
  context.result(VarType::optional_of(held));
}

void run_optional_of(OpContext& run) {
  if (run.has(0) && run.in(0).is_tensor()) return run.set(0, run.tensor(0));
  run.set(0, run.has(0) ? run.in(0) : Value());
}

void run_optional_get(OpContext& run) {
  if (run.in(0).empty()) throw ArgumentError("expected an optional that holds something, found one that holds nothing");
  run.set(0, run.in(0));
}

}  // namespace

void add_list_ops(OpRegistry& registry) {
  registry.add(list_op("list_of", {"Xs..."}, infer_list_of, run_list_of, {"dtype"}));
  registry.add(list_op("list_insert", {"List", "X", "Position?"}, infer_insert, run_insert));
  registry.add(list_op("list_erase", {"List", "Position?"}, infer_erase, run_erase));
  registry.add(list_op("list_at", {"List", "Position"}, infer_at, run_at));
  registry.add(list_op("list_length", {"List"}, infer_length, run_length));
  registry.add(list_op("list_split", {"X", "Lengths?"}, infer_split, run_split, {"axis", "keepdims"}));
  registry.add(list_op("list_concat", {"List"}, infer_concat, run_concat, {"axis"}));
  registry.add(list_op("list_stack", {"List"}, infer_stack, run_stack, {"axis"}));
  registry.add(list_op("optional_of", {"X?"}, infer_optional_of, run_optional_of, {"dtype", "list"}));
  registry.add(
      list_op("optional_get", {"X"}, [](InferContext& context) { context.result(optional_type(context, 0).held()); }, run_optional_get));
  registry.add(list_op(
      "optional_has", {"X"},
      [](InferContext& context) {
        optional_type(context, 0);
        context.result(VarType(DType::boolean, DDim{}));
      },
      [](OpContext& run) { run.set(0, Tensor::scalar(!run.in(0).empty())); }));
}

}  // namespace millrace::ops
