// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include <millrace/kernels/binary.h>
#include <millrace/kernels/unary.h>
#include <millrace/runtime/program/attribute.h>

namespace millrace::ops {

/// The op of a function of one element, and the names of its numbers as attributes (null: it has none).
struct UnaryName {
  const char* name;
  Unary kind;
  const char* alpha = nullptr;
  const char* beta = nullptr;
};

/// The numbers that the attributes give, ONNX's defaults for those that they do not.
UnaryParams params_of(const UnaryName& named, const Attributes& attributes);
/// An activation by the name of its op, or null.
const UnaryName* find_activation(const std::string& name);
/// Any function of one element by the name of its op, gelu apart; or null.
const UnaryName* find_unary(const std::string& name);
/// Any function of two elements by the name of its op, mod and prelu apart.
std::optional<Binary> find_binary(const std::string& name);

}  // namespace millrace::ops
