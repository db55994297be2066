// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/op_def.h>

#include <millrace/runtime/program/internal/input_name.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/device.h>

namespace millrace {
const VarType& InferContext::type(std::size_t input) const {
  if (!has(input)) throw ProgramError("expected " + internal::input_name(program_, op_, input) + ", found none");
  return program_.var(op_.inputs[input]).type;
}

const VarType& InferContext::tensor(std::size_t input) const {
  if (!type(input).is_tensor())
    throw ProgramError("expected a tensor as " + internal::input_name(program_, op_, input) + ", found " + describe(input));
  return type(input);
}

const Tensor* InferContext::constant(std::size_t input) const { return has(input) ? program_.constant(op_.inputs[input]) : nullptr; }

std::string InferContext::describe(std::size_t input) const {
  if (!has(input)) return "nothing";
  const VarDef& var = program_.var(op_.inputs[input]);
  return "'" + var.name + "' of " + var.type.to_string();
}

const Tensor* PrepareContext::constant(std::size_t input) const {
  return input < op_.inputs.size() ? program_.constant(op_.inputs[input]) : nullptr;
}

Place PrepareContext::place() const { return device_ == nullptr ? Place(CpuPlace{}) : device_->place(); }

Tensor PrepareContext::placed(const Tensor& tensor) const {
  if (device_ == nullptr || tensor.storage() == nullptr || tensor.place() == device_->place()) return tensor;
  Tensor there(tensor.dtype(), tensor.dims(), device_->memory());
  copy(tensor, there, device_->stream(0));
  return there;
}

}  // namespace millrace
