// SPDX-License-Identifier: Apache-2.0
// The library, which uses Boost.Asio, inside a program that uses stand-alone Asio.
#include <millrace/tensor/tensor.h>

#include <asio.hpp>
#include <cstdio>

int main() {
  asio::io_context io;
  double seen = 0;
  asio::post(io, [&seen] {
    const auto rows = millrace::Tensor::from<float>({1.0f, 2.0f, 3.0f});
    seen = rows[millrace::make_ddim({2})];
  });
  io.run();
  std::printf("%g\n", seen);
  return seen == 3.0 ? 0 : 1;
}
