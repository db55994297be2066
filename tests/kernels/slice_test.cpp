// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/slice.h>

#include <limits>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>

namespace millrace::testing {
namespace {

constexpr std::int64_t far = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t near = std::numeric_limits<std::int64_t>::min();

std::vector<std::int64_t> line(std::int64_t start, std::int64_t end, std::int64_t step, DeviceUnderTest& on) {
  const Tensor x = on.up(Tensor::from<std::int64_t>({0, 1, 2, 3, 4, 5}));
  return on.down(slice(x, {start}, {end}, {0}, {step}, on.stream())).to_vector<std::int64_t>();
}

using List = std::vector<std::int64_t>;

}  // namespace

TEST_CASE("slices follow numpy: places from the end, clamped ends, negative steps, on every device") {
  each_backend([](DeviceUnderTest& on) {
    CHECK(line(1, 4, 1, on) == List{1, 2, 3});
    CHECK(line(-2, far, 1, on) == List{4, 5});
    CHECK(line(0, -1, 2, on) == List{0, 2, 4});
    CHECK(line(-1, near, -1, on) == List{5, 4, 3, 2, 1, 0});
    CHECK(line(4, 0, -2, on) == List{4, 2});
    CHECK(line(far, near, -4, on) == List{5, 1});
    CHECK(line(near, far, far, on) == List{0});
    CHECK(line(far, near, near, on) == List{5});
    CHECK(line(4, 1, 1, on) == List{});
    CHECK(line(1, 4, -1, on) == List{});
    CHECK(line(9, 12, 1, on) == List{});
  });
}

TEST_CASE("several axes are sliced at once, as a view too") {
  CpuDevice device;
  const Tensor x = Tensor::from(List{0, 1, 2, 3, 4, 5, 6, 7, 8}, DDim{3, 3});
  const Tensor view = slice_view(x, {2, 0}, {near, 2}, {0, -1}, {-2, 1});
  CHECK(view.to_vector<std::int64_t>() == List{6, 7, 0, 1});
  CHECK(view.storage() == x.storage());
  CHECK(slice_view(Tensor(DType::f32, DDim{0, 3}), {0}, {far}, {0}, {-1}).dims() == DDim{0, 3});
  CHECK(slice_view(Tensor(DType::f32, DDim{0, 8}), {4}, {8}, {1}, {1}).dims() == DDim{0, 4});
  CHECK_THROWS_AS(slice_view(x, {0}, {1}, {0}, {0}), ArgumentError);
  CHECK_THROWS_AS(slice_view(x, {0, 0}, {1, 1}, {1, -1}, {1, 1}), ShapeError);
  CHECK_THROWS_AS(slice_view(x, {0}, {1, 1}, {1}, {1}), ShapeError);
  CHECK_THROWS_AS(slice_view(x, {0}, {1}, {2}, {1}), IndexError);
}

TEST_CASE("reverse turns an axis around, reverse_sequence the first rows of each sequence, on every device") {
  each_backend([](DeviceUnderTest& on) {
    const Tensor x = on.up(Tensor::from(List{0, 1, 2, 3, 4, 5}, DDim{3, 2}));
    CHECK(on.down(reverse(x, 0, on.stream())).to_vector<std::int64_t>() == List{4, 5, 2, 3, 0, 1});
    CHECK(on.down(reverse(x, -1, on.stream())).to_vector<std::int64_t>() == List{1, 0, 3, 2, 5, 4});
    const Tensor lengths = on.up(Tensor::from<std::int32_t>({3, 2}));
    CHECK(on.down(reverse_sequence(x, lengths, 0, 1, on.stream())).to_vector<std::int64_t>() == List{4, 3, 2, 1, 0, 5});
    const Tensor batch_first = on.up(Tensor::from<std::int64_t>({0, 1, 2}));
    CHECK(on.down(reverse_sequence(x, batch_first, 1, 0, on.stream())).to_vector<std::int64_t>() == List{0, 1, 2, 3, 5, 4});
  });
  CpuDevice device;
  const Tensor x = Tensor::from(List{0, 1}, DDim{1, 2});
  CHECK_THROWS_WITH_AS(reverse_sequence(x, Tensor::from<std::int64_t>({3}), 1, 0, device.stream(0)),
                       "reverse_sequence: expected lengths of 0 to 2, found 3", IndexError);
  CHECK_THROWS_AS(reverse_sequence(x, Tensor::from<std::int64_t>({1, 1}), 1, 0, device.stream(0)), ShapeError);
}

}  // namespace millrace::testing
