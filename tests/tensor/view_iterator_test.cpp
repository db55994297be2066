// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/view_iterator.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/tensor/array_view.h>

#include "support/random.h"

using namespace millrace;

namespace {
/// A view of 2 × 3 × 2 numbers with its axes turned round.
ArrayView<const int, 3> turned_view(const Tensor& tensor) { return make_view(Array<const int, 3>(tensor.permute({2, 0, 1}))); }
Tensor counted() {
  std::vector<int> values(12);
  std::iota(values.begin(), values.end(), 0);
  return Tensor::from(values, DDim{2, 3, 2});
}
}  // namespace

TEST_CASE("an iterator increments, decrements, dereferences and compares") {
  const Tensor tensor = counted();
  const auto view = turned_view(tensor);
  auto at = view.begin();
  CHECK(*at == 0);
  CHECK(*++at == 2);
  CHECK(*at++ == 2);
  CHECK(*at == 4);
  CHECK(*--at == 2);
  CHECK(*at-- == 2);
  CHECK(at == view.begin());
  CHECK(at != view.end());
  CHECK(*at.operator->() == 0);
}

TEST_CASE("an iterator knows its coordinates") {
  const Tensor tensor = counted();
  const auto view = turned_view(tensor);
  auto at = view.begin();
  for (int i = 0; i < 7; ++i) ++at;
  CHECK(at.index() == Dim<3>(1, 0, 1));
  CHECK(at == make_iterator(view, Dim<3>(1, 0, 1)));
  CHECK(*at == *make_iterator(view, Dim<3>(1, 0, 1)));
}

TEST_CASE("from the end backwards an iterator passes every element and arrives at the beginning") {
  const Tensor tensor = counted();
  const auto view = turned_view(tensor);
  std::vector<int> forward(view.begin(), view.end());
  std::vector<int> backward;
  for (auto at = view.end(); at != view.begin();) backward.push_back(*--at);
  std::reverse(backward.begin(), backward.end());
  CHECK(forward == backward);
  CHECK(forward == std::vector<int>{0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11});
}

TEST_CASE("an iterator is bidirectional to the standard library") {
  static_assert(std::bidirectional_iterator<ViewIterator<ArrayView<const int, 3>>>);
  static_assert(std::bidirectional_iterator<ViewIterator<ArrayView<float, 1>>>);
  const Tensor tensor = counted();
  const auto view = turned_view(tensor);
  CHECK(std::distance(view.begin(), view.end()) == 12);
}

TEST_CASE("iterating any permuted view is reading it element by element") {
  for (const std::uint64_t seed : testing::seeds(50)) {
    INFO("seed ", seed);
    testing::Random random(seed);
    const DDim dims{random.between(0, 3), random.between(1, 3), random.between(1, 4)};
    std::vector<int> values(static_cast<std::size_t>(dims.elements()));
    std::iota(values.begin(), values.end(), 0);
    std::vector<int> axes{0, 1, 2};
    std::swap(axes[0], axes[static_cast<std::size_t>(random.between(0, 2))]);
    const Tensor tensor = Tensor::from(values, dims).permute(axes);
    const auto view = make_view(Array<const int, 3>(tensor));
    CHECK(std::vector<int>(view.begin(), view.end()) == tensor.to_vector<int>());
  }
}
