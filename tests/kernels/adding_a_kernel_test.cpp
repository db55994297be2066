// SPDX-License-Identifier: Apache-2.0
// The kernel of docs/adding_a_kernel.md, in full.
#include <algorithm>
#include <vector>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>
#include <millrace/kernels/cpu/rows_along.h>
#include <millrace/kernels/cpu/strided_loop.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/implementations.h>
#include <millrace/tensor/launch.h>
#include <millrace/tensor/visit.h>

namespace millrace {

// [contract]
/// y[n, c] = scale[n]·x[n, c] for x [N, C] and scale [N], floats of one dtype. Each product rounds once; f16 and bf16 are
/// computed in f32, then narrowed. ShapeError and DTypeError name both.
Tensor scale_rows(const Tensor& x, const Tensor& scale, StreamRef stream);
// [contract]

// [arithmetic]
namespace cpu {
namespace {

template <class T, class Wide>
void scale_rows_of(const Tensor& x, const Tensor& scale, const Tensor& out, ThreadTeam& team) {
  const T* from = static_cast<const T*>(x.raw());
  const T* factors = static_cast<const T*>(scale.raw());
  T* to = static_cast<T*>(out.raw_mutable());
  const std::int64_t columns = x.dim(1);
  const std::int64_t grain = std::max<std::int64_t>(1, grain_light / std::max<std::int64_t>(1, columns));
  team.parallel(x.dim(0), grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      const Wide factor = convert_element<Wide>(factors[n * scale.strides()[0]]);
      const T* row = from + n * x.strides()[0];
      for (std::int64_t c = 0; c < columns; ++c)
        to[n * columns + c] = convert_element<T>(factor * convert_element<Wide>(row[c * x.strides()[1]]));
    }
  });
}

}  // namespace

void scale_rows(const Tensor& x, const Tensor& scale, const Tensor& out, ThreadTeam& team) {
  visit_floats(x.dtype(), [&](auto element, auto wide) { scale_rows_of<decltype(element), decltype(wide)>(x, scale, out, team); });
}

}  // namespace cpu
// [arithmetic]

// [checks]
namespace {

constexpr internal::Implementations<const Tensor&, const Tensor&, const Tensor&> kernels{"scale_rows", {}, cpu::scale_rows};

}  // namespace

Tensor scale_rows(const Tensor& x, const Tensor& scale, StreamRef stream) {
  internal::check_device_places("scale_rows", stream, {&x, &scale});
  internal::check_floating("scale_rows", x);
  internal::check_same_dtype("scale_rows", x, scale);
  if (x.rank() != 2) throw ShapeError("scale_rows: expected x of [N, C], found " + x.to_string());
  internal::check_dims("scale_rows", "scale", scale, DDim{x.dim(0)});
  Tensor out(x.dtype(), x.dims(), stream.memory());
  launch(TensorRefs<2>{&x, &scale}, TensorRefs<1>{&out}, [=](KernelContext& context) { kernels.run(x, scale, out, context); }, stream);
  return out;
}
// [checks]

}  // namespace millrace

// [test]
namespace millrace::testing {

TEST_CASE("each row is multiplied by its own number, on every device and dtype") {
  each_backend([](DeviceUnderTest& on) {
    Random random(1);
    for (const DType dtype : floats) {
      const Tensor x = random_tensor(random, dtype, DDim{3, 5}), scale = random_tensor(random, dtype, DDim{3});
      auto column = reference::values(scale);
      column.dims = DDim{3, 1};
      const auto expected = reference::map([](double a, double b) { return a * b; }, reference::values(x), column);
      CHECK(error_of(on.down(scale_rows(on.up(x), on.up(scale), on.stream())), expected) <= 2.1 * rounding(dtype));
    }
  });
}

TEST_CASE("a scaled row has the same bits alone and in a batch, with 1 or 2 threads") {
  CpuDevice one(1), two(2);
  Random random(2);
  const Tensor x = random_tensor(random, DType::f32, DDim{64, 700}), scale = random_tensor(random, DType::f32, DDim{64});
  const Tensor whole = scale_rows(x, scale, one.stream(0));
  CHECK(same_bits(scale_rows(x, scale, two.stream(0)), whole));
  for (std::int64_t n = 0; n < 64; ++n)
    CHECK(same_bits(scale_rows(x.rows(n, n + 1), scale.rows(n, n + 1), two.stream(0)), whole.rows(n, n + 1)));
}

TEST_CASE("a scale of another length is an error that names both") {
  CpuDevice device;
  const Tensor x = Tensor::from(std::vector<float>(6, 1), DDim{2, 3});
  CHECK_THROWS_WITH_AS(scale_rows(x, Tensor::from<float>({1}), device.stream(0)), "scale_rows: expected [2] for scale, found [1]",
                       ShapeError);
}

TEST_CASE("no rows are scaled to no rows") {
  CpuDevice device;
  CHECK(scale_rows(Tensor(DType::f32, DDim{0, 3}), Tensor(DType::f32, DDim{0}), device.stream(0)).dims() == DDim{0, 3});
}

}  // namespace millrace::testing
// [test]
