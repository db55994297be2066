// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/ddim.h>

#include <doctest/doctest.h>

using namespace millrace;

TEST_CASE("rank and extents are known at run time") {
  const DDim dims = make_ddim({2, 3, 4});
  CHECK(dims.rank() == 3);
  CHECK(dims[0] == 2);
  CHECK(dims[-1] == 4);
  CHECK(dims.elements() == 24);
  CHECK(product(dims) == 24);
  CHECK(dims.row_major() == DDim{12, 4, 1});
  CHECK(dims == make_ddim(std::vector<std::int64_t>{2, 3, 4}));
  CHECK(dims != make_ddim({2, 3}));
  CHECK(dims.to_string() == "[2, 3, 4]");
}

TEST_CASE("no extents is a scalar, and one extent of 1 is taken as one") {
  CHECK(DDim{}.is_scalar());
  CHECK(DDim{1}.is_scalar());
  CHECK_FALSE(DDim{2}.is_scalar());
  CHECK_FALSE(DDim{1, 1}.is_scalar());
  CHECK(DDim{}.elements() == 1);
  CHECK(DDim{}.to_string() == "[]");
}

TEST_CASE("an axis outside the rank is an error that names both") {
  const DDim dims{2, 3};
  CHECK_THROWS_WITH_AS(static_cast<void>(dims[2]), "axis 2 is outside a shape of rank 2: [2, 3]", IndexError);
  CHECK_THROWS_AS(static_cast<void>(dims[-3]), IndexError);
  CHECK_THROWS_AS(static_cast<void>(DDim{}[0]), IndexError);
}

TEST_CASE("more than nine axes are refused") {
  CHECK(DDim{1, 2, 3, 4, 5, 6, 7, 8, 9}.rank() == 9);
  CHECK_THROWS_WITH_AS((DDim{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}), "ddim: expected at most 9 axes, found 10", ShapeError);
  CHECK_THROWS_AS((DDim{1, 2, 3, 4, 5, 6, 7, 8, 9}.inserted(0, 1)), ShapeError);
}

TEST_CASE("axes are cut out, put in and taken out") {
  const DDim dims{1, 2, 3, 4, 5, 6};
  CHECK(dims.slice(2, 5) == DDim{3, 4, 5});
  CHECK(dims.slice(6, 6) == DDim{});
  CHECK(DDim{2, 3}.inserted(0, 7) == DDim{7, 2, 3});
  CHECK(DDim{2, 3}.inserted(2, 7) == DDim{2, 3, 7});
  CHECK(DDim{2, 3, 4}.erased(1) == DDim{2, 4});
  CHECK(DDim{2, 3, 4}.erased(-1) == DDim{2, 3});
  CHECK_THROWS_AS(dims.slice(3, 7), IndexError);
  CHECK_THROWS_AS(dims.slice(3, 2), IndexError);
  CHECK_THROWS_AS(dims.inserted(7, 1), IndexError);
  CHECK_THROWS_AS(dims.erased(6), IndexError);
}

TEST_CASE("dims of fixed rank come and go, and another rank is refused") {
  CHECK(DDim(make_dim(3, 4)) == DDim{3, 4});
  CHECK((DDim{3, 4}.as<2>()) == make_dim(3, 4));
  CHECK_THROWS_WITH_AS((DDim{3, 4}.as<3>()), "ddim: expected rank 3, found [3, 4]", ShapeError);
}

TEST_CASE("extents that are unknown or negative have no number of elements") {
  CHECK(DDim{DDim::unknown, 3}.to_string() == "[?, 3]");
  CHECK_THROWS_WITH_AS((DDim{DDim::unknown, 3}.elements()), doctest::Contains("[?, 3]"), ShapeError);
  CHECK_THROWS_AS((DDim{2, -5}.elements()), ShapeError);
}

TEST_CASE("hostile extents are overflow errors, with a zero among them too") {
  const std::int64_t half = std::int64_t{1} << 62;
  CHECK_THROWS_AS((DDim{half, 4}.elements()), OverflowError);
  CHECK_THROWS_AS((DDim{0, half, 4}.elements()), OverflowError);
  CHECK_THROWS_AS((DDim{half, 4, 0}.elements()), OverflowError);
  CHECK_THROWS_AS((DDim{1, half, 4}.row_major()), OverflowError);
  CHECK(DDim{half, 0}.elements() == 0);
}
