// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/array_view.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include <doctest/doctest.h>

using namespace millrace;

namespace {
Tensor counted() {
  std::vector<int> values(6);
  std::iota(values.begin(), values.end(), 1);
  return Tensor::from(values, DDim{2, 3});
}
}  // namespace

TEST_CASE("a view goes from the first element to past the last, in row-major order") {
  const Tensor tensor = counted();
  const ArrayView<const int, 2> view = make_view(Array<const int, 2>(tensor));
  CHECK(view.elements() == 6);
  CHECK(view.size() == Dim<2>(2, 3));
  CHECK(std::vector<int>(view.begin(), view.end()) == std::vector<int>{1, 2, 3, 4, 5, 6});
  CHECK(view[make_dim(1, 0)] == 4);
}

TEST_CASE("a view of a transposed array follows the strides") {
  const Tensor tensor = counted();
  const Array<const int, 2> turned(tensor.permute({1, 0}));
  const auto view = make_view(turned);
  CHECK(std::vector<int>(view.begin(), view.end()) == std::vector<int>{1, 4, 2, 5, 3, 6});
}

TEST_CASE("algorithms write through a view") {
  const Array<float, 2> array(Dim<2>(2, 2));
  const auto view = make_view(array);
  std::fill(view.begin(), view.end(), 2.5f);
  CHECK(array.tensor().to_vector<float>() == std::vector<float>(4, 2.5f));
}

TEST_CASE("a view of nothing is empty") {
  const Array<float, 2> array(Dim<2>(3, 0));
  const auto view = make_view(array);
  CHECK(view.begin() == view.end());
}

TEST_CASE("a view for reading needs elements that something wrote") {
  const Array<const float, 1> array(Tensor(DType::f32, DDim{2}));
  CHECK_THROWS_AS(make_view(array), UninitializedError);
}

TEST_CASE("an iterator is made at coordinates, which must be inside") {
  const Array<const int, 2> array(counted());
  CHECK(*make_iterator(array, make_dim(1, 1)) == 5);
  CHECK(*make_iterator(make_view(array), make_dim(0, 2)) == 3);
  CHECK_THROWS_WITH_AS(make_iterator(array, make_dim(2, 0)), "element: index [2, 0] is outside [2, 3]", IndexError);
}
