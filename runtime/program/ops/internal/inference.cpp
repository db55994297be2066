// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/ops/internal/inference.h>

#include <algorithm>

#include <millrace/runtime/program/errors.h>
#include <millrace/runtime/program/internal/input_name.h>
#include <millrace/tensor/checked.h>

namespace millrace::ops {
namespace {

std::string named(const InferContext& context, std::size_t input) {
  return millrace::internal::input_name(context.program(), context.op(), input);
}

std::int64_t broadcast_extent(std::int64_t a, std::int64_t b, bool& fits) {
  if (a == b || b == 1) return a;
  if (a == 1) return b;
  if (a == DDim::unknown) return b;
  if (b == DDim::unknown) return a;
  fits = false;
  return a;
}

}  // namespace

VarType tensor_type(DType dtype, std::optional<DDim> shape) {
  VarType type = VarType::unranked(dtype);
  type.shape = shape;
  return type;
}

std::optional<DDim> broadcast(const InferContext& context, const std::vector<std::size_t>& inputs) {
  DDim all;
  bool fits = true;
  for (const std::size_t input : inputs) {
    const std::optional<DDim>& shape = context.tensor(input).shape;
    if (!shape) return std::nullopt;
    while (all.rank() < shape->rank()) all = all.inserted(0, 1);
    const int shift = all.rank() - shape->rank();
    for (int axis = 0; axis < shape->rank(); ++axis) all[axis + shift] = broadcast_extent(all[axis + shift], (*shape)[axis], fits);
    if (fits) continue;
    std::string text = "expected extents that broadcast, found " + context.describe(inputs[0]);
    for (std::size_t i = 1; i < inputs.size(); ++i) text += " and " + context.describe(inputs[i]);
    throw ProgramError(text);
  }
  return all;
}

int checked_axis(std::int64_t axis, int rank) {
  if (axis < -rank || axis >= rank)
    throw ProgramError("expected an axis of rank " + std::to_string(rank) + ", found " + std::to_string(axis));
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

std::vector<int> checked_axes(const Ints& axes, int rank) {
  std::vector<int> checked;
  for (const std::int64_t axis : axes) {
    const int counted = checked_axis(axis, rank);
    if (std::find(checked.begin(), checked.end(), counted) != checked.end())
      throw ProgramError("expected each axis once, found " + list_text(axes));
    checked.push_back(counted);
  }
  return checked;
}

void expect_same_dtype(const InferContext& context, std::size_t a, std::size_t b) {
  if (context.tensor(a).dtype != context.tensor(b).dtype)
    throw ProgramError("expected one dtype, found " + context.describe(a) + " and " + context.describe(b) + ": use cast");
}

void expect_dtype(const InferContext& context, std::size_t input, DType wanted) {
  if (context.tensor(input).dtype != wanted)
    throw ProgramError("expected " + std::string(name_of(wanted)) + " as " + named(context, input) + ", found " + context.describe(input));
}

void expect_float(const InferContext& context, std::size_t input) {
  if (!is_floating(context.tensor(input).dtype))
    throw ProgramError("expected floats as " + named(context, input) + ", found " + context.describe(input));
}

void expect_index(const InferContext& context, std::size_t input) {
  const DType found = context.tensor(input).dtype;
  if (found != DType::i64 && found != DType::i32)
    throw ProgramError("expected i64 or i32 as " + named(context, input) + ", found " + context.describe(input));
}

void expect_rank(const InferContext& context, std::size_t input, int rank) {
  const int found = context.tensor(input).rank();
  if (found >= 0 && found != rank)
    throw ProgramError("expected rank " + std::to_string(rank) + " of " + named(context, input) + ", found " + context.describe(input));
}

void expect_scalar(const InferContext& context, std::size_t input) {
  const VarType& type = context.tensor(input);
  if (!type.shape || type.rank() == 0) return;
  if (type.rank() > 1 || ((*type.shape)[0] != 1 && (*type.shape)[0] != DDim::unknown))
    throw ProgramError("expected a scalar as " + named(context, input) + ", found " + context.describe(input));
}

void expect_extent(const InferContext& context, std::size_t input, int axis, std::int64_t wanted) {
  const std::int64_t found = extent(context, input, axis);
  if (found == wanted || found == DDim::unknown || wanted == DDim::unknown) return;
  throw ProgramError("expected " + std::to_string(wanted) + " along axis " + std::to_string(axis) + " of " + named(context, input) +
                     ", found " + context.describe(input));
}

std::int64_t extent(const InferContext& context, std::size_t input, int axis) {
  const std::optional<DDim>& shape = context.tensor(input).shape;
  return shape ? (*shape)[checked_axis(axis, shape->rank())] : DDim::unknown;
}

std::int64_t same_extent(std::int64_t a, std::int64_t b, const std::string& what) {
  if (a != b && a != DDim::unknown && b != DDim::unknown)
    throw ProgramError("expected equal " + what + ", found " + std::to_string(a) + " and " + std::to_string(b));
  return a == DDim::unknown ? b : a;
}

std::int64_t product_of(const DDim& shape, int begin, int end) {
  std::int64_t count = 1;
  bool known = true;
  for (int axis = begin; axis < end; ++axis) {
    if (shape[axis] == 0) return 0;
    known = known && shape[axis] != DDim::unknown;
    if (known) count = checked_mul(count, shape[axis]);
  }
  return known ? count : DDim::unknown;
}

Ints integers_of(const Tensor& tensor) {
  if (tensor.dtype() == DType::i64) return tensor.to_vector<std::int64_t>();
  if (tensor.dtype() != DType::i32) throw DTypeError("expected i64 or i32, found " + tensor.to_string());
  const std::vector<std::int32_t> values = tensor.to_vector<std::int32_t>();
  return {values.begin(), values.end()};
}

std::optional<Ints> constant_integers(const Program& program, const Op& op, std::size_t input) {
  if (input >= op.inputs.size() || op.inputs[input] == no_var) return std::nullopt;
  const Tensor* held = program.constant(op.inputs[input]);
  if (held == nullptr) return std::nullopt;
  return integers_of(*held);
}

std::optional<Ints> constant_integers(const InferContext& context, std::size_t input) {
  if (context.has(input)) expect_index(context, input);
  return constant_integers(context.program(), context.op(), input);
}

std::optional<Ints> constant_integers(const PrepareContext& context, std::size_t input) {
  return constant_integers(context.program(), context.op(), input);
}

std::int64_t list_length(const InferContext& context, std::size_t input) {
  expect_rank(context, input, 1);
  return context.tensor(input).shape ? (*context.tensor(input).shape)[0] : DDim::unknown;
}

std::string list_text(const Ints& values) {
  std::string text = "[";
  for (std::size_t i = 0; i < values.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(values[i]);
  return text + "]";
}

}  // namespace millrace::ops
