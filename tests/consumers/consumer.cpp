// SPDX-License-Identifier: Apache-2.0
// A program of somebody who has only the installed headers and libraries.
#include <millrace/tensor/tensor.h>

#include <cstdio>

int main() {
  const auto rows = millrace::Tensor::from<float>({1.0f, 2.0f, 3.0f});
  std::printf("%s: %g\n", rows.to_string().c_str(), rows[millrace::make_ddim({2})]);
  return rows[millrace::make_ddim({2})] == 3.0 ? 0 : 1;
}
