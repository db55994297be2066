// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/internal/conv_steps.h>

#include <algorithm>
#include <string>

#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/row_major.h>

namespace millrace::internal {
namespace {

/// `operand` as one element [], as one of each unit [M], or as it is where it has one of each result; nothing where it is neither.
std::optional<Tensor> fitted(const Tensor& operand, const DDim& dims) {
  const int rank = dims.rank(), missing = rank - operand.rank();
  if (missing < 0) return std::nullopt;
  if (operand.elements() == 1) return operand.reshape(DDim{});
  if (operand.dims() == dims) return operand;
  for (int axis = 0; axis < operand.rank(); ++axis)
    if (operand.dim(axis) != (axis + missing == 1 ? dims[1] : 1)) return std::nullopt;
  return operand.reshape(DDim{dims[1]});
}

}  // namespace

std::optional<ConvSteps> fitted_steps(const ConvSteps& steps, DType dtype, const DDim& dims, StreamRef stream) {
  const auto taken = static_cast<std::size_t>(std::count_if(steps.steps.begin(), steps.steps.end(), has_operand));
  if (taken != steps.operands.size() || taken > most_operands)
    throw ArgumentError("conv: expected " + std::to_string(taken) + " operands, at most " + std::to_string(most_operands) + ", found " +
                        std::to_string(steps.operands.size()));
  ConvSteps made{steps.steps, {}};
  for (const std::optional<Tensor>& operand : steps.operands) {
    if (!operand) {
      made.operands.emplace_back();
      continue;
    }
    check_device_places("conv", stream, {&*operand});
    check_dtype("conv", "an operand", *operand, dtype);
    std::optional<Tensor> fits = fitted(operand->is_contiguous() ? *operand : row_major("conv", *operand, stream), dims);
    if (!fits) return std::nullopt;
    made.operands.push_back(std::move(fits));
  }
  return made;
}

}  // namespace millrace::internal
