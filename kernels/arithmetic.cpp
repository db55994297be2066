// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/arithmetic.h>

#include <algorithm>
#include <string>

#include <millrace/kernels/broadcast.h>
#include <millrace/kernels/cpu/arithmetic.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/implementations.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

constexpr internal::Implementations<const std::vector<ArithmeticStep>&, const std::vector<Tensor>&, const Tensor&> kernels{
    "arithmetic", {}, cpu::arithmetic};

/// `x` stretched to `dims`, with elements side by side or one that stands for all along the innermost axis.
Tensor stretched(const Tensor& x, const DDim& dims, StreamRef stream) {
  Tensor view = broadcast_view(x, dims);
  for (int axis = dims.rank() - 1; axis >= 0; --axis) {
    if (dims[axis] == 1) continue;
    if (view.strides()[axis] == 0 || view.strides()[axis] == 1) return view;
    return broadcast_view(clone(x, stream), dims);
  }
  return view;
}

}  // namespace

Tensor arithmetic(const std::vector<ArithmeticStep>& steps, const Tensor& x, std::span<const Tensor* const> operands, StreamRef stream,
                  std::optional<DType> to) {
  const bool whole = x.dtype() == DType::u8 || x.dtype() == DType::i8 || x.dtype() == DType::i32;
  if (!whole && x.dtype() != DType::f64) internal::check_dtype("arithmetic", "x", x, DType::f32);
  const DType computed = whole ? DType::f32 : x.dtype(), made = to.value_or(computed);
  if (made != computed && (computed == DType::f64 || (made != DType::u8 && made != DType::i8)))
    throw DTypeError("arithmetic: expected a result of " + std::string(name_of(computed)) + ", or of u8 or i8 from f32, found " +
                     std::string(name_of(made)));
  const auto taken = static_cast<std::size_t>(std::count_if(steps.begin(), steps.end(), has_operand));
  if (taken != operands.size() || taken > most_operands)
    throw ArgumentError("arithmetic: expected " + std::to_string(taken) + " operands, at most " + std::to_string(most_operands) +
                        ", found " + std::to_string(operands.size()));
  DDim dims = x.dims();
  for (const Tensor* const operand : operands) {
    if (whole)
      internal::check_dtype("arithmetic", "an operand", *operand, computed);
    else
      internal::check_same_dtype("arithmetic", x, *operand);
    internal::check_device_places("arithmetic", stream, {operand});
    dims = broadcast_dims(dims, operand->dims());
  }
  Tensor out(made, dims, stream.memory());
  internal::check_device_places("arithmetic", stream, {&x, &out});
  std::vector<Tensor> inputs;
  inputs.reserve(operands.size() + 1);
  inputs.push_back(stretched(x, dims, stream));
  for (const Tensor* const operand : operands) inputs.push_back(stretched(*operand, dims, stream));
  TensorRefs<most_operands + 1> read{};
  for (std::size_t i = 0; i < inputs.size(); ++i) read[i] = &inputs[i];
  launch(read, TensorRefs<1>{&out}, [steps, inputs, out](KernelContext& context) { kernels.run(steps, inputs, out, context); }, stream);
  return out;
}

}  // namespace millrace
