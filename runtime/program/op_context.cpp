// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/op_context.h>

namespace millrace {

void OpContext::refuse_input(std::size_t input) const {
  if (input < inputs_.size()) throw IndexError("op " + op_.type + ": input " + std::to_string(input) + " is absent: ask `has` first");
  throw IndexError("op " + op_.type + ": expected an input below " + std::to_string(inputs_.size()) + ", found " + std::to_string(input));
}

void OpContext::refuse_output(std::size_t output) const {
  throw IndexError("op " + op_.type + ": expected an output below " + std::to_string(outputs_.size()) + ", found " +
                   std::to_string(output));
}

std::vector<std::int64_t> OpContext::integers(std::size_t input) const {
  const Tensor& from = tensor(input);
  if (is_floating(from.dtype()))
    throw DTypeError("op " + op_.type + ": expected integers as input " + std::to_string(input) + ", found " + from.to_string());
  return visit_dtype(from.dtype(), [&]<class T>(std::type_identity<T>) {
    std::vector<std::int64_t> values;
    for (const T value : from.to_vector<T>()) values.push_back(convert_element<std::int64_t>(value));
    return values;
  });
}

}  // namespace millrace
