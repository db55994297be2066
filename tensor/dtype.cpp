// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/dtype.h>

#include <array>
#include <string>

namespace millrace {
namespace {

constexpr std::array<std::string_view, 9> names{"f64", "f32", "f16", "bf16", "i64", "i32", "i8", "u8", "bool"};

}  // namespace

std::string_view name_of(DType dtype) { return names.at(static_cast<std::size_t>(dtype)); }

DType dtype_named(std::string_view name) {
  for (std::size_t i = 0; i < names.size(); ++i)
    if (names[i] == name) return static_cast<DType>(i);
  throw ParseError("dtype: expected one of f64 f32 f16 bf16 i64 i32 i8 u8 bool, found '" + std::string(name) + "'");
}

}  // namespace millrace
