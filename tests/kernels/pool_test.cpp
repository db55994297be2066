// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/pool.h>

#include <cmath>
#include <limits>
#include <string>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>
#include <millrace/kernels/cast.h>

namespace millrace::testing {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// The right one of two where they are equal, and the left NaN: the fold by definition.
template <class T>
T folded(Binary fold, T a, T b) {
  if (fold == Binary::add) return a + b;
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) ? a : b;
  return fold == Binary::maximum ? (a > b ? a : b) : (a < b ? a : b);
}

/// One axis of row-major x by definition.
template <class T>
Tensor along(const PoolDesc& desc, const PoolDesc::Axis& form, const Tensor& x, int axis) {
  DDim dims = x.dims();
  dims[axis] = PoolDesc::out_extent(form, x.dim(axis));
  Tensor out(x.dtype(), dims);
  std::int64_t inner = 1;
  for (int i = axis + 1; i < x.rank(); ++i) inner *= x.dim(i);
  for (std::int64_t at = 0; at < out.elements(); ++at) {
    const std::int64_t begin = at / inner % dims[axis] * form.stride - form.before, plane = at / inner / dims[axis];
    const auto element = [&](std::int64_t tap) {
      const std::int64_t place = begin + tap * form.dilation;
      return place < 0 || place >= x.dim(axis) ? static_cast<T>(desc.padding())
                                               : x.data<T>()[(plane * x.dim(axis) + place) * inner + at % inner];
    };
    T total = element(0);
    for (std::int64_t tap = 1; tap < form.kernel; ++tap) total = folded(desc.fold, total, element(tap));
    out.mutable_data<T>()[at] = total;
  }
  return out;
}

Tensor by_definition(const PoolDesc& desc, Tensor x) {
  const int first = x.rank() - static_cast<int>(desc.axes.size());
  for (int axis = first; axis < x.rank(); ++axis) {
    const PoolDesc::Axis& form = desc.axes[static_cast<std::size_t>(axis - first)];
    x = x.dtype() == DType::f64 ? along<double>(desc, form, x, axis) : along<float>(desc, form, x, axis);
  }
  return x;
}

/// Random numbers among which are zeros of both signs and infinity; for what sums nothing also −∞ and NaN, whose sums have no one sign.
Tensor with_edges(Random& random, DType dtype, const DDim& dims, Binary fold) {
  Tensor x = random_tensor(random, dtype, dims);
  const double edges[] = {0.0, -0.0, infinity, -infinity, std::nan("")};
  const std::int64_t count = fold == Binary::add ? 3 : 5;
  for (std::int64_t i = 0; i < x.elements(); ++i) {
    const std::int64_t which = random.between(0, 19);
    if (which >= count) continue;
    if (dtype == DType::f64)
      x.mutable_data<double>()[i] = edges[which];
    else
      x.mutable_data<float>()[i] = static_cast<float>(edges[which]);
  }
  return x;
}

}  // namespace

TEST_CASE("windows of up to three axes have the bits of folds one element after the other, also with 2 threads and as rows alone") {
  CpuDevice one(1), two(2);
  for (const std::uint64_t seed : seeds(60)) {
    INFO("seed ", seed);
    Random random(seed);
    const DType dtype = random.coin() ? DType::f32 : DType::f64;
    PoolDesc desc;
    desc.fold = std::vector{Binary::maximum, Binary::minimum, Binary::add}[static_cast<std::size_t>(random.between(0, 2))];
    DDim dims{random.between(1, 3), random.between(1, 4)};
    for (std::int64_t axis = random.between(1, 3); axis > 0; --axis) {
      dims = dims.inserted(dims.rank(), random.between(0, 3) == 0 ? 1 : random.between(1, axis == 1 ? 90 : 12));
      PoolDesc::Axis form;
      switch (random.between(0, 3)) {
        case 0: break;  // a window of one element
        case 1: form.kernel = form.stride = random.between(1, 5); break;
        default: form = {random.between(1, 7), random.between(1, 5), random.between(1, 3), random.between(0, 2), random.between(0, 2)};
      }
      desc.axes.push_back(form);
    }
    const Tensor x = with_edges(random, dtype, dims, desc.fold);
    const Tensor out = pool(desc, x, one.stream(0));
    CHECK(same_bits(out, by_definition(desc, x)));
    CHECK(same_bits(out, pool(desc, x, two.stream(0))));
    const Tensor last = pool(desc, x.rows(x.dim(0) - 1, x.dim(0)), one.stream(0));
    CHECK(same_bits(last, clone(out.rows(x.dim(0) - 1, x.dim(0)), one.stream(0))));
  }
}

TEST_CASE("windows that fill long rows have the bits of their elements folded in order") {
  CpuDevice one(1), two(2);
  Random random(3);
  for (const std::int64_t kernel : {2, 3, 4, 5}) {
    for (const std::int64_t above : {1, 2}) {  // windows of one axis fill all rows together
      PoolDesc desc;
      desc.axes = {{above, above}, {kernel, kernel}};
      for (const std::int64_t extent : {60, 64}) {
        const Tensor x = with_edges(random, DType::f32, DDim{8, 16, 60, extent}, desc.fold);
        const Tensor out = pool(desc, x, two.stream(0));
        CHECK(same_bits(out, by_definition(desc, x)));
        CHECK(same_bits(out, pool(desc, x, one.stream(0))));
      }
    }
  }
}

