// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/conv.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>
#include <millrace/kernels/cast.h>
#include <millrace/kernels/conv1d.h>
#include <millrace/kernels/matmul.h>
#include <millrace/kernels/unary.h>
#include <millrace/kernels/unit_weights.h>
#include <millrace/kernels/winograd.h>

namespace millrace::testing {
namespace {

/// Each place's elements side by side, [N·L, k], channels before taps: what the dot products of a group multiply.
template <class T>
Tensor unfolded(const ConvDesc& desc, const Tensor& x, const Tensor& w, const DDim& out, std::int64_t group) {
  const std::int64_t places = out.erased(0).erased(0).elements(), k = w.elements() / w.dim(0);
  Tensor made(x.dtype(), DDim{x.dim(0) * places, k});
  T* to = made.mutable_data<T>();
  const int spatial = x.rank() - 2;
  const DDim taps = w.dims().erased(0).erased(0);
  for (std::int64_t n = 0; n < x.dim(0); ++n)
    for (std::int64_t place = 0; place < places; ++place)
      for (std::int64_t c = 0; c < w.dim(1); ++c)
        for (std::int64_t tap = 0; tap < taps.elements(); ++tap) {
          std::int64_t place_left = place, tap_left = tap, step = 1, at = 0;
          bool inside = true;
          for (int axis = spatial - 1; axis >= 0; --axis) {
            const ConvDesc::Axis& form = desc.axes[static_cast<std::size_t>(axis)];
            const std::int64_t i = place_left % out[axis + 2] * form.stride + tap_left % taps[axis] * form.dilation - form.before;
            place_left /= out[axis + 2];
            tap_left /= taps[axis];
            inside = inside && i >= 0 && i < x.dim(axis + 2);
            at += i * step;
            step *= x.dim(axis + 2);
          }
          *to++ = inside ? x.data<T>()[(n * x.dim(1) + group * w.dim(1) + c) * step + at] : T{0};
        }
  return made;
}

/// The convolution by definition: products of unfolded rows, then the bias, then relu.
template <class T>
Tensor by_products(const ConvDesc& desc, const Tensor& x, const Tensor& w, const Tensor* bias, const DDim& dims, StreamRef stream) {
  Tensor out(x.dtype(), dims);
  T* to = out.mutable_data<T>();
  const std::int64_t places = dims.erased(0).erased(0).elements(), units = w.dim(0) / desc.groups, k = w.elements() / w.dim(0);
  for (std::int64_t group = 0; group < desc.groups; ++group) {
    const Tensor rows = w.reshape(DDim{w.dim(0), k}).rows(group * units, (group + 1) * units);
    const Tensor sums = matmul(unfolded<T>(desc, x, w, dims, group), rows.permute({1, 0}), stream);
    for (std::int64_t row = 0; row < sums.dim(0); ++row)
      for (std::int64_t unit = 0; unit < units; ++unit) {
        T value = sums.data<T>()[row * units + unit];
        if (bias != nullptr) value += bias->data<T>()[group * units + unit];
        if (desc.relu) value = value > 0 ? value : T{0};
        to[(row / places * dims[1] + group * units + unit) * places + row % places] = value;
      }
  }
  return out;
}

}  // namespace

TEST_CASE("bounds and hard_swish behind a convolution have the bits of a pass of its own, in each form of it, on every instruction set") {
  each_instruction_set([](const std::string& name) {
    INFO(name);
    CpuDevice one(1), two(2);
    Random random(11);
    struct Form {
      DDim x, w;
      std::int64_t groups, stride;
    };
    const Form forms[] = {{{2, 5, 9, 20}, {13, 5, 3, 3}, 1, 1},  // places in the lanes
                          {{1, 7, 6, 70}, {9, 7, 1, 1}, 1, 1},
                          {{2, 12, 9, 20}, {12, 1, 3, 3}, 12, 1},  // depthwise, rows
                          {{1, 50, 4, 5}, {50, 1, 3, 3}, 50, 2},   // depthwise, channels in the lanes
                          {{1, 24, 5, 6}, {40, 24, 3, 3}, 1, 1}};  // units in the lanes, and rows in fours
    for (const DType dtype : {DType::f32, DType::f64})
      for (const Form& form : forms) {
        ConvDesc desc{{{form.stride, 1, 1, 1}, {form.stride, 1, 1, 1}}, form.groups};
        desc.relu = random.between(0, 3) == 0;
        const Tensor x = random_tensor(random, dtype, form.x), w = random_tensor(random, dtype, form.w);
        const double nan = std::numeric_limits<double>::quiet_NaN();
        Tensor bias = random_tensor(random, dtype, DDim{form.w[0]});
        if (dtype == DType::f64)
          bias.mutable_data<double>()[1] = nan;
        else
          bias.mutable_data<float>()[1] = static_cast<float>(nan);
        const auto number = [&](double value) {
          return dtype == DType::f64 ? Tensor::scalar(value) : Tensor::scalar(static_cast<float>(value));
        };
        const Tensor plain = conv(desc, x, w, &bias, one.stream(0));
        const ConvSteps all[] = {
            {{ArithmeticStep::maximum, ArithmeticStep::minimum}, {number(-0.5), number(0.75)}},
            {{ArithmeticStep::maximum, ArithmeticStep::minimum}, {number(0), number(nan)}},
            {{ArithmeticStep::maximum, ArithmeticStep::minimum, ArithmeticStep::add}, {number(0), number(6), plain}},
            {{ArithmeticStep::maximum, ArithmeticStep::minimum, ArithmeticStep::mul}, {number(0), number(1), std::nullopt}},
            {{ArithmeticStep::hard_swish}, {}},
            {{ArithmeticStep::hard_swish, ArithmeticStep::mul}, {number(2)}}};
        for (const ConvSteps& steps : all) {
          const Tensor wanted = take_steps(steps, plain, one.stream(0));
          CHECK(same_bits(conv(desc, x, w, &bias, one.stream(0), nullptr, steps), wanted));
          CHECK(same_bits(conv(desc, x, w, &bias, two.stream(0), nullptr, steps), wanted));
          if (const auto units = pack_units(desc, w, one.stream(0)))
            CHECK(same_bits(conv(desc, x, *units, &bias, one.stream(0), steps), wanted));
          if (const auto fours = transform_winograd(desc, w))
            CHECK(same_bits(conv(desc, x, *fours, &bias, one.stream(0), steps),
                            take_steps(steps, conv(desc, x, *fours, &bias, one.stream(0)), one.stream(0))));
        }
      }
  });
}

TEST_CASE("a convolution along one to three axes has the bits of the products of its unfolded rows") {
  CpuDevice one(1), two(2);
  for (const std::uint64_t seed : seeds(40)) {
    INFO("seed ", seed);
    Random random(seed);
    const DType dtype = random.coin() ? DType::f32 : DType::f64;
    const int spatial = static_cast<int>(random.between(1, 3));
    ConvDesc desc;
    desc.groups = random.between(1, 2);
    desc.relu = random.coin();
    const bool plain = random.coin();
    DDim x_dims{random.between(1, 3), desc.groups * random.between(1, seed % 5 == 0 ? 70 : 4)};
    DDim w_dims{desc.groups * random.between(1, 15), x_dims[1] / desc.groups};
    for (int axis = 2; axis < spatial + 2; ++axis) {
      desc.axes.push_back({plain ? 1 : random.between(1, 3), random.between(1, 2), random.between(0, 2), random.between(0, 2)});
      w_dims = w_dims.inserted(axis, random.between(1, 4));
      x_dims = x_dims.inserted(axis, random.between(8, spatial == 1 ? 200 : 20));
    }
    const Tensor x = random_tensor(random, dtype, x_dims), w = random_tensor(random, dtype, w_dims);
    const Tensor bias = random_tensor(random, dtype, DDim{w_dims[0]});
    const Tensor* addend = random.coin() ? &bias : nullptr;
    const Tensor out = conv(desc, x, w, addend, one.stream(0));
    const Tensor expected = dtype == DType::f32 ? by_products<float>(desc, x, w, addend, out.dims(), one.stream(0))
                                                : by_products<double>(desc, x, w, addend, out.dims(), one.stream(0));
    CHECK(same_bits(out, expected));
    CHECK(same_bits(out, conv(desc, x, w, addend, two.stream(0))));
    const Tensor last = conv(desc, x.rows(x.dim(0) - 1, x.dim(0)), w, addend, one.stream(0));
    CHECK(same_bits(last, clone(out.rows(x.dim(0) - 1, x.dim(0)), one.stream(0))));
  }
}

TEST_CASE("the last places of a convolution have the bits of products however many they are, on every instruction set") {
  each_instruction_set([](const std::string& name) {
    INFO(name);
    CpuDevice device;
    Random random(5);
    for (const std::int64_t width : {3, 9, 17, 18, 34, 50, 51, 66})
      for (const std::int64_t stride : {1, 2, 3}) {
        ConvDesc desc;
        desc.axes = {{stride, 1, 1, 0}, {stride == 2 ? 1 : 2, 1, 0, 1}};
        for (const std::int64_t channels : {3, 90}) {  // 3·2·90 k are two blocks
          const Tensor x = random_tensor(random, DType::f32, DDim{2, channels, 7, width});
          const Tensor w = random_tensor(random, DType::f32, DDim{10, channels, 3, 2});
          const Tensor out = conv(desc, x, w, nullptr, device.stream(0));
          CHECK(same_bits(out, by_products<float>(desc, x, w, nullptr, out.dims(), device.stream(0))));
        }
      }
  });
}

TEST_CASE("rows of the output that are whole panels of places have the bits of products, on every instruction set") {
  each_instruction_set([](const std::string& name) {
    INFO(name);
    CpuDevice one(1), two(2);
    Random random(6);
    const DDim spaces[] = {{5, 32}, {4, 64}, {1, 128}, {2, 3, 64}};
    for (const DDim& space : spaces)
      for (const std::int64_t stride : {1, 2})
        for (const std::int64_t channels : {1, 60}) {  // 3·3·60 k are two blocks
          CAPTURE(space.to_string());
          CAPTURE(stride);
          CAPTURE(channels);
          ConvDesc desc;
          desc.groups = 2;
          desc.relu = stride == 2;
          DDim x_dims{2, 2 * channels}, w_dims{22, channels};
          for (int axis = 0; axis < space.rank(); ++axis) {
            const bool last = axis + 1 == space.rank();
            desc.axes.push_back({last ? 1 : stride, 1, 1, 1});
            x_dims = x_dims.inserted(axis + 2, last ? space[axis] : (space[axis] - 1) * stride + 1);
            w_dims = w_dims.inserted(axis + 2, 3);
          }
          const Tensor x = random_tensor(random, DType::f32, x_dims), w = random_tensor(random, DType::f32, w_dims);
          const Tensor bias = random_tensor(random, DType::f32, DDim{22});
          const Tensor out = conv(desc, x, w, &bias, one.stream(0));
          REQUIRE(out.dim(-1) == space[-1]);
          CHECK(same_bits(out, by_products<float>(desc, x, w, &bias, out.dims(), one.stream(0))));
          CHECK(same_bits(out, conv(desc, x, w, &bias, two.stream(0))));
        }
  });
}

TEST_CASE("a depthwise convolution has the bits of the products of its unfolded rows, on every instruction set") {
  each_instruction_set([](const std::string& name) {
    INFO(name);
    CpuDevice one(1), two(2);
    for (const std::uint64_t seed : seeds(25)) {
      INFO("seed ", seed);
      Random random(seed);
      const DType dtype = random.between(0, 3) == 0 ? DType::f64 : DType::f32;
      const int spatial = static_cast<int>(random.between(1, 2));
      ConvDesc desc;
      desc.groups = random.between(2, 5);
      desc.relu = random.coin();
      DDim x_dims{random.between(1, 2), desc.groups}, w_dims{desc.groups * random.between(1, 2), 1};
      const std::int64_t stride = random.between(1, 3), dilation = random.between(1, 4) == 1 ? 2 : 1, taps = random.between(1, 6);
      for (int axis = 2; axis < spatial + 2; ++axis) {
        desc.axes.push_back({random.coin() ? stride : random.between(1, 2), dilation, random.between(0, 3), random.between(0, 3)});
        w_dims = w_dims.inserted(axis, random.coin() ? taps : random.between(1, 3));
        x_dims = x_dims.inserted(axis, random.between(1, axis == spatial + 1 ? 90 : 20));
      }
      const Tensor dense = random_tensor(random, dtype, x_dims), w = random_tensor(random, dtype, w_dims);
      const std::vector<int> turn = spatial == 1 ? std::vector<int>{1, 0, 2} : std::vector<int>{1, 0, 3, 2};
      const Tensor x = random.coin() ? dense : clone(dense.permute(turn), one.stream(0)).permute(turn);
      const Tensor bias = random_tensor(random, dtype, DDim{w_dims[0]});
      const Tensor* addend = random.coin() ? &bias : nullptr;
      const Tensor out = conv(desc, x, w, addend, one.stream(0));
      const Tensor expected = dtype == DType::f32 ? by_products<float>(desc, dense, w, addend, out.dims(), one.stream(0))
                                                  : by_products<double>(desc, dense, w, addend, out.dims(), one.stream(0));
      CHECK(same_bits(out, expected));
      CHECK(same_bits(out, conv(desc, x, w, addend, two.stream(0))));
    }
  });
}

TEST_CASE("a depthwise convolution of many small planes has the bits of products, of tiny sums and of weights that are not finite too") {
  each_instruction_set([](const std::string& name) {
    INFO(name);
    CpuDevice one(1), two(2);
    for (const std::uint64_t seed : seeds(40)) {
      INFO("seed ", seed);
      Random random(seed);
      const DType dtype = random.between(0, 3) == 0 ? DType::f64 : DType::f32;
      ConvDesc desc;
      desc.groups = random.between(2, 50);
      desc.relu = seed % 4 != 0 && random.between(0, 3) == 0;  // `by_products` makes zeros of NaN
      const bool odd = random.coin();
      const std::int64_t taps = odd ? random.between(1, 2) * 2 + 1 : random.between(1, 4), stride = random.between(1, 2);
      for (int axis = 0; axis < 2; ++axis) desc.axes.push_back({stride, odd ? 1 : random.between(1, 2), taps / 2, random.between(0, taps)});
      const Tensor x = random_tensor(random, dtype, DDim{random.between(1, 3), desc.groups, random.between(1, 12), random.between(1, 20)});
      Tensor w = random_tensor(random, dtype, DDim{desc.groups, 1, taps, taps});
      const auto visit = [&](auto zero) {
        using T = decltype(zero);
        T* const weights = w.mutable_data<T>();
        if (seed % 4 == 0) weights[random.between(0, w.elements() - 1)] = std::numeric_limits<T>::infinity();
        if (seed % 4 == 1)  // products that are too small leave zeros with their signs
          for (std::int64_t i = 0; i < w.elements(); ++i) weights[i] *= std::numeric_limits<T>::denorm_min();
        const Tensor bias = random_tensor(random, dtype, DDim{desc.groups});
        const Tensor* addend = random.coin() ? &bias : nullptr;
        const Tensor out = conv(desc, x, w, addend, one.stream(0));
        CHECK(same_bits(out, by_products<T>(desc, x, w, addend, out.dims(), one.stream(0))));
        CHECK(same_bits(out, conv(desc, x, w, addend, two.stream(0))));
        const ConvSteps steps{{ArithmeticStep::mul, ArithmeticStep::hard_swish},
                              {random_tensor(random, dtype, random.coin() ? DDim{} : DDim{desc.groups, 1, 1})}};
        CHECK(same_bits(conv(desc, x, w, addend, two.stream(0), nullptr, steps), take_steps(steps, out, one.stream(0))));
      };
      dtype == DType::f64 ? visit(double{}) : visit(float{});
    }
  });
}

TEST_CASE(
    "a depthwise convolution of a small image between wide pads has the bits of products, and planes of more elements than an integer "
    "counts are an error") {
  CpuDevice one(1);
  Random random(7);
  for (const std::int64_t far : {200, 30000}) {
    const ConvDesc along{{{1, far, 2 * far, 0}}, 20}, down{{{far, 1, far, 0}, {1, 1, 0, 1}}, 20},
        across{{{1, 1, 1, 1}, {far, 1, far, 0}}, 20};
    const Tensor row = random_tensor(random, DType::f32, DDim{1, 20, 5}), plane = random_tensor(random, DType::f32, DDim{1, 20, 3, 4});
    const Tensor taps = random_tensor(random, DType::f32, DDim{20, 1, 3}), square = random_tensor(random, DType::f32, DDim{20, 1, 2, 2});
    for (const auto& [desc, x, w] : {std::tuple(along, row, taps), std::tuple(down, plane, square), std::tuple(across, plane, square)}) {
      const Tensor out = conv(desc, x, w, nullptr, one.stream(0));
      CHECK(same_bits(out, by_products<float>(desc, x, w, nullptr, out.dims(), one.stream(0))));
    }
  }
  for (const std::int64_t far : {std::int64_t{1} << 31, std::int64_t{1} << 62}) {
    const ConvDesc wide{{{far, 1, far - 4, 0}, {far, 1, far - 4, 0}}, 2};
    const Tensor x = random_tensor(random, DType::f32, DDim{1, 2, 4, 4}), w = random_tensor(random, DType::f32, DDim{2, 1, 1, 1});
    CHECK_THROWS_AS(conv(wide, x, w, nullptr, one.stream(0)), OverflowError);
  }
}

TEST_CASE("rows at the edges of a wide plane leave out the taps that see padding alone, and have the bits of all products") {
  CpuDevice one(1), two(2);
  Random random(8);
  for (const std::int64_t height : {1, 2, 5}) {
    for (const std::int64_t channels : {1, 70}) {  // 3·3·70 k are two blocks
      CAPTURE(height);
      CAPTURE(channels);
      ConvDesc desc;
      desc.axes = {{1, height == 5 ? 2 : 1, 2, 1}, {1, 1, 1, 1}};
      const Tensor x = random_tensor(random, DType::f32, DDim{2, channels, height + 2, 150});
      Tensor w = random_tensor(random, DType::f32, DDim{11, channels, 3, 3});
      const Tensor bias = random_tensor(random, DType::f32, DDim{11});
      const Tensor out = conv(desc, x, w, &bias, one.stream(0));
      CHECK(same_bits(out, by_products<float>(desc, x, w, &bias, out.dims(), one.stream(0))));
      CHECK(same_bits(out, conv(desc, x, w, &bias, two.stream(0))));
      w.mutable_data<float>()[0] = std::numeric_limits<float>::infinity();  // times padding it is NaN
      const Tensor edge = conv(desc, x, w, &bias, one.stream(0));
      CHECK(std::isnan(edge.data<float>()[0]));
      CHECK(std::isnan(edge.data<float>()[100]));
    }
  }
}

TEST_CASE("taps at which runs of units have no weights are left out with the bits of all taps, on every instruction set") {
  each_instruction_set([](const std::string& name) {
    INFO(name);
    CpuDevice one(1), two(2);
    Random random(9);
    for (const std::int64_t groups : {1, 2})
      for (const std::int64_t channels : {2, 100})  // 3·2·100 k are two blocks
        for (const std::int64_t width : {5, 40, 150}) {
          ConvDesc desc;
          desc.groups = groups;
          desc.relu = random.coin();
          desc.axes = {{random.between(1, 2), 1, 1, 1}, {1, random.between(1, 2), random.between(0, 1), 0}};
          Tensor x = random_tensor(random, DType::f32, DDim{2, channels * groups, 6, width});
          Tensor w = random_tensor(random, DType::f32, DDim{22 * groups, channels, 3, 2});
          for (std::int64_t i = 0; i < w.elements(); ++i) {
            const std::int64_t unit = i / (channels * 6) % 22, tap = i % 6;
            if ((unit >= 9 && tap == 5) || (unit >= 15 && tap < 2)) w.mutable_data<float>()[i] = 0;
          }
          const Tensor bias = random_tensor(random, DType::f32, DDim{22 * groups});
          const auto taps = find_taps(desc, w);
          REQUIRE(taps != nullptr);
          CHECK(std::ssize(taps->parts) == 3 * groups);
          const Tensor all = conv(desc, x, w, &bias, one.stream(0));
          CHECK(same_bits(conv(desc, x, w, &bias, one.stream(0), taps), all));
          CHECK(same_bits(conv(desc, x, w, &bias, two.stream(0), taps), all));
          x.mutable_data<float>()[x.elements() - 1] = std::numeric_limits<float>::infinity();  // times 0 it is NaN
          CHECK(same_bits(conv(desc, x, w, &bias, one.stream(0), taps), conv(desc, x, w, &bias, one.stream(0))));
        }
  });
}

TEST_CASE("taps of weights that are everywhere, of few units or of each channel apart are not looked at") {
  Random random(10);
  ConvDesc desc;
  desc.axes = {{1, 1, 0, 0}};
  Tensor w = random_tensor(random, DType::f32, DDim{6, 3, 4});
  CHECK(find_taps(desc, w) == nullptr);
  for (std::int64_t i = 0; i < w.elements(); ++i)
    if (i % 4 == i / 12 % 4) w.mutable_data<float>()[i] = 0;
  CHECK(find_taps(desc, w) == nullptr);
  desc.groups = 6;
  CHECK(find_taps(desc, Tensor::from(std::vector<float>(24, 0.0f), DDim{6, 1, 4})) == nullptr);
  CHECK(find_taps(desc, Tensor(DType::f32, DDim{0, 1, 4})) == nullptr);
}

TEST_CASE("padding that is wider than the kernel on both sides of an axis gives each place, whichever axis it is") {
  CpuDevice device;
  Random random(3);
  for (const std::int64_t groups : {1, 3})
    for (std::size_t wide = 0; wide < 3; ++wide) {
      CAPTURE(groups);
      CAPTURE(wide);
      ConvDesc desc;
      desc.groups = groups;
      desc.axes.resize(3);
      desc.axes[wide].before = desc.axes[wide].after = 6;
      const Tensor x = random_tensor(random, DType::f32, {2, 3, 4, 5, 9}), w = random_tensor(random, DType::f32, {6, 3 / groups, 1, 3, 3});
      const Tensor made = conv(desc, x, w, nullptr, device.stream(0)).copy_to(CpuPlace{});
      CHECK(same_bits(made, by_products<float>(desc, x, w, nullptr, made.dims(), device.stream(0))));
    }
}

TEST_CASE("a convolution along one axis has the bits of conv1d, over views too") {
  CpuDevice device;
  Random random(5);
  const StreamRef stream = device.stream(0);
  for (const std::int64_t length : {3, 31, 64, 263}) {
    const Tensor x = random_tensor(random, DType::f32, DDim{length, 2, 60}).permute({1, 2, 0}),
                 w = random_tensor(random, DType::f32, DDim{5, 60, 10});
    const Tensor bias = random_tensor(random, DType::f32, DDim{5});
    Conv1dDesc one;
    one.in_channels = 60;
    one.out_channels = 5;
    one.kernel = 10;
    one.pad_before = 4;
    one.pad_after = 5;
    ConvDesc desc;
    desc.axes = {{1, 1, 4, 5}};
    CHECK(same_bits(conv(desc, x, w, &bias, stream), conv1d(one, x, w, &bias, stream)));
  }
}

TEST_CASE("a convolution of f16 or bf16 is that of f32, rounded once ahead of its relu, by weights of every form") {
  CpuDevice device;
  Random random(15);
  const StreamRef stream = device.stream(0);
  struct Form {
    DDim x, w;
    std::int64_t groups;
  };
  for (const DType narrow : {DType::f16, DType::bf16})
    for (const Form& form : {Form{{2, 24, 9, 17}, {9, 24, 3, 3}, 1}, {{1, 40, 2, 6}, {33, 40, 3, 3}, 1}, {{2, 5, 9, 40}, {5, 1, 3, 3}, 5}})
      for (const bool relu : {false, true}) {
        INFO(name_of(narrow), " ", form.w.to_string(), " ", relu);
        ConvDesc desc;
        desc.axes = {{1, 1, 1, 1}, {1, 1, 0, 1}};
        desc.groups = form.groups;
        const Tensor x = cast(random_tensor(random, DType::f32, form.x), narrow, stream),
                     w = cast(random_tensor(random, DType::f32, form.w), narrow, stream);
        const Tensor bias = cast(random_tensor(random, DType::f32, DDim{form.w[0]}), narrow, stream);
        const Tensor wide_x = cast(x, DType::f32, stream), wide_w = cast(w, DType::f32, stream), wide_bias = cast(bias, DType::f32, stream);
        const auto rounded = [&](const Tensor& sums) {
          const Tensor made = cast(sums, narrow, stream);
          return relu ? unary(Unary::relu, default_params(Unary::relu), made, stream) : made;
        };
        const Tensor expected = rounded(conv(desc, wide_x, wide_w, &wide_bias, stream));
        desc.relu = relu;
        const Tensor found = conv(desc, x, w, &bias, stream);
        CHECK(found.dtype() == narrow);
        CHECK(same_bits(found, expected));
        CHECK(same_bits(conv(desc, x, wide_w, &wide_bias, stream), expected));
        ConvDesc plain = desc;
        plain.relu = false;
        if (const auto units = pack_units(desc, wide_w, stream))
          CHECK(same_bits(conv(desc, x, *units, &bias, stream), rounded(conv(plain, wide_x, *units, &wide_bias, stream))));
        if (const auto fours = transform_winograd(desc, wide_w))
          CHECK(same_bits(conv(desc, x, *fours, &bias, stream), rounded(conv(plain, wide_x, *fours, &wide_bias, stream))));
        CHECK_THROWS_AS(conv(desc, x, cast(w, DType::f64, stream), nullptr, stream), DTypeError);
        const Tensor other = cast(bias, DType::f64, stream);
        CHECK_THROWS_AS(conv(desc, x, w, &other, stream), DTypeError);
      }
}

TEST_CASE("a convolution without elements is empty, and refuses what does not fit by name") {
  CpuDevice device;
  Random random(6);
  const StreamRef stream = device.stream(0);
  ConvDesc desc;
  desc.axes = {{}, {}};
  const auto f32 = [&](const DDim& dims) { return random_tensor(random, DType::f32, dims); };
  CHECK(conv(desc, f32({0, 2, 5, 5}), f32({3, 2, 2, 2}), nullptr, stream).dims() == DDim{0, 3, 4, 4});
  CHECK(conv(desc, f32({1, 2, 1, 5}), f32({3, 2, 2, 2}), nullptr, stream).dims() == DDim{1, 3, 0, 4});
  CHECK_THROWS_AS(conv(desc, f32({1, 3, 5, 5}), f32({3, 2, 2, 2}), nullptr, stream), ShapeError);
  CHECK_THROWS_AS(conv(desc, f32({1, 2, 5}), f32({3, 2, 2, 2}), nullptr, stream), ShapeError);
  CHECK_THROWS_AS(conv(desc, random_tensor(random, DType::f64, {1, 2, 5, 5}), f32({3, 2, 2, 2}), nullptr, stream), DTypeError);
  desc.axes[0].stride = 0;
  CHECK_THROWS_AS(conv(desc, f32({1, 2, 5, 5}), f32({3, 2, 2, 2}), nullptr, stream), ArgumentError);
}

TEST_CASE("a convolution of no channels is the bias, along any axes, with and without pads") {
  CpuDevice device;
  for (const int spatial : {1, 2, 3})
    for (const std::int64_t pad : {0, 2}) {
      INFO("axes ", spatial, ", pad ", pad);
      ConvDesc desc;
      DDim x{2, 0}, w{3, 0};
      for (int axis = 0; axis < spatial; ++axis) {
        desc.axes.push_back({.before = pad, .after = pad});
        x = x.inserted(axis + 2, 5);
        w = w.inserted(axis + 2, 3);
      }
      const Tensor bias = Tensor::from<float>({1, 2, 3});
      const Tensor out = conv(desc, Tensor(DType::f32, x), Tensor(DType::f32, w), &bias, device.stream(0));
      const std::int64_t places = out.dims().erased(0).erased(0).elements();
      REQUIRE(places == static_cast<std::int64_t>(std::pow(3 + 2 * pad, spatial)));
      const std::vector<float> found = out.to_vector<float>();
      for (std::size_t i = 0; i < found.size(); ++i) CHECK(found[i] == static_cast<float>(i / static_cast<std::size_t>(places) % 3 + 1));
    }
}

TEST_CASE("an axis of one element under one tap changes no bit, of all channels or one by one") {
  CpuDevice device;
  Random random(15);
  for (const std::int64_t groups : {1, 6})
    for (const int idle : {2, 3}) {
      INFO("groups ", groups, ", axis ", idle);
      ConvDesc along, both;
      along.groups = both.groups = groups;
      along.axes = {{.stride = 2, .before = 1, .after = 2}};
      both.axes = along.axes;
      both.axes.insert(both.axes.begin() + (idle - 2), ConvDesc::Axis{});
      const Tensor x = random_tensor(random, DType::f32, DDim{2, 6, 40}), w = random_tensor(random, DType::f32, DDim{6, 6 / groups, 5}),
                   bias = random_tensor(random, DType::f32, DDim{6});
      const Tensor expected = conv(along, x, w, &bias, device.stream(0));
      const Tensor found =
          conv(both, x.reshape(x.dims().inserted(idle, 1)), w.reshape(w.dims().inserted(idle, 1)), &bias, device.stream(0));
      CHECK(found.dims() == expected.dims().inserted(idle, 1));
      CHECK(same_bits(found.reshape(expected.dims()), expected));
    }
}

TEST_CASE("a view whose only channel has a stride of its own gives the bits of a copy, with and without strides and pads") {
  CpuDevice device;
  Random random(16);
  for (const int spatial : {1, 2, 3})
    for (const std::int64_t stride : {1, 2})
      for (const std::int64_t pad : {0, 1}) {
        INFO("axes ", spatial, ", stride ", stride, ", pad ", pad);
        ConvDesc desc;
        DDim dims{1, 3}, w{4, 1};
        std::vector<int> perm{1, 0};
        for (int axis = 2; axis < spatial + 2; ++axis) {
          desc.axes.push_back({.stride = stride, .before = pad, .after = pad});
          dims = dims.inserted(axis, 9);
          w = w.inserted(axis, 3);
          perm.push_back(axis);
        }
        const Tensor view = random_tensor(random, DType::f32, dims).permute(perm), weights = random_tensor(random, DType::f32, w);
        const Tensor copied = Tensor::from<float>(view.to_vector<float>(), view.dims());
        CHECK(same_bits(conv(desc, view, weights, nullptr, device.stream(0)), conv(desc, copied, weights, nullptr, device.stream(0))));
      }
}

TEST_CASE("arithmetic behind a convolution has the bits of a pass of its own, on every instruction set") {
  each_instruction_set([](const std::string& name) {
    INFO(name);
    CpuDevice one(1), two(2);
    for (const std::uint64_t seed : seeds(30)) {
      INFO("seed ", seed);
      Random random(seed);
      const DType dtype = random.between(0, 3) == 0 ? DType::f64 : DType::f32;
      const int spatial = static_cast<int>(random.between(1, 3));
      ConvDesc desc;
      const std::int64_t channels = random.between(1, seed % 5 == 0 ? 70 : 5);
      desc.groups = random.coin() ? channels : 1;
      desc.relu = random.between(0, 3) == 0;
      DDim x_dims{random.between(1, 3), channels}, w_dims{desc.groups * random.between(1, 13), channels / desc.groups};
      const bool idle = random.between(0, 4) == 0;
      for (int axis = 2; axis < spatial + 2; ++axis) {
        const bool one_place = idle && axis == 2;
        desc.axes.push_back(
            {random.between(1, 2), random.between(1, 2), one_place ? 0 : random.between(0, 2), one_place ? 0 : random.between(0, 2)});
        w_dims = w_dims.inserted(axis, one_place ? 1 : random.between(1, 4));
        x_dims = x_dims.inserted(axis, one_place ? 1 : random.between(8, spatial == 1 ? 300 : 40 / spatial));
      }
      const Tensor x = random_tensor(random, dtype, x_dims), w = random_tensor(random, dtype, w_dims);
      const Tensor bias = random_tensor(random, dtype, DDim{w_dims[0]});
      const Tensor plain = conv(desc, x, w, &bias, one.stream(0));
      DDim of_units{w_dims[0]}, turned = plain.dims();
      for (int axis = 0; axis < spatial; ++axis) of_units = of_units.inserted(axis + 1, 1);
      std::swap(turned[0], turned[1]);
      std::vector<int> turn(static_cast<std::size_t>(plain.rank()));
      std::iota(turn.begin(), turn.end(), 0);
      std::swap(turn[0], turn[1]);
      ConvSteps steps;
      for (std::int64_t count = random.between(1, 5); count > 0; --count) {
        static constexpr ArithmeticStep known[] = {ArithmeticStep::add,     ArithmeticStep::from,      ArithmeticStep::mul,
                                                   ArithmeticStep::prelu,   ArithmeticStep::relu,      ArithmeticStep::maximum,
                                                   ArithmeticStep::sigmoid, ArithmeticStep::hard_swish};
        steps.steps.push_back(known[random.between(0, std::ssize(known) - 1)]);
        if (!has_operand(steps.steps.back())) continue;
        switch (random.between(0, 5)) {
          case 0: steps.operands.emplace_back(random_tensor(random, dtype, DDim{})); break;
          case 1: steps.operands.emplace_back(random_tensor(random, dtype, of_units)); break;
          case 2: steps.operands.emplace_back(random_tensor(random, dtype, plain.dims())); break;
          case 3: steps.operands.emplace_back(random_tensor(random, dtype, turned).permute(turn)); break;
          case 4: steps.operands.emplace_back(random_tensor(random, dtype, DDim{plain.dim(-1)})); break;  // of places: a pass of its own
          default: steps.operands.emplace_back();
        }
      }
      const Tensor expected = take_steps(steps, plain, one.stream(0));
      CHECK(same_bits(conv(desc, x, w, &bias, one.stream(0), nullptr, steps), expected));
      CHECK(same_bits(conv(desc, x, w, &bias, two.stream(0), find_taps(desc, w), steps), expected));
    }
  });
}

TEST_CASE("arithmetic behind a convolution of more results than wait for it at once has the bits of a pass of its own") {
  CpuDevice one(1), two(2);
  Random random(12);
  const Tensor x = random_tensor(random, DType::f32, DDim{2, 8, 120, 120}), bias = random_tensor(random, DType::f32, DDim{40});
  for (const std::int64_t pad : {0, 1}) {
    const ConvDesc desc{{{1, 1, pad, pad}, {1, 1, pad, pad}}, 1};
    const Tensor w = random_tensor(random, DType::f32, DDim{40, 8, 3, 3});
    const Tensor plain = conv(desc, x, w, &bias, one.stream(0));
    const ConvSteps steps{{ArithmeticStep::mul, ArithmeticStep::sigmoid, ArithmeticStep::add},
                          {random_tensor(random, DType::f32, DDim{40, 1, 1}), random_tensor(random, DType::f32, plain.dims())}};
    const Tensor wanted = take_steps(steps, plain, one.stream(0));
    CHECK(same_bits(conv(desc, x, w, &bias, one.stream(0), nullptr, steps), wanted));
    CHECK(same_bits(conv(desc, x, w, &bias, two.stream(0), nullptr, steps), wanted));
  }
}

TEST_CASE("operands of another number or dtype behind a convolution are errors") {
  CpuDevice device;
  const ConvDesc desc{{{}}};
  const Tensor x = Tensor::from<float>({1, 2}, DDim{1, 1, 2}), w = Tensor::from<float>({1}, DDim{1, 1, 1});
  CHECK_THROWS_AS(conv(desc, x, w, nullptr, device.stream(0), nullptr, {{ArithmeticStep::add}, {}}), ArgumentError);
  CHECK_THROWS_AS(conv(desc, x, w, nullptr, device.stream(0), nullptr, {{ArithmeticStep::add}, {Tensor::scalar(1.0)}}), DTypeError);
  CHECK_THROWS_AS(conv(desc, x, w, nullptr, device.stream(0), nullptr, {{ArithmeticStep::relu}, {Tensor::scalar(1.0f)}}), ArgumentError);
}

}  // namespace millrace::testing
