// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace millrace {

/// A row of values of a length that does not change, of which there is nearly always one: that one lies inside, and takes no memory of its
/// own. Move-only; one that was moved from may only be assigned to or destroyed.
template <class T>
class OneOrMany {
 public:
  OneOrMany() = default;
  explicit OneOrMany(std::vector<T> values) : size_(values.size()) {
    if (size_ > 1) many_ = std::make_unique<T[]>(size_);
    std::move(values.begin(), values.end(), begin());
  }

  std::size_t size() const noexcept { return size_; }
  T* begin() noexcept { return many_ ? many_.get() : &one_; }
  T* end() noexcept { return begin() + size_; }
  const T* begin() const noexcept { return many_ ? many_.get() : &one_; }
  const T* end() const noexcept { return begin() + size_; }
  T& operator[](std::size_t i) noexcept { return begin()[i]; }
  const T& operator[](std::size_t i) const noexcept { return begin()[i]; }

 private:
  std::size_t size_ = 0;
  T one_{};
  std::unique_ptr<T[]> many_;
};

}  // namespace millrace
