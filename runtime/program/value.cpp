// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/value.h>

#include <string>

#include <millrace/runtime/program/errors.h>

namespace millrace {
namespace {

std::string text(const SlotValue& value) { return "a tensor, " + value.LoDTensor::to_string(); }
std::string text(const TensorArray& array) { return array.to_string(); }
std::string text(const SequenceOrder& order) { return "an " + order.to_string(); }
std::string text(const TensorList& list) { return list.to_string(); }

}  // namespace

void Value::throw_kind(const char* wanted) const {
  const std::string found = held_ == nullptr ? "nothing" : std::visit([](const auto& held) { return text(held); }, *held_);
  throw ValueKindError(std::string("value: expected ") + wanted + ", found " + found);
}

}  // namespace millrace
