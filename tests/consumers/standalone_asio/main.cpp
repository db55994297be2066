// SPDX-License-Identifier: Apache-2.0
// The library, which speaks Boost.Asio, inside a program that runs on stand-alone Asio.
#include <millrace/runtime/task/async_task.h>
#include <millrace/runtime/task/thread_executor.h>

#include <asio.hpp>
#include <cstdio>

#include "sum.h"

int main() {
  asio::io_context io;
  auto work = asio::make_work_guard(io);
  double seen = 0;
  millrace::ThreadExecutor executor(1);
  const auto rows = millrace::Tensor::from<float>({1.0f, 2.0f, 3.0f});
  millrace::async_start(executor, sum_of(millrace::TensorArray::unstack(rows)), [&](std::exception_ptr error, double sum) {
    asio::post(io, [&, error, sum] {
      if (error == nullptr) seen = sum;
      work.reset();
    });
  });
  io.run();
  std::printf("%g\n", seen);
  return seen == 6.0 ? 0 : 1;
}
