// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>

#include <millrace/runtime/lowering/loop_form.h>

namespace millrace::lowering {

/// Whether a var of this type is one integer.
bool is_integer_scalar(const VarType& type);

/// A number that no iteration changes.
LoopForm::Index number_index(std::int64_t number);
/// a + times · b; nothing where that is beyond 64 bits. The sum has no var.
std::optional<LoopForm::Index> sum(const LoopForm::Index& a, const LoopForm::Index& b, std::int64_t times);

/// The value at the first iteration, where `numbers` are those of the vars `counted`, which hold all of its terms; nothing where that is beyond
/// 64 bits.
std::optional<std::int64_t> first_value(const LoopForm::Index& index, std::span<const VarId> counted,
                                        std::span<const std::int64_t> numbers);
/// first + stride · iteration; nothing where that is beyond 64 bits.
std::optional<std::int64_t> value_at(std::int64_t first, std::int64_t stride, std::int64_t iteration);
/// The number of iterations of a loop whose `stop.left` begins at `first`; nothing where it never ends.
std::optional<std::int64_t> iterations_until(const LoopForm::Stop& stop, std::int64_t first);

/// Integers that a loop finds outside as sums of as few others as can be, so that equal ones are seen to be equal: `n − 1` where `n` is, and one
/// number for all who ask for the size of an array.
class OuterNumbers {
 public:
  /// The integers in front of `loop`, which stands in `block`; with `behind`, those that its block computes behind it, too.
  OuterNumbers(const Program& program, int block, const Op& loop, bool behind = false);
  /// Nothing where `var` is no integer scalar.
  std::optional<LoopForm::Index> find(VarId var) const;
  /// The number of slots of an array of fixed size; nothing where nobody outside knows it.
  std::optional<LoopForm::Index> size_of(VarId array) const;

 private:
  std::optional<LoopForm::Index> root(VarId var, int depth) const;
  std::optional<LoopForm::Index> root_size(VarId array, int depth) const;
  std::optional<LoopForm::Index> computed(const Op& op, int depth) const;

  const Program& program_;
  std::map<VarId, const Op*> makers_;
};

/// The result of an op on integers that `at` knows: sums, differences and products with numbers. Nothing where it is no such op.
std::optional<LoopForm::Index> linear(const Program& program, const Op& op, const std::function<std::optional<LoopForm::Index>(VarId)>& at);

}  // namespace millrace::lowering
