// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <type_traits>

#include <millrace/tensor/tensor.h>

namespace millrace::training::internal {

/// The type that elements are computed in: their own, or f32 for narrower ones.
template <class T>
using ComputeType = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Calls `f(std::type_identity<T>{})` for a floating dtype. DTypeError, naming the tensor, for another.
template <class F>
void visit_floats(const std::string& name, DType dtype, F&& f) {
  if (!is_floating(dtype)) throw DTypeError("'" + name + "': expected a floating dtype, found " + std::string(name_of(dtype)));
  visit_dtype(dtype, [&]<class T>(std::type_identity<T> type) {
    if constexpr (!std::is_integral_v<T>) f(type);
  });
}

/// Row-major elements on the host; the tensor itself where its elements lie so.
inline Tensor dense(const Tensor& tensor) {
  return tensor.is_contiguous() && tensor.host_accessible() ? tensor : tensor.copy_to(CpuPlace{});
}

}  // namespace millrace::training::internal
