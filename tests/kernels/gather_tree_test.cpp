// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/gather_tree.h>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>

namespace millrace::testing {
namespace {

using Ints = std::vector<std::int64_t>;

/// [N, T, W], as TensorFlow's test writes them, as [T, N, W].
Tensor by_time(const Ints& values, const DDim& dims) { return Tensor::from(values, dims).permute({1, 0, 2}); }

}  // namespace

TEST_CASE("TensorFlow's trees: hypotheses from their ends, up to their lengths, on every device") {
  // tensorflow/contrib/seq2seq/python/kernel_tests/beam_search_ops_test.py
  each_backend([](DeviceUnderTest& on) {
    const Tensor ids = by_time({1, 2, 3, 4, 5, 6, 7, 8, 9, -1, -1, -1}, {1, 4, 3});
    const Tensor parents = by_time({0, 0, 0, 0, 1, 1, 2, 1, 2, -1, -1, -1}, {1, 4, 3});
    const Tensor lengths = on.up(Tensor::from<std::int64_t>({3}));
    const Tensor found = gather_tree(on.up(ids), on.up(parents), &lengths, std::nullopt, on.stream());
    CHECK(on.down(found).to_vector<std::int64_t>() == Ints{2, 2, 2, 6, 5, 6, 7, 8, 9, -1, -1, -1});
    const Tensor many = by_time({3, 4, 0, 4, 0, 4, 2, 0, 3, 1, 1, 1, 3, 2, 2, 3, 1, 2, 3, 4,  //
                                 3, 4, 0, 4, 0, 4, 2, 0, 3, 1, 1, 1, 3, 2, 2, 3, 1, 2, 3, 4,  //
                                 1, 2, 3, 4, 2, 2, 1, 1, 3, 2, 3, 0, 1, 0, 0, 3, 4, 0, 2, 4,  //
                                 0, 2, 2, 3, 1, 3, 2, 2, 2, 3, 3, 4, 3, 0, 3, 1, 2, 2, 2, 4},
                                {4, 4, 5});
    const Tensor from = by_time({4, 2, 4, 3, 4, 3, 4, 0, 2, 0, 3, 1, 3, 2, 2, 0, 2, 1, 4, 2,  //
                                 4, 2, 4, 3, 4, 3, 4, 0, 2, 0, 3, 1, 3, 2, 2, 0, 2, 1, 4, 2,  //
                                 3, 0, 0, 4, 0, 1, 2, 4, 2, 2, 4, 4, 0, 3, 0, 2, 4, 4, 3, 0,  //
                                 3, 1, 4, 1, 3, 3, 2, 4, 0, 4, 1, 0, 1, 4, 2, 0, 3, 2, 0, 1},
                                {4, 4, 5});
    const Tensor wanted = by_time({-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,  //
                                   3,  4,  0,  4,  0,  -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,  //
                                   2,  3,  2,  3,  3,  2,  1,  1,  3,  2,  -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,  //
                                   2,  3,  2,  1,  1,  2,  3,  2,  3,  2,  3,  4,  3,  0,  3,  -1, -1, -1, -1, -1},
                                  {4, 4, 5});
    const Tensor four = on.up(Tensor::from<std::int32_t>({0, 1, 2, 3}));
    CHECK(on.down(gather_tree(on.up(many), on.up(from), &four, std::nullopt, on.stream())).to_vector<std::int64_t>() ==
          wanted.copy_to(CpuPlace{}).to_vector<std::int64_t>());
  });
}

TEST_CASE("behind an end token there are only end tokens, and without lengths all rows count") {
  each_backend([](DeviceUnderTest& on) {
    const Tensor ids = on.up(Tensor::from<std::int32_t>({1, 2, 9, 4, 5, 6}).reshape(DDim{3, 1, 2}));
    const Tensor parents = on.up(Tensor::from<std::int32_t>({7, 7, 1, 0, 1, 0}).reshape(DDim{3, 1, 2}));
    const auto traced = [&](std::optional<std::int64_t> end) {
      return on.down(gather_tree(ids, parents, nullptr, end, on.stream())).to_vector<std::int32_t>();
    };
    CHECK(traced(std::nullopt) == std::vector<std::int32_t>{1, 2, 4, 9, 5, 6});
    CHECK(traced(9) == std::vector<std::int32_t>{1, 2, 4, 9, 5, 9});
  });
}

TEST_CASE("a parent outside the beams is an error that names its place, and so are sides that do not fit") {
  CpuDevice device;
  const Tensor ids = Tensor::from<std::int64_t>({1, 2, 3, 4}).reshape(DDim{2, 1, 2});
  const Tensor parents = Tensor::from<std::int64_t>({0, 0, 0, -1}).reshape(DDim{2, 1, 2});
  CHECK_THROWS_WITH_AS(gather_tree(ids, parents, nullptr, std::nullopt, device.stream(0)),
                       "gather_tree: expected a parent of 2 beams, found -1 at step 1, source 0, beam 1", IndexError);
  CHECK_THROWS_AS(gather_tree(ids, parents.reshape(DDim{4}), nullptr, std::nullopt, device.stream(0)), ShapeError);
  CHECK_THROWS_AS(
      gather_tree(ids, Tensor::from<std::int32_t>({0, 0, 0, 0}).reshape(DDim{2, 1, 2}), nullptr, std::nullopt, device.stream(0)),
      DTypeError);
  const Tensor lengths = Tensor::from<std::int64_t>({1, 2});
  CHECK_THROWS_WITH_AS(gather_tree(ids, parents, &lengths, std::nullopt, device.stream(0)), doctest::Contains("a length for each of 1"),
                       ShapeError);
  CpuDevice other;
  CHECK(gather_tree(ids.slice(2, 0, 0), parents.slice(2, 0, 0), nullptr, std::nullopt, other.stream(0)).dims() == DDim{2, 1, 0});
}

}  // namespace millrace::testing
