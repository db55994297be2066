// SPDX-License-Identifier: Apache-2.0
// A program of somebody who has only the installed headers and libraries.
// [main]
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>

#include <cstdio>

#include "sum.h"

int main() {
  const auto rows = millrace::Tensor::from<float>({1.0f, 2.0f, 3.0f});
  millrace::ThreadExecutor executor(1);
  const double sum = millrace::sync_wait(executor, sum_of(millrace::TensorArray::unstack(rows)));
  std::printf("the sum of %s is %g\n", rows.to_string().c_str(), sum);
  return sum == 6.0 ? 0 : 1;
}
// [main]