TEST_CASE("small planes, and planes of many strips, have the bits of their elements folded in order, on every instruction set") {
  each_instruction_set([](const std::string& name) {
    INFO(name);
    CpuDevice one(1), two(2);
    Random random(6);
    for (const DType dtype : {DType::f32, DType::f64})
      for (const Binary fold : {Binary::maximum, Binary::minimum, Binary::add})
        for (const PoolDesc::Axis& form :
             {PoolDesc::Axis{2, 2}, {3, 2, 1, 1, 1}, {3, 1, 1, 1, 1}, {5, 1, 1, 2, 2}, {3, 1, 2, 2, 2}, {7, 2, 1, 0, 6}, {1, 2}})
          for (const DDim& dims : {DDim{2, 5, 7, 7}, DDim{1, 3, 12, 15}, DDim{3, 9, 33}, DDim{1, 1, 40, 700}}) {
            PoolDesc desc;
            desc.fold = fold;
            desc.axes = {form, form};
            const Tensor x = with_edges(random, dtype, dims, fold);
            const Tensor out = pool(desc, x, one.stream(0));
            CHECK(same_bits(out, by_definition(desc, x)));
            CHECK(same_bits(out, pool(desc, x, two.stream(0))));
          }
  });
}

TEST_CASE("a view is pooled as what it shows, and padding is no element of a maximum") {
  CpuDevice device;
  Random random(4);
  PoolDesc desc;
  desc.axes = {{3, 2, 1, 2, 2}};
  const Tensor x = random_tensor(random, DType::f32, DDim{7, 5});
  CHECK(same_bits(pool(desc, x.permute({1, 0}), device.stream(0)), by_definition(desc, clone(x.permute({1, 0}), device.stream(0)))));
  const Tensor low = Tensor::from<float>({-7, -8});
  const Tensor out = pool(desc, low, device.stream(0));
  REQUIRE(out.dims() == DDim{2});
  CHECK(out.data<float>()[0] == -7);
  CHECK(out.data<float>()[1] == -7);
  desc.axes = {{2, 1, 1, 2, 0}};
  CHECK(pool(desc, low, device.stream(0)).data<float>()[0] == static_cast<float>(-infinity));
}

TEST_CASE("extremes of f16 and bf16 have the bits of those of f32") {
  CpuDevice device;
  Random random(7);
  const StreamRef stream = device.stream(0);
  for (const DType dtype : {DType::f16, DType::bf16})
    for (const Binary fold : {Binary::maximum, Binary::minimum}) {
      PoolDesc desc;
      desc.fold = fold;
      desc.axes = {{3, 2, 1, 1, 1}, {2, 2}};
      const Tensor x = cast(with_edges(random, DType::f32, DDim{2, 3, 9, 40}, fold), dtype, stream);
      const Tensor out = pool(desc, x, stream);
      CHECK(out.dtype() == dtype);
      CHECK(same_bits(out, cast(by_definition(desc, cast(x, DType::f32, stream)), dtype, stream)));
    }
}

TEST_CASE("pools run on a simulated device behind what makes their input") {
  DeviceUnderTest on = sim_backend();
  Random random(5);
  PoolDesc desc;
  desc.axes = {{2, 2}, {2, 1, 1, 1, 0}};
  const Tensor x = random_tensor(random, DType::f32, DDim{2, 3, 9, 8});
  CHECK(same_bits(on.down(pool(desc, on.up(x), on.stream())), by_definition(desc, x)));
}

TEST_CASE("a pool without windows is empty, and refuses what does not fit by name") {
  CpuDevice device;
  const StreamRef stream = device.stream(0);
  PoolDesc desc;
  desc.axes = {{4, 1}};
  CHECK(pool(desc, Tensor::from(std::vector<float>(6), DDim{2, 3}), stream).dims() == DDim{2, 0});
  CHECK(pool(desc, Tensor(DType::f32, DDim{0, 9}), stream).dims() == DDim{0, 6});
  const Tensor x = Tensor::from<float>({1, 2, 3, 4, 5});
  CHECK_THROWS_WITH_AS(pool(desc, Tensor(DType::i64, DDim{5}), stream), "pool: expected floats for x, found i64[5] on cpu", DTypeError);
  desc.axes = {{2, 1}, {2, 1}};
  CHECK_THROWS_WITH_AS(pool(desc, x, stream), "pool: expected 1 axis or more and as many in x, found 2 and f32[5] on cpu", ShapeError);
  desc.axes = {{2, 0}};
  CHECK_THROWS_WITH_AS(pool(desc, x, stream),
                       "pool: expected kernels, strides and dilations of 1 or more and pads of 0 or more, found 2, 0, 1, 0 and 0",
                       ArgumentError);
  desc = {Binary::add, {{2, 1}}};
  CHECK_THROWS_WITH_AS(pool(desc, Tensor(DType::f16, DDim{5}), stream), "pool: expected f32 or f64 for x, found f16[5] on cpu", DTypeError);
  desc = {Binary::mul, {{2, 1}}};
  CHECK_THROWS_WITH_AS(pool(desc, x, stream), "pool: expected maximum, minimum or add, found mul", ArgumentError);
}

}  // namespace millrace::testing
