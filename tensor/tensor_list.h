// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <millrace/tensor/tensor.h>

namespace millrace {

/// An immutable list of tensors, the value of an ONNX sequence: a change gives another list. Copies share the elements; `append` on
/// the longest of the lists that share a buffer takes constant time, so a loop may build a list iteration by iteration. Safe to read, and to make
/// other lists of, from several threads.
class TensorList {
 public:
  /// A list never grows beyond this: a loop that would go on for ever ends with an error, not with the machine's memory.
  static constexpr std::int64_t most_elements = std::int64_t{1} << 20;

  /// ArgumentError for a list that would have more elements than that.
  static void check_count(std::int64_t count);

  TensorList() = default;
  /// ArgumentError for more than `most_elements`.
  explicit TensorList(std::vector<Tensor> elements);

  std::int64_t size() const noexcept { return size_; }
  std::span<const Tensor> elements() const;

  /// The element at `position`, −size…size − 1; negative ones count from the end. IndexError.
  const Tensor& at(std::int64_t position) const;
  /// With `element` before the one at `position`, −size…size; negative ones count from the end. IndexError; ArgumentError for more than
  /// `most_elements`.
  TensorList insert(std::int64_t position, Tensor element) const;
  TensorList append(Tensor element) const;
  /// Without the element at `position`, as in `at`.
  TensorList erase(std::int64_t position) const;

  /// "a list of 3 tensors: f32[2] on cpu, f32[4] on cpu, …": four at most.
  std::string to_string() const;

 private:
  class Buffer;
  std::shared_ptr<Buffer> buffer_;
  std::int64_t size_ = 0;
};

}  // namespace millrace
