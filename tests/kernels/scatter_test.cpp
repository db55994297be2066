// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/scatter.h>

#include <cmath>
#include <limits>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>

#include <millrace/kernels/sequence_top_k.h>

namespace millrace::testing {
namespace {

using List = std::vector<std::int64_t>;

Tensor list(const List& values, const DDim& dims) { return Tensor::from(values, dims); }

std::vector<double> at(const Tensor& x) { return reference::values(x).at; }

}  // namespace

TEST_CASE("gather_nd picks blocks by the places in the last axis of its index, in each batch on its own") {
  each_backend([](DeviceUnderTest& on) {
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::u8}) {
      const Tensor x = on.up(reference::tensor({DDim{2, 3}, {0, 1, 2, 3, 4, 5}}, dtype));
      CHECK(at(on.down(gather_nd(x, on.up(list({1, -1, 0, 0}, {2, 2})), 0, on.stream()))) == std::vector<double>{5, 0});
      CHECK(at(on.down(gather_nd(x, on.up(list({1}, {1, 1})), 0, on.stream()))) == std::vector<double>{3, 4, 5});
      CHECK(at(on.down(gather_nd(x, on.up(list({2, 0}, {2, 1})), 1, on.stream()))) == std::vector<double>{2, 3});
      CHECK(gather_nd(x, on.up(list({}, {0, 1})), 0, on.stream()).dims() == DDim{0, 3});
      CHECK(at(on.down(gather_nd(x, on.up(list({}, {2, 0})), 0, on.stream()))).size() == 12);
    }
  });
}

TEST_CASE("scatter_nd and scatter_elements write in order, and reduce in the dtype of x") {
  each_backend([](DeviceUnderTest& on) {
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::i8, DType::u8}) {
      const Tensor x = on.up(reference::tensor({DDim{3, 2}, {1, 2, 3, 4, 5, 6}}, dtype));
      const Tensor rows = on.up(reference::tensor({DDim{2, 2}, {10, 1, 2, 20}}, dtype));
      const Tensor index = on.up(list({-1, 2}, {2, 1}));
      const auto nd = [&](ScatterReduction reduction) { return at(on.down(scatter_nd(x, index, rows, reduction, on.stream()))); };
      CHECK(nd(ScatterReduction::none) == std::vector<double>{1, 2, 3, 4, 2, 20});
      CHECK(nd(ScatterReduction::add) == std::vector<double>{1, 2, 3, 4, 17, 27});
      CHECK(nd(ScatterReduction::mul) == std::vector<double>{1, 2, 3, 4, 100, 120});
      CHECK(nd(ScatterReduction::min) == std::vector<double>{1, 2, 3, 4, 2, 1});
      CHECK(nd(ScatterReduction::max) == std::vector<double>{1, 2, 3, 4, 10, 20});
      const Tensor places = on.up(list({1, 0, -1, 1}, {2, 2}));
      const auto along = [&](int axis, ScatterReduction reduction) {
        return at(on.down(scatter_elements(x, places, rows, axis, reduction, on.stream())));
      };
      CHECK(along(0, ScatterReduction::none) == std::vector<double>{1, 1, 10, 20, 2, 6});
      CHECK(along(1, ScatterReduction::none) == std::vector<double>{1, 10, 3, 20, 5, 6});
      CHECK(along(1, ScatterReduction::add) == std::vector<double>{2, 12, 3, 26, 5, 6});
    }
  });
}

TEST_CASE("Integers that are scattered into a sum wrap") {
  CpuDevice device;
  const Tensor x = Tensor::from<std::int64_t>({std::numeric_limits<std::int64_t>::max()});
  const Tensor sum = scatter_nd(x, list({0}, {1, 1}), Tensor::from<std::int64_t>({1}), ScatterReduction::add, device.stream(0));
  CHECK(sum.item_int() == std::numeric_limits<std::int64_t>::min());
}

