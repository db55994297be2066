// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/dim.h>

#include <doctest/doctest.h>

using namespace millrace;

TEST_CASE("case 28: the dot of an index and strides is an offset") {
  static_assert(linearize(make_dim(5, 6), make_dim(7, 8)) == 83);
  CHECK(linearize(make_dim(5, 6), make_dim(7, 8)) == 83);
}

TEST_CASE("case 28: a slice of dims takes the axes of a half-open range") {
  CHECK(slice<2, 5>(make_dim(1, 2, 3, 4, 5, 6)) == Dim<3>(3, 4, 5));
  CHECK(slice<0, 6>(make_dim(1, 2, 3, 4, 5, 6)) == make_dim(1, 2, 3, 4, 5, 6));
}

TEST_CASE("case 28: a linear index becomes row-major coordinates") {
  static_assert(unflatten(14, make_dim(4, 5, 2)) == Dim<3>(1, 2, 0));
  CHECK(unflatten(14, make_dim(4, 5, 2)) == Dim<3>(1, 2, 0));
}

TEST_CASE("linear indices and coordinates are one another's inverse") {
  const Dim<4> extents(3, 1, 4, 2);
  CHECK(row_major(extents) == Dim<4>(8, 8, 2, 1));
  for (std::int64_t linear = 0; linear < product(extents); ++linear)
    CHECK(linearize(unflatten(linear, extents), row_major(extents)) == linear);
}

TEST_CASE("dims have one to nine axes, zeros by default, and compare") {
  CHECK(Dim<3>() == Dim<3>(0, 0, 0));
  CHECK(product(make_dim(1, 2, 3, 4, 5, 6, 7, 8, 9)) == 362880);
  CHECK(Dim<9>::rank() == 9);
  CHECK(make_dim(2, 3) != make_dim(3, 2));
  CHECK(product(make_dim(4, 0)) == 0);
  Dim<2> dim(1, 2);
  dim[1] = 5;
  CHECK(dim == make_dim(1, 5));
}
