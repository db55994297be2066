// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/transpose.h>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>

namespace millrace::testing {

TEST_CASE("a transpose is the permuted view as row-major elements, on every device and for every size of element") {
  each_backend([](DeviceUnderTest& on) {
    Random random(1);
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::i8})
      for (const std::vector<int>& axes : {std::vector<int>{0, 1, 2}, {2, 1, 0}, {1, 2, 0}, {0, 2, 1}}) {
        const Tensor x = random_tensor(random, dtype, DDim{3, 4, 5}, 100);
        const Tensor out = on.down(transpose(on.up(x), axes, on.stream()));
        CHECK(out.is_contiguous());
        CHECK(reference::values(out).at == reference::permute(reference::values(x), axes).at);
      }
  });
}

TEST_CASE("a transpose with short rows is the permuted view, with 1 or 2 threads") {
  CpuDevice one(1), two(2);
  Random random(2);
  for (const DDim& dims :
       {DDim{3, 2, 300}, DDim{7, 300, 2}, DDim{1, 3, 9}, DDim{200, 8, 90}, DDim{0, 2, 30}, DDim{3, 9, 16}, DDim{2, 13, 6}, DDim{5, 7, 11}})
    for (const std::vector<int>& axes : {std::vector<int>{0, 2, 1}, {1, 2, 0}, {2, 0, 1}}) {
      const Tensor x = random_tensor(random, DType::f32, dims);
      const Tensor out = transpose(x, axes, one.stream(0));
      CHECK(reference::values(out).at == reference::permute(reference::values(x), axes).at);
      CHECK(same_bits(transpose(x, axes, two.stream(0)), out));
    }
}

TEST_CASE("planes are transposed whatever rows and columns are left behind whole lines, on every instruction set") {
  each_instruction_set([](const std::string& name) {
    INFO(name);
    CpuDevice device;
    Random random(4);
    for (const DType dtype : {DType::f64, DType::f32})
      for (const std::int64_t rows : {15, 16, 17, 20, 130, 256})
        for (const std::int64_t columns : {15, 16, 23, 24, 25, 31, 48, 256}) {
          INFO(name_of(dtype), " ", rows, " ", columns);
          const Tensor x = random_tensor(random, dtype, DDim{2, rows, columns}, 100);
          CHECK(reference::values(transpose(x, {0, 2, 1}, device.stream(0))).at == reference::permute(reference::values(x), {0, 2, 1}).at);
        }
  });
}

TEST_CASE("planes whose rows lie a power of two apart, or nearly so, are transposed as others are") {
  CpuDevice one(1), two(2);
  Random random(3);
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::i8})
    for (const std::int64_t rows : {256, 257, 1023, 1024, 1025})
      for (const std::int64_t columns : {5, 31, 33, 70}) {
        INFO(name_of(dtype), " ", rows, " ", columns);
        const Tensor x = random_tensor(random, dtype, DDim{2, rows, columns}, 100);
        const Tensor out = transpose(x, {0, 2, 1}, one.stream(0));
        CHECK(reference::values(out).at == reference::permute(reference::values(x), {0, 2, 1}).at);
        CHECK(same_bits(transpose(x, {0, 2, 1}, two.stream(0)), out));
      }
}

TEST_CASE("axes that are no permutation are an error") {
  CpuDevice device;
  const Tensor x = Tensor::from(std::vector<float>(6, 1.0f), DDim{2, 3});
  CHECK_THROWS_AS(transpose(x, {0, 0}, device.stream(0)), ShapeError);
  CHECK_THROWS_AS(transpose(x, {0}, device.stream(0)), ShapeError);
}

}  // namespace millrace::testing
