// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <millrace/kernels/conv.h>
#include <millrace/kernels/cpu/arithmetic_kernels.h>
#include <millrace/kernels/cpu/conv_ending.h>

namespace millrace::cpu {

/// The arithmetic behind a convolution, on results that were just written and are still in a cache.
template <class T>
class ConvFinish {
 public:
  /// `out`: row-major [N, M, …]. Operands row-major: [] one element, [M] one of each unit, `out.dims()` one of each result; none stands for the result
  /// without steps. `ends`: the kernel takes the ending, and the steps begin behind it.
  ConvFinish(const ConvSteps& steps, const Tensor& out, bool ends = false) : out_(static_cast<const T*>(out.raw())) {
    const auto first = ends ? take_ending(steps) : std::pair<std::ptrdiff_t, std::size_t>();
    call_.steps = steps.steps.data() + first.first;
    call_.step_count = std::ssize(steps.steps) - first.first;
    call_.input_count = std::ssize(steps.operands) - static_cast<std::ptrdiff_t>(first.second) + 1;
    call_.in_place = true;
    for (std::size_t i = first.second; i < steps.operands.size(); ++i) {
      ArithmeticInput<T>& input = call_.inputs[i - first.second + 1];
      if (!steps.operands[i]) continue;
      input.first = static_cast<const T*>(steps.operands[i]->raw());
      input.repeats = steps.operands[i]->rank() < 2;
      input.row = steps.operands[i]->rank();
      by_unit_ |= steps.operands[i]->rank() == 1;
    }
  }

  bool empty() const { return call_.step_count == 0; }
  const ConvEnding<T>& ending() const { return ending_; }

  /// `count` results side by side of each of `units` units from `unit` on: at `first`, and of each next unit `stride` elements on.
  void run(T* first, std::int64_t unit, std::int64_t units, std::int64_t stride, std::int64_t count) const {
    if (empty()) return;
    ArithmeticCall<T> call = call_;
    call.inputs[0] = {first, stride, false};
    const bool adjoin = stride == count && (!by_unit_ || count == 1);  // the rows are one
    for (std::int64_t i = 1; i < call.input_count; ++i) {
      ArithmeticInput<T>& input = call.inputs[i];
      if (input.first == nullptr)
        input = call.inputs[0];
      else if (!input.repeats)
        input = {input.first + (first - out_), stride, false};
      else if (input.row != 0)
        input = {input.first + unit, adjoin ? 0 : 1, !adjoin};
    }
    call.out = first;
    call.out_row = stride;
    call.rows = adjoin ? 1 : units;
    call.count = adjoin ? units * count : count;
    arithmetic_rows(call);
  }

 private:
  /// Steps and operands that are the ending. None where a step reads the result that it would change.
  std::pair<std::ptrdiff_t, std::size_t> take_ending(const ConvSteps& given) {
    const std::vector<ArithmeticStep>& steps = given.steps;
    const auto& operands = given.operands;
    if (steps.empty() || !std::all_of(operands.begin(), operands.end(), [](const auto& operand) { return operand.has_value(); })) return {};
    if (steps[0] == ArithmeticStep::hard_swish) {
      ending_.kind = ConvEnding<T>::Kind::hard_swish;
      return {1, 0};
    }
    if (steps.size() < 2 || steps[0] != ArithmeticStep::maximum || steps[1] != ArithmeticStep::minimum || operands[0]->rank() > 0 ||
        operands[1]->rank() > 0)
      return {};
    const auto element = [](const Tensor& operand) { return *static_cast<const T*>(operand.raw()); };
    ending_ = {ConvEnding<T>::Kind::bounds, element(*operands[0]), element(*operands[1])};
    return {2, 2};
  }

  const T* out_;
  ConvEnding<T> ending_;
  ArithmeticCall<T> call_;
  bool by_unit_ = false;  ///< an operand has one element of each unit
};

}  // namespace millrace::cpu
