// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>

namespace millrace {

/// Rows in memory: `stride` elements from one to the next; 0: the same elements for all rows.
struct RowView {
  void* first = nullptr;
  std::int64_t stride = 0;

  template <class T>
  T* row(std::int64_t index) const {
    return static_cast<T*>(first) + index * stride;
  }
};

/// Arithmetic that a row plan does not have itself, on `rows` rows. The elements of a row lie side by side, in row-major order of its extents.
/// No output overlaps an input. Threads call it side by side, on different rows; it allocates nothing and throws nothing. Output row i has the bits
/// of row i of the inputs alone, whatever the number of rows; an op that looks along the rows (`OpDef::couples_rows`) is called with all of an iteration.
using RowFunction = std::function<void(std::span<const RowView> inputs, std::span<const RowView> outputs, std::int64_t rows)>;

}  // namespace millrace
