// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <type_traits>
#include <vector>

namespace millrace {

/// A fixed number of elements, on the stack for up to `Small` of them: the inputs or outputs of an op. Elements are as new: a
/// pointer is null, a value is empty.
template <class T, std::size_t Small>
class Few {
 public:
  explicit Few(std::size_t count) : count_(count) {
    if (count > Small) many_.resize(count);
    if constexpr (std::is_scalar_v<T>) few_.fill(T{});
  }
  T* data() noexcept { return count_ > Small ? many_.data() : few_.data(); }
  T& operator[](std::size_t i) noexcept { return data()[i]; }
  std::span<T> span() noexcept { return {data(), count_}; }

 private:
  std::size_t count_;
  std::array<T, Small> few_;
  std::vector<T> many_;
};

}  // namespace millrace
