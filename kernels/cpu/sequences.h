// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include <millrace/tensor/bfloat16.h>
#include <millrace/tensor/float16.h>
#include <millrace/tensor/lod.h>
#include <millrace/tensor/tensor.h>
#include <millrace/tensor/visit.h>

namespace millrace::cpu {

/// Where the sequences of the last level begin and end, in rows.
inline std::span<const std::int64_t> row_offsets(const LoD& lod) { return lod.offsets(lod.depth() - 1); }

/// Elements of a matrix of T, of any strides, as Wide.
template <class T, class Wide>
class WideRows {
 public:
  explicit WideRows(const Tensor& x)
      : from_(static_cast<const T*>(x.raw())), columns_(x.dim(1)), row_step_(x.strides()[0]), step_(x.strides()[1]) {}
  std::int64_t columns() const { return columns_; }
  Wide at(std::int64_t row, std::int64_t column) const { return convert_element<Wide>(from_[row * row_step_ + column * step_]); }
  void row(std::int64_t row, Wide* to) const {
    const T* from = from_ + row * row_step_;
    for (std::int64_t c = 0; c < columns_; ++c) to[c] = convert_element<Wide>(from[c * step_]);
  }

 private:
  const T* from_;
  std::int64_t columns_, row_step_, step_;
};

/// How many sequences make a part worth a thread, when the rows of one cost `row_cost` elementary operations.
inline std::int64_t sequences_grain(const LoD& lod, std::int64_t row_cost) {
  const std::int64_t sequences = std::max<std::int64_t>(1, lod.sequences(lod.depth() - 1));
  const std::int64_t each = std::max<std::int64_t>(1, lod.rows() / sequences) * std::max<std::int64_t>(1, row_cost);
  return std::max<std::int64_t>(1, 16384 / each);
}

}  // namespace millrace::cpu
