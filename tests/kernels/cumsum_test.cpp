// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cumsum.h>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>

namespace millrace::testing {

TEST_CASE("running sums go along any axis, forwards or backwards, with or without the element itself, on every device") {
  each_backend([](DeviceUnderTest& on) {
    const Tensor x = on.up(Tensor::from(std::vector<double>{1, 2, 3, 4, 5, 6}, DDim{2, 3}));
    const auto run = [&](int axis, bool exclusive, bool reverse) {
      return on.down(cumsum(x, axis, exclusive, reverse, on.stream())).to_vector<double>();
    };
    CHECK(run(1, false, false) == std::vector<double>{1, 3, 6, 4, 9, 15});
    CHECK(run(1, true, false) == std::vector<double>{0, 1, 3, 0, 4, 9});
    CHECK(run(-1, false, true) == std::vector<double>{6, 5, 3, 15, 11, 6});
    CHECK(run(0, true, true) == std::vector<double>{4, 5, 6, 0, 0, 0});
    CHECK(run(0, false, false) == std::vector<double>{1, 2, 3, 5, 7, 9});
  });
}

TEST_CASE("a running sum has the same bits along any axis, alone or beside others, on every instruction set") {
  Random random(3);
  each_instruction_set([&](const std::string& name) {
    INFO(name);
    CpuDevice one(1), two(2);
    for (const DType dtype : {DType::f32, DType::f64})
      for (const std::int64_t lanes : {1, 5, 16, 75, 131}) {
        const Tensor x = random_tensor(random, dtype, DDim{lanes, 37}, 5);
        const Tensor turned = clone(x.permute({1, 0}), one.stream(0));
        for (const bool exclusive : {false, true})
          for (const bool reverse : {false, true}) {
            const Tensor whole = cumsum(x, 1, exclusive, reverse, one.stream(0));
            CHECK(same_bits(cumsum(turned, 0, exclusive, reverse, two.stream(0)).permute({1, 0}), whole));
            CHECK(same_bits(cumsum(x.rows(lanes - 1, lanes), 1, exclusive, reverse, one.stream(0)), whole.rows(lanes - 1, lanes)));
          }
      }
  });
}

TEST_CASE("running sums of rows in memory have the bits of those of tensors") {
  CpuDevice device;
  Random random(4);
  for (const DType dtype : {DType::f32, DType::f64})
    for (const DDim& dims : {DDim{3, 2, 9, 1}, DDim{2, 1, 5, 20}, DDim{2, 3, 0, 4}})
      for (const bool exclusive : {false, true})
        for (const bool reverse : {false, true}) {
          const Tensor x = random_tensor(random, dtype, dims);
          const Tensor found = clone(x, device.stream(0));
          const std::int64_t stride = dims.erased(0).elements();
          const RowView from{const_cast<void*>(x.raw()), stride}, to{found.raw_mutable(), stride};
          cumsum_rows({dtype, dims[1], dims[2], dims[3], exclusive, reverse})({&from, 1}, {&to, 1}, dims[0]);
          CHECK(same_bits(found, cumsum(x, 2, exclusive, reverse, device.stream(0))));
        }
}

TEST_CASE("narrow floats narrow each sum of a running f32, integers wrap") {
  CpuDevice device;
  const Tensor x = Tensor::from<float16>({float16(2048.0f), float16(1.0f), float16(1.0f)});
  const std::vector<float16> sums = cumsum(x, 0, false, false, device.stream(0)).to_vector<float16>();
  CHECK(static_cast<float>(sums[2]) == 2050);  // 2048 + 1 alone would have rounded back to 2048 in f16
  const Tensor bytes = Tensor::from<std::uint8_t>({200, 100});
  CHECK(cumsum(bytes, 0, false, false, device.stream(0)).to_vector<std::uint8_t>()[1] == 44);
  CHECK_THROWS_AS(cumsum(Tensor::from<bool>({true}), 0, false, false, device.stream(0)), DTypeError);
  CHECK(cumsum(Tensor(DType::f32, DDim{0, 2}), 0, false, false, device.stream(0)).dims() == DDim{0, 2});
}

}  // namespace millrace::testing
