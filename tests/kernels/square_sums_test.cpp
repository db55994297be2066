// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/square_sums.h>

#include <algorithm>
#include <vector>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>

namespace millrace::testing {
namespace {

template <class T>
void expect_sums(Random& random, DType dtype, std::int64_t count) {
  const std::vector<T> x = random_tensor(random, dtype, DDim{count}).to_vector<T>();
  double found[square_chains] = {}, wanted[square_chains] = {};
  for (std::int64_t chain = 0; chain < square_chains; ++chain) found[chain] = wanted[chain] = static_cast<double>(chain) / 3;
  for (std::size_t i = 0; i < x.size(); ++i) {
    volatile const double square = static_cast<double>(x[i]) * static_cast<double>(x[i]);
    wanted[i % square_chains] += square;
  }
  square_sums(x.data(), count, found);
  CHECK(std::equal(found, found + square_chains, wanted));
}

}  // namespace

TEST_CASE("sums of squares have sixteen chains in f64, with the same bits on every instruction set") {
  Random random(8);
  each_instruction_set([&](const std::string& name) {
    for (const std::int64_t count : {0, 1, 15, 16, 17, 48, 1000}) {
      INFO(name, ", ", count);
      expect_sums<float>(random, DType::f32, count);
      expect_sums<double>(random, DType::f64, count);
    }
  });
}

}  // namespace millrace::testing
