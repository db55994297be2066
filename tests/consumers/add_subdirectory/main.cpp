// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/tensor.h>

#include <cstdio>

int main() {
  const auto rows = millrace::Tensor::from<float>({1.0f, 2.0f, 3.0f});
  std::printf("%s\n", rows.to_string().c_str());
  return rows[millrace::make_ddim({2})] == 3.0 ? 0 : 1;
}
