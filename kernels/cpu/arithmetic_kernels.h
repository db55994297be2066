// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/kernels/arithmetic.h>

namespace millrace::cpu {

/// x or an operand: elements of a row side by side, or one for all of a row.
template <class T>
struct ArithmeticInput {
  const T* first = nullptr;
  std::int64_t row = 0;  ///< elements from one row to the next
  bool repeats = false;
};

/// Rows of a formula; `out` is none of the inputs, or with `in_place` x, and operands alike. Where `from` and `to` are others than the dtype of T, x and `out` point to elements of these.
template <class T>
struct ArithmeticCall {
  const ArithmeticStep* steps = nullptr;
  std::int64_t step_count = 0;
  ArithmeticInput<T> inputs[most_operands + 1];  ///< x, then the operands in the order of the steps
  std::int64_t input_count = 0;
  T* out = nullptr;
  std::int64_t out_row = 0;
  std::int64_t rows = 0, count = 0;
  bool in_place = false;
  DType from = dtype_of<T>, to = dtype_of<T>;
};

/// Computes all rows with the instruction set of this machine.
void arithmetic_rows(const ArithmeticCall<float>& call);
void arithmetic_rows(const ArithmeticCall<double>& call);

}  // namespace millrace::cpu
