// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <millrace/tensor/dtype.h>

namespace millrace::cpu {

/// Calls f(std::type_identity<U>{}) with the unsigned integer that is as large as an element: for kernels that only
/// move elements.
template <class F>
void visit_size(DType dtype, F&& f) {
  switch (size_of(dtype)) {
    case 8: return f(std::type_identity<std::uint64_t>{});
    case 4: return f(std::type_identity<std::uint32_t>{});
    case 2: return f(std::type_identity<std::uint16_t>{});
    default: return f(std::type_identity<std::uint8_t>{});
  }
}

}  // namespace millrace::cpu
