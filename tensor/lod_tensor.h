// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <millrace/tensor/lod.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// Rows and the LoD over them: axis 0 of the tensor is the rows. Without levels it is just a tensor. A view by value, like Tensor: copies
/// share the elements. The LoD always fits the rows.
class LoDTensor {
 public:
  LoDTensor() = default;
  LoDTensor(Tensor rows) : tensor_(std::move(rows)) {}
  /// LoDError, naming both numbers, when `lod` does not describe exactly the rows.
  LoDTensor(Tensor rows, LoD lod);

  /// Throws as the constructor would.
  static void validate(const Tensor& rows, const LoD& lod);

  const Tensor& tensor() const noexcept { return tensor_; }
  const LoD& lod() const noexcept { return lod_; }
  DType dtype() const noexcept { return tensor_.dtype(); }
  const DDim& dims() const noexcept { return tensor_.dims(); }
  /// Extent of axis 0. ShapeError for a scalar.
  std::int64_t rows() const;
  /// The point after which the elements are there.
  Point ready() const { return tensor_.ready(); }
  Place place() const { return tensor_.place(); }

  /// The sequences [begin, end) of `level` with all that lies below; copies nothing. IndexError, LoDError.
  LoDTensor slice(int level, std::int64_t begin, std::int64_t end) const;
  /// One view per outermost sequence, each with one level less; copies nothing. LoDError without levels.
  std::vector<LoDTensor> peel() const;
  /// With one more level outside, the inverse of `peel`: the outermost sequences (the rows, when there are no levels) grouped by `lengths`.
  /// LoDError when their sum is another number.
  LoDTensor group(const LoD::Level& lengths) const;

  /// "f32[6, 4] on cpu with [[2,1],[3,1,2]]"; a long LoD as `LoD::brief`.
  std::string to_string() const;

 private:
  Tensor tensor_;
  LoD lod_;
};

/// The designs' name (document 004).
using TensorWithSequence = LoDTensor;

}  // namespace millrace
