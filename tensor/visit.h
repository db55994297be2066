// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>
#include <utility>

#include <millrace/tensor/array.h>

namespace millrace {

namespace detail {
template <class T, int D, class F>
decltype(auto) visit_rank(F&& f, const Tensor& tensor) {
  if constexpr (D < max_rank) {
    if (tensor.rank() > D) return visit_rank<T, D + 1>(std::forward<F>(f), tensor);
  }
  return std::forward<F>(f)(Array<T, D>(tensor));
}
}  // namespace detail

/// Calls `f` with the typed face of `tensor`: an `Array<T, D>`, or an `Array<const T, D>` for a const tensor. A scalar comes as one axis of
/// extent 1. `f` takes all of them (`[](auto array) { … }`) and returns the same type for each.
template <class F, class AnyTensor>
  requires std::is_same_v<std::remove_cvref_t<AnyTensor>, Tensor>
decltype(auto) visit(F&& f, AnyTensor&& tensor) {
  constexpr bool read_only = std::is_const_v<std::remove_reference_t<AnyTensor>>;
  return visit_dtype(tensor.dtype(), [&]<class T>(std::type_identity<T>) -> decltype(auto) {
    return detail::visit_rank<std::conditional_t<read_only, const T, T>, 1>(std::forward<F>(f), tensor);
  });
}

}  // namespace millrace
