// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/broadcast.h>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>

namespace millrace::testing {

TEST_CASE("extents broadcast from the last axis on") {
  CHECK(broadcast_dims({2, 3}, {3}) == DDim{2, 3});
  CHECK(broadcast_dims({2, 1}, {1, 3}) == DDim{2, 3});
  CHECK(broadcast_dims({}, {4}) == DDim{4});
  CHECK(broadcast_dims({0, 3}, {1, 3}) == DDim{0, 3});
  CHECK_THROWS_AS(broadcast_dims({2, 3}, {2}), ShapeError);
}

TEST_CASE("rows that differ are told to shrink with the batch, and a tensor without rows is not") {
  CHECK_THROWS_WITH_AS(broadcast_dims({3, 4}, {2, 4}), doctest::Contains("shrink it to the rows of the step input"), ShapeError);
  CHECK_THROWS_WITH_AS(broadcast_dims({0, 4}, {2, 4}), "broadcast: [0, 4] and [2, 4] do not fit each other", ShapeError);
}

TEST_CASE("a tensor is stretched as a view or as a copy, on every device") {
  each_backend([](DeviceUnderTest& on) {
    const Tensor x = on.up(Tensor::from<float>({1, 2, 3}));
    const Tensor view = broadcast_view(x, DDim{2, 3});
    CHECK(view.raw() == x.raw());
    const Tensor copied = on.down(broadcast_to(x, DDim{2, 3}, on.stream()));
    CHECK(copied.to_vector<float>() == std::vector<float>{1, 2, 3, 1, 2, 3});
    CHECK(on.down(expand(on.up(Tensor::from(std::vector<float>{1, 2}, DDim{2, 1})), DDim{2}, on.stream())).to_vector<float>() ==
          std::vector<float>{1, 1, 2, 2});
    CHECK_THROWS_AS(broadcast_view(x, DDim{3, 2}), ShapeError);
    CHECK_THROWS_AS(broadcast_view(x, DDim{}), ShapeError);
  });
}

TEST_CASE("tile repeats each axis, 0 times too, on every device") {
  each_backend([](DeviceUnderTest& on) {
    const Tensor x = on.up(Tensor::from(std::vector<std::int64_t>{1, 2, 3, 4}, DDim{2, 2}));
    CHECK(on.down(tile(x, {2, 1}, on.stream())).to_vector<std::int64_t>() == std::vector<std::int64_t>{1, 2, 3, 4, 1, 2, 3, 4});
    CHECK(on.down(tile(x, {1, 2}, on.stream())).to_vector<std::int64_t>() == std::vector<std::int64_t>{1, 2, 1, 2, 3, 4, 3, 4});
    CHECK(on.down(tile(x, {0, 5}, on.stream())).dims() == DDim{0, 10});
    CHECK_THROWS_AS(tile(x, {2}, on.stream()), ShapeError);
    CHECK_THROWS_AS(tile(x, {2, -1}, on.stream()), ArgumentError);
    CHECK_THROWS_AS(tile(x, {std::int64_t{1} << 44, 2}, on.stream()), OutOfMemoryError);
    CHECK_THROWS_AS(tile(x, {std::int64_t{1} << 40, std::int64_t{1} << 40}, on.stream()), OverflowError);
    CHECK(on.down(tile(x, {0, std::int64_t{1} << 44}, on.stream())).dims() == DDim{0, std::int64_t{1} << 45});
  });
}

}  // namespace millrace::testing
