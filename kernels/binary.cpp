// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/binary.h>

#include <array>
#include <optional>
#include <string>
#include <tuple>

#include <millrace/kernels/broadcast.h>
#include <millrace/kernels/cpu/binary.h>
#include <millrace/kernels/cuda/kernels.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/implementations.h>
#include <millrace/tensor/launch.h>

namespace millrace {

std::string_view name_of(Binary kind) {
  static constexpr std::array<std::string_view, 21> names{"add",
                                                          "sub",
                                                          "mul",
                                                          "div",
                                                          "pow",
                                                          "min",
                                                          "max",
                                                          "mod",
                                                          "fmod",
                                                          "prelu",
                                                          "sigmoid_gradient",
                                                          "tanh_gradient",
                                                          "equal",
                                                          "not_equal",
                                                          "less",
                                                          "less_equal",
                                                          "greater",
                                                          "greater_equal",
                                                          "logical_and",
                                                          "logical_or",
                                                          "logical_xor"};
  static_assert(names.size() == static_cast<std::size_t>(Binary::logical_xor) + 1);
  return names[static_cast<std::size_t>(kind)];
}

DType result_dtype(Binary kind, DType dtype) {
  const bool logic = kind >= Binary::logical_and;
  const bool any = kind == Binary::equal || kind == Binary::not_equal;
  const bool gradient = kind == Binary::sigmoid_gradient || kind == Binary::tanh_gradient;
  if (gradient && !is_floating(dtype))
    throw DTypeError(std::string(name_of(kind)) + ": expected a floating dtype, found " + std::string(name_of(dtype)));
  if (!any && logic != (dtype == DType::boolean))
    throw DTypeError(std::string(name_of(kind)) + ": expected " + (logic ? "bool" : "a number") + ", found " + std::string(name_of(dtype)));
  return kind >= Binary::equal ? DType::boolean : dtype;
}

namespace {

constexpr internal::Implementations<Binary, const Tensor&, const Tensor&, const Tensor&> kernels{
    "binary", {{"cuda", cuda::binary}}, cpu::binary};

}  // namespace

namespace {

/// `out` has the extents `dims` of both stretched to each other, and the dtype of the result.
void launch_binary(Binary kind, const Tensor& a, const Tensor& b, const DDim& dims, const Tensor& out, StreamRef stream) {
  const std::string_view name = name_of(kind);
  internal::check_device_places(name, stream, {&a, &b, &out});
  internal::check_same_dtype(name, a, b);
  std::optional<Tensor> stretched[2];
  const auto over_all = [&dims](const Tensor& x, std::optional<Tensor>& view) -> const Tensor& {
    return x.dims() == dims ? x : view.emplace(broadcast_view(x, dims));
  };
  const auto run = [kind](KernelContext& context, const Tensor& left, const Tensor& right, const Tensor& to) {
    kernels.run(kind, left, right, to, context);
  };
  launch(TensorRefs<2>{&a, &b}, TensorRefs<1>{&out}, std::tie(over_all(a, stretched[0]), over_all(b, stretched[1]), out), run, stream);
}

}  // namespace

void binary(Binary kind, const Tensor& a, const Tensor& b, Tensor& out, StreamRef stream) {
  const std::string_view name = name_of(kind);
  internal::check_device_places(name, stream, {&a, &b, &out});
  internal::check_same_dtype(name, a, b);
  internal::check_dtype(name, "out", out, result_dtype(kind, a.dtype()));
  const DDim dims = broadcast_dims(a.dims(), b.dims());
  internal::check_dims(name, "out", out, dims);
  launch_binary(kind, a, b, dims, out, stream);
}

Tensor binary(Binary kind, const Tensor& a, const Tensor& b, StreamRef stream) {
  const DDim dims = broadcast_dims(a.dims(), b.dims());
  Tensor out(result_dtype(kind, a.dtype()), dims, stream.memory());
  launch_binary(kind, a, b, dims, out, stream);
  return out;
}

}  // namespace millrace
