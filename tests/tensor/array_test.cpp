// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/array.h>

#include <doctest/doctest.h>

using namespace millrace;

TEST_CASE("an array knows its size, its stride and its first element") {
  const Array<float, 3> array(Dim<3>(4, 5, 2));
  CHECK(array.size() == Dim<3>(4, 5, 2));
  CHECK(array.stride() == Dim<3>(10, 2, 1));
  CHECK(array.elements() == 40);
  CHECK(array.ptr() == array.tensor().raw());
}

TEST_CASE("an array shares the storage of its tensor") {
  Tensor tensor = Tensor::from(std::vector<int>{1, 2, 3, 4, 5, 6}, DDim{2, 3});
  const Array<int, 2> array(tensor);
  array[make_dim(1, 2)] = 60;
  CHECK(tensor[make_ddim({1, 2})] == 60.0);
  const Array<int, 2> copy = array;
  copy[make_dim(0, 0)] = 10;
  CHECK(array[make_dim(0, 0)] == 10);
  CHECK(array.tensor().shares_storage_with(tensor));
}

TEST_CASE("an array over a strided view reaches the view's elements") {
  const Tensor tensor = Tensor::from(std::vector<int>{1, 2, 3, 4, 5, 6}, DDim{2, 3});
  const Array<const int, 2> turned(tensor.permute({1, 0}));
  CHECK(turned.size() == Dim<2>(3, 2));
  CHECK(turned.stride() == Dim<2>(1, 3));
  CHECK(turned[make_dim(2, 1)] == 6);
  CHECK(turned[make_dim(2, 0)] == 3);
}

TEST_CASE("an array of another type or rank is refused with both sides") {
  const Tensor tensor = Tensor::from(std::vector<int>{1, 2, 3, 4}, DDim{2, 2});
  using Floats = Array<float, 2>;
  using Row = Array<int, 1>;
  CHECK_THROWS_WITH_AS(Floats{tensor}, "array: expected elements of f32, found i32[2, 2] on cpu", DTypeError);
  CHECK_THROWS_WITH_AS(Row{tensor}, doctest::Contains("expected rank 1, found [2, 2]"), ShapeError);
}

TEST_CASE("a scalar is an array of one axis with one element") {
  const Array<float, 1> one(Tensor::scalar(4.5f));
  CHECK(one.size() == Dim<1>(1));
  CHECK(one[Dim<1>(0)] == 4.5f);
}

TEST_CASE("reading what nothing wrote is an error, writing it is not") {
  const Array<float, 1> array(Dim<1>(3));
  CHECK_THROWS_AS(static_cast<void>(static_cast<float>(array[Dim<1>(0)])), UninitializedError);
  array[Dim<1>(0)] = 1.0f;
  CHECK(array[Dim<1>(0)] == 1.0f);
  array[Dim<1>(1)] = array[Dim<1>(0)];
  CHECK(array[Dim<1>(1)] == 1.0f);
  const Array<const float, 1> unread(Tensor(DType::f32, DDim{2}));
  CHECK_THROWS_AS(unread.ptr(), UninitializedError);
}

TEST_CASE("an index outside the array is an error that names both") {
  const Array<float, 2> array(Dim<2>(2, 3));
  CHECK_THROWS_WITH_AS(array[make_dim(0, 3)], "element: index [0, 3] is outside [2, 3]", IndexError);
  CHECK_THROWS_AS(array[make_dim(-1, 0)], IndexError);
}

TEST_CASE("frozen storage gives arrays of const elements only") {
  const Tensor tensor = Tensor::from({1.0f, 2.0f}).read_only();
  using Writable = Array<float, 1>;
  CHECK_THROWS_AS(Writable{tensor}, ReadOnlyError);
  CHECK(Array<const float, 1>(tensor)[Dim<1>(1)] == 2.0f);
}
