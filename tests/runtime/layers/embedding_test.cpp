// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/layers/embedding.h>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/ops.h>

#include "support/built.h"

using namespace millrace;
using namespace millrace::testing;

namespace {

LoDTensor looked_up(const DDim& ids, std::optional<std::int64_t> padding, const std::vector<std::int64_t>& numbers) {
  const Tensor table = Tensor::from<float>({1, 2, 3, 4, 5, 6}).reshape({3, 2});
  return built([&] { return layers::embedding(build::input("ids", VarType(DType::i64, ids, 1)), table, padding); },
               {{"ids", LoDTensor(Tensor::from(numbers, DDim{static_cast<std::int64_t>(numbers.size())})
                                      .reshape(ids.rank() == 2 ? DDim{static_cast<std::int64_t>(numbers.size()), 1}
                                                               : DDim{static_cast<std::int64_t>(numbers.size())}),
                                  LoD::from_lengths({{2, 1}}))}});
}

}  // namespace

TEST_CASE("rows by number, of ids with and without an axis of one, keep the LoD") {
  for (const DDim& ids : {DDim{DDim::unknown}, DDim{DDim::unknown, 1}}) {
    const LoDTensor y = looked_up(ids, {}, {2, 0, -2});
    CHECK(y.tensor().to_vector<float>() == std::vector<float>{5, 6, 1, 2, 3, 4});
    CHECK(y.dims() == DDim{3, 2});
    CHECK(y.lod() == LoD::from_lengths({{2, 1}}));
  }
}

TEST_CASE("the padding number gives zeros, counted from either end, and others stay") {
  CHECK(looked_up({DDim::unknown}, 1, {1, 2, 0}).tensor().to_vector<float>() == std::vector<float>{0, 0, 5, 6, 1, 2});
  CHECK(looked_up({DDim::unknown}, -1, {1, 2, 0}).tensor().to_vector<float>() == std::vector<float>{3, 4, 0, 0, 1, 2});
  CHECK_THROWS_WITH_AS(looked_up({DDim::unknown}, 3, {1, 2, 0}), doctest::Contains("padding"), IndexError);
}

TEST_CASE("a number that the table does not have is an error") { CHECK_THROWS_AS(looked_up({DDim::unknown}, {}, {0, 3, 0}), IndexError); }
