// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/unary.h>

#include <array>
#include <limits>
#include <string>
#include <tuple>
#include <utility>

#include <millrace/kernels/cpu/unary.h>
#include <millrace/kernels/cuda/kernels.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/implementations.h>
#include <millrace/tensor/launch.h>

namespace millrace {

std::string_view name_of(Unary kind) {
  static constexpr std::array<std::string_view, 38> names{
      "identity",    "neg",      "abs",    "sign",        "square",    "sqrt",         "reciprocal", "exp",
      "log",         "erf",      "sin",    "cos",         "atan",      "floor",        "ceil",       "round",
      "logical_not", "is_nan",   "is_inf", "tanh",        "sigmoid",   "relu",         "leaky_relu", "thresholded_relu",
      "elu",         "selu",     "celu",   "gelu",        "gelu_tanh", "hard_sigmoid", "hard_swish", "mish",
      "softplus",    "softsign", "affine", "scaled_tanh", "swish",     "clip"};
  static_assert(names.size() == static_cast<std::size_t>(Unary::clip) + 1);
  return names[static_cast<std::size_t>(kind)];
}

UnaryParams default_params(Unary kind) {
  switch (kind) {
    case Unary::leaky_relu: return {0.01, 0};
    case Unary::elu:
    case Unary::celu:
    case Unary::thresholded_relu:
    case Unary::swish: return {1.0, 0};
    case Unary::selu: return {1.67326319217681884765625, 1.05070102214813232421875};
    case Unary::hard_sigmoid: return {0.2, 0.5};
    case Unary::affine: return {1.0, 0};
    case Unary::scaled_tanh: return {1.0, 1.0};
    case Unary::clip: return {-std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
    default: return {};
  }
}

DType result_dtype(Unary kind, DType dtype) {
  const auto refuse = [&](const char* expected) {
    return DTypeError(std::string(name_of(kind)) + ": expected " + expected + ", found " + std::string(name_of(dtype)));
  };
  switch (kind) {
    case Unary::logical_not:
      if (dtype != DType::boolean) throw refuse("bool");
      return dtype;
    case Unary::identity: return dtype;
    case Unary::neg:
    case Unary::abs:
    case Unary::sign:
    case Unary::square:
    case Unary::relu:
    case Unary::clip:
      if (dtype == DType::boolean) throw refuse("a number");
      return dtype;
    default: break;
  }
  if (!is_floating(dtype)) throw refuse("f64, f32, f16 or bf16");
  return kind == Unary::is_nan || kind == Unary::is_inf ? DType::boolean : dtype;
}

namespace {

constexpr internal::Implementations<Unary, const UnaryParams&, const Tensor&, const Tensor&> kernels{
    "unary", {{"cuda", cuda::unary}}, cpu::unary};

}  // namespace

void unary(Unary kind, const UnaryParams& params, const Tensor& x, Tensor& out, StreamRef stream) {
  const std::string_view name = name_of(kind);
  internal::check_device_places(name, stream, {&x, &out});
  internal::check_dtype(name, "out", out, result_dtype(kind, x.dtype()));
  internal::check_dims(name, "out", out, x.dims());
  const auto run = [kind, params](KernelContext& context, const Tensor& from, const Tensor& to) {
    kernels.run(kind, params, from, to, context);
  };
  launch(TensorRefs<1>{&x}, TensorRefs<1>{&out}, std::tie(x, std::as_const(out)), run, stream);
}

Tensor unary(Unary kind, const UnaryParams& params, const Tensor& x, StreamRef stream) {
  Tensor out(result_dtype(kind, x.dtype()), x.dims(), stream.memory());
  unary(kind, params, x, out, stream);
  return out;
}

}  // namespace millrace
