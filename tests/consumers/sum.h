// SPDX-License-Identifier: Apache-2.0
#pragma once

// [sum]
#include <millrace/runtime/array/tensor_array.h>

/// The sum of the steps of an array, taken in order by a loop that a consumer wrote.
inline millrace::task<double> sum_of(millrace::TensorArray steps) {
  double sum = 0;
  for (std::int64_t t = 0; t < steps.size(); ++t) {
    const millrace::SlotValue step = co_await steps.read(t);
    sum += step.tensor().item();
  }
  co_return sum;
}
// [sum]