TEST_CASE("Indices that lie outside, shapes that do not fit and bools that are to be reduced are refused") {
  CpuDevice device;
  const Tensor x = make_darray({2, 3}, 1.0f);
  const Tensor row = make_darray({1, 3}, 1.0f);
  CHECK_THROWS_AS(gather_nd(x, list({2}, {1, 1}), 0, device.stream(0)), IndexError);
  CHECK_THROWS_AS(gather_nd(x, list({0, 0, 0}, {1, 3}), 0, device.stream(0)), ShapeError);
  CHECK_THROWS_AS(gather_nd(x, list({0}, {1, 1}), 1, device.stream(0)), ShapeError);
  CHECK_THROWS_AS(scatter_nd(x, list({-3}, {1, 1}), row, ScatterReduction::none, device.stream(0)), IndexError);
  CHECK_THROWS_AS(scatter_nd(x, list({0, 1}, {2, 1}), row, ScatterReduction::none, device.stream(0)), ShapeError);
  CHECK_THROWS_AS(scatter_elements(x, list({0, 3, 0}, {1, 3}), row, 1, ScatterReduction::none, device.stream(0)), IndexError);
  CHECK_THROWS_AS(scatter_elements(x, list({0, 0, 0}, {3, 1}), make_darray({3, 1}, 1.0f), 1, ScatterReduction::none, device.stream(0)),
                  ShapeError);
  CHECK_THROWS_AS(
      scatter_nd(Tensor::from<bool>({true}), list({0}, {1, 1}), Tensor::from<bool>({true}), ScatterReduction::add, device.stream(0)),
      DTypeError);
}

TEST_CASE("top_k keeps the order of equal elements for few and for many, from the greatest and from the least") {
  CpuDevice device;
  Random random(12);
  std::vector<float> values;
  for (int i = 0; i < 3 * 90; ++i) values.push_back(random.between(0, 30) == 0 ? std::nanf("") : static_cast<float>(random.between(-4, 4)));
  const Tensor x = Tensor::from(values, DDim{3, 90});
  for (const bool largest : {false, true}) {
    const std::vector<std::int64_t> all = top_k(x, 90, 1, largest, device.stream(0)).places.to_vector<std::int64_t>();
    for (const std::int64_t k : {1, 2, 5, 31, 32, 33}) {
      const TopK found = top_k(x, k, 1, largest, device.stream(0));
      for (std::int64_t row = 0; row < 3; ++row)
        for (std::int64_t i = 0; i < k; ++i) {
          const std::int64_t place = found.places.data<std::int64_t>()[row * k + i];
          REQUIRE(place == all[static_cast<std::size_t>(row * 90 + i)]);
          const float value = found.values.data<float>()[row * k + i], wanted = values[static_cast<std::size_t>(row * 90 + place)];
          REQUIRE((value == wanted || (std::isnan(value) && std::isnan(wanted))));
        }
    }
  }
}

TEST_CASE("top_k goes along any axis, from the greatest or from the least, and NaN counts as the greatest") {
  each_backend([](DeviceUnderTest& on) {
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32}) {
      const Tensor x = on.up(reference::tensor({DDim{2, 3}, {3, 1, 3, 2, 5, 4}}, dtype));
      const TopK most = top_k(x, 2, -1, true, on.stream());
      CHECK(at(on.down(most.values)) == std::vector<double>{3, 3, 5, 4});
      CHECK(on.down(most.places).to_vector<std::int64_t>() == List{0, 2, 1, 2});
      const TopK least = top_k(x, 1, 0, false, on.stream());
      CHECK(at(on.down(least.values)) == std::vector<double>{2, 1, 3});
      CHECK(on.down(least.places).to_vector<std::int64_t>() == List{1, 0, 0});
    }
  });
  CpuDevice device;
  const Tensor odd = Tensor::from<float>({1, NAN, -1});
  CHECK(top_k(odd, 3, 0, false, device.stream(0)).places.to_vector<std::int64_t>() == List{2, 0, 1});
  CHECK(top_k(odd, 0, 0, false, device.stream(0)).values.dims() == DDim{0});
  CHECK_THROWS_WITH_AS(top_k(odd, 4, 0, true, device.stream(0)), doctest::Contains("expected k of 0 to 3"), ArgumentError);
}

}  // namespace millrace::testing
