// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/reduce.h>

#include <array>
#include <string>

#include <millrace/kernels/cpu/reduce.h>
#include <millrace/kernels/cpu/widen.h>
#include <millrace/kernels/cuda/kernels.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/implementations.h>
#include <millrace/kernels/internal/widen.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

using Folded = std::array<bool, max_rank>;

Folded folded_axes(const char* op, const DDim& dims, const std::vector<int>& axes) {
  Folded folded{};
  if (axes.empty()) folded.fill(true);
  for (const int axis : axes) folded[static_cast<std::size_t>(internal::checked_axis(op, axis, dims))] = true;
  return folded;
}

/// `x` with the folded axes behind the others.
Tensor folded_last(const Tensor& x, const Folded& folded, int& count) {
  std::vector<int> order;
  for (const bool last : {false, true})
    for (int axis = 0; axis < x.rank(); ++axis)
      if (folded[static_cast<std::size_t>(axis)] == last) order.push_back(axis);
  count = 0;
  for (int axis = 0; axis < x.rank(); ++axis) count += folded[static_cast<std::size_t>(axis)] ? 1 : 0;
  return x.permute(order);
}

DDim dims_of(const DDim& dims, const Folded& folded, bool keep_dims) {
  DDim made;
  for (int axis = 0; axis < dims.rank(); ++axis) {
    if (!folded[static_cast<std::size_t>(axis)]) {
      made = made.inserted(made.rank(), dims[axis]);
    } else if (keep_dims) {
      made = made.inserted(made.rank(), 1);
    }
  }
  return made;
}

void check_reduce(Reduction kind, const Tensor& x, const Tensor& out) {
  const bool order = kind == Reduction::max || kind == Reduction::min;
  const bool floats_only = kind == Reduction::l2 || kind == Reduction::log_sum || kind == Reduction::log_sum_exp;
  const bool wide_integer = x.dtype() == DType::i64 || x.dtype() == DType::i32;
  if (!is_floating(x.dtype()) && !order && (floats_only || !wide_integer))
    throw DTypeError("reduce " + std::string(name_of(kind)) + ": expected " + (floats_only ? "floats" : "floats, i64 or i32") + ", found " +
                     x.to_string());
  const bool undefined = order || (kind == Reduction::mean && !is_floating(x.dtype()));
  if (undefined && x.elements() == 0 && out.elements() != 0)
    throw ArgumentError("reduce " + std::string(name_of(kind)) + ": expected at least one element to fold, found " + x.to_string());
}

}  // namespace

std::string_view name_of(Reduction kind) {
  static constexpr std::array<std::string_view, 10> names{"sum", "mean", "max",        "min",     "prod",
                                                          "l1",  "l2",   "sum_square", "log_sum", "log_sum_exp"};
  static_assert(names.size() == static_cast<std::size_t>(Reduction::log_sum_exp) + 1);
  return names[static_cast<std::size_t>(kind)];
}

DDim reduced_dims(const DDim& dims, const std::vector<int>& axes, bool keep_dims) {
  return dims_of(dims, folded_axes("reduce", dims, axes), keep_dims);
}

namespace {

constexpr internal::Implementations<Reduction, const Tensor&, int, const Tensor&> reduce_kernels{
    "reduce", {{"cuda", cuda::reduce}}, cpu::reduce};
constexpr internal::Implementations<const Tensor&, bool, bool, const Tensor&> extreme_kernels{
    "argmax", {{"cuda", cuda::arg_extreme}}, cpu::arg_extreme};

}  // namespace

void reduce(Reduction kind, const Tensor& x, const std::vector<int>& axes, Tensor& out, StreamRef stream) {
  internal::check_device_places("reduce", stream, {&x, &out});
  const Folded folded = folded_axes("reduce", x.dims(), axes);
  internal::check_dtype("reduce", "out", out, x.dtype());
  internal::check_contiguous("reduce", "out", out);
  const DDim dims = dims_of(x.dims(), folded, false);
  if (out.dims() != dims) internal::check_dims("reduce", "out", out, dims_of(x.dims(), folded, true));
  check_reduce(kind, x, out);
  int count = 0;
  const Tensor to = out.reshape(dims);
  if (internal::on_cuda(stream.place())) {
    const Tensor from = folded_last(x, folded, count);
    return launch(
        TensorRefs<1>{&x}, TensorRefs<1>{&out}, [=](KernelContext& context) { reduce_kernels.run(kind, from, count, to, context); },
        stream);
  }
  // The vectors of the host fold f32 and f64.
  const Tensor wide = internal::wide_room(x, stream.memory()), folds = internal::wide_room(to, stream.memory());
  const Tensor from = folded_last(wide, folded, count);
  launch(
      TensorRefs<1>{&x}, TensorRefs<1>{&out},
      [=](KernelContext& context) {
        cpu::widen(x, wide, context.team());
        reduce_kernels.run(kind, from, count, folds, context);
        cpu::narrow(folds, to, context.team());
      },
      stream);
}

Tensor reduce(Reduction kind, const Tensor& x, const std::vector<int>& axes, bool keep_dims, StreamRef stream) {
  Tensor out(x.dtype(), reduced_dims(x.dims(), axes, keep_dims), stream.memory());
  reduce(kind, x, axes, out, stream);
  return out;
}

namespace {

Tensor arg_extreme(const char* op, const Tensor& x, int axis, bool greatest, bool keep_dims, bool select_last, StreamRef stream) {
  const Folded folded = folded_axes(op, x.dims(), {axis});
  Tensor out(DType::i64, dims_of(x.dims(), folded, keep_dims), stream.memory());
  internal::check_device_places(op, stream, {&x, &out});
  if (x.elements() == 0 && out.elements() != 0)
    throw ArgumentError(std::string(op) + ": expected at least one element along axis " + std::to_string(axis) + ", found " +
                        x.to_string());
  int count = 0;
  const Tensor from = folded_last(x, folded, count);
  launch(
      TensorRefs<1>{&x}, TensorRefs<1>{&out},
      [from, greatest, select_last, to = out.reshape(dims_of(x.dims(), folded, false))](KernelContext& context) {
        extreme_kernels.run(from, greatest, select_last, to, context);
      },
      stream);
  return out;
}

}  // namespace

Tensor argmax(const Tensor& x, int axis, bool keep_dims, bool select_last, StreamRef stream) {
  return arg_extreme("argmax", x, axis, true, keep_dims, select_last, stream);
}
Tensor argmin(const Tensor& x, int axis, bool keep_dims, bool select_last, StreamRef stream) {
  return arg_extreme("argmin", x, axis, false, keep_dims, select_last, stream);
}

}  // namespace millrace
