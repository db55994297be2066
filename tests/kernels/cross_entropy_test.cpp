// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cast.h>
#include <millrace/kernels/cross_entropy.h>

#include <vector>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>
#include <millrace/kernels/elementwise.h>
#include <millrace/kernels/one_hot.h>
#include <millrace/kernels/softmax.h>

namespace millrace::testing {
namespace {

constexpr std::int64_t ignored = -7;

Tensor random_labels(Random& random, std::int64_t rows, std::int64_t classes) {
  std::vector<std::int64_t> labels;
  for (std::int64_t row = 0; row < rows; ++row) labels.push_back(random.between(0, 4) == 0 ? ignored : random.between(0, classes - 1));
  return Tensor::from(labels, DDim{rows});
}

template <class T>
void expect_losses(const Tensor& x, const Tensor& gradient, const Tensor& labels, const Tensor& losses, const Tensor& slopes,
                   StreamRef stream) {
  const Tensor logs = log_softmax(x, 1, stream);
  const Tensor from_right = sub(softmax(x, 1, stream), one_hot(labels, x.dim(1), -1, 0, 1, x.dtype(), stream), stream);
  const Tensor scaled = mul(gradient, from_right, stream);
  const std::vector<T> log_of = logs.to_vector<T>(), slope_of = scaled.to_vector<T>();
  const std::vector<std::int64_t> of = labels.to_vector<std::int64_t>();
  std::vector<T> wanted, wanted_slopes;
  const auto classes = static_cast<std::size_t>(x.dim(1));
  for (std::size_t row = 0; row < of.size(); ++row) {
    const bool counts = of[row] != ignored;
    wanted.push_back(counts ? -log_of[row * classes + static_cast<std::size_t>(of[row])] : T{0});
    for (std::size_t i = 0; i < classes; ++i) wanted_slopes.push_back(counts ? slope_of[row * classes + i] : T{0});
  }
  CHECK(same_bits(losses, Tensor::from(wanted, DDim{x.dim(0), 1})));
  CHECK(same_bits(slopes, Tensor::from(wanted_slopes, x.dims())));
}

}  // namespace

TEST_CASE("a cross entropy and its gradient have the bits of softmax and plain arithmetic, for any rows, on every instruction set") {
  Random random(3);
  each_instruction_set([&](const std::string& name) {
    CpuDevice one(1), two(2);
    for (const std::int64_t rows : {0, 1, 5, 700})
      for (const std::int64_t classes : {1, 3, 9, 16, 50}) {
        INFO(name, ", ", rows, " rows of ", classes);
        for (const DType dtype : {DType::f32, DType::f64}) {
          const Tensor x = random_tensor(random, dtype, DDim{rows, classes}, 5), gradient = random_tensor(random, dtype, DDim{rows, 1});
          const Tensor labels = random_labels(random, rows, classes);
          const Tensor losses = cross_entropy(x, labels, ignored, one.stream(0));
          const Tensor slopes = cross_entropy_gradient(gradient, x, labels, ignored, one.stream(0));
          if (dtype == DType::f32)
            expect_losses<float>(x, gradient, labels, losses, slopes, one.stream(0));
          else
            expect_losses<double>(x, gradient, labels, losses, slopes, one.stream(0));
          const Tensor turned = clone(x.permute({1, 0}), two.stream(0)).permute({1, 0});
          CHECK(same_bits(cross_entropy(turned, labels, ignored, two.stream(0)), losses));
          CHECK(same_bits(cross_entropy_gradient(gradient, turned, labels, ignored, two.stream(0)), slopes));
        }
      }
  });
}

TEST_CASE("a cross entropy agrees with the host on every device") {
  each_backend([](DeviceUnderTest& on) {
    Random random(4);
    CpuDevice host;
    for (const DType dtype : {DType::f32, DType::f64}) {
      const Tensor x = random_tensor(random, dtype, DDim{6, 5}, 3), gradient = random_tensor(random, dtype, DDim{6, 1});
      const Tensor labels = random_labels(random, 6, 5);
      const Tensor losses = on.down(cross_entropy(on.up(x), on.up(labels), ignored, on.stream()));
      CHECK(error_of(losses, reference::values(cross_entropy(x, labels, ignored, host.stream(0)))) <= 16 * rounding(dtype));
      const Tensor slopes = on.down(cross_entropy_gradient(on.up(gradient), on.up(x), on.up(labels), ignored, on.stream()));
      CHECK(error_of(slopes, reference::values(cross_entropy_gradient(gradient, x, labels, ignored, host.stream(0)))) <=
            16 * rounding(dtype));
    }
  });
}

TEST_CASE("a cross entropy names what does not fit") {
  CpuDevice device;
  Random random(5);
  const StreamRef stream = device.stream(0);
  const Tensor x = random_tensor(random, DType::f32, DDim{2, 3}), gradient = random_tensor(random, DType::f32, DDim{2, 1});
  const auto labels = [](std::vector<std::int64_t> all) { return Tensor::from(all, DDim{static_cast<std::int64_t>(all.size())}); };
  CHECK_THROWS_AS(cross_entropy(x, labels({0, 1, 2}), ignored, stream), ShapeError);
  CHECK_THROWS_AS(cross_entropy(x, Tensor::from(std::vector<std::int32_t>{0, 1}, DDim{2}), ignored, stream), DTypeError);
  CHECK_THROWS_AS(cross_entropy_gradient(x, x, labels({0, 1}), ignored, stream), ShapeError);
  CHECK_THROWS_AS(cross_entropy_gradient(random_tensor(random, DType::f64, DDim{2, 1}), x, labels({0, 1}), ignored, stream), DTypeError);
  CHECK_THROWS_WITH_AS(cross_entropy(x, labels({0, 3}), ignored, stream),
                       "softmax_cross_entropy: expected one of 3 classes as the label of row 1, found 3", IndexError);
  CHECK_THROWS_AS(cross_entropy_gradient(gradient, x, labels({-1, 0}), ignored, stream), IndexError);
  const Tensor half = cast(x, DType::bf16, stream), slopes = cast(gradient, DType::bf16, stream);
  CHECK_THROWS_WITH_AS(cross_entropy(half, labels({0, -1}), ignored, stream),
                       "softmax_cross_entropy: expected one of 3 classes as the label of row 1, found -1", IndexError);
  CHECK_THROWS_AS(cross_entropy_gradient(slopes, half, labels({0, 3}), ignored, stream), IndexError);
}

}  // namespace millrace::testing
