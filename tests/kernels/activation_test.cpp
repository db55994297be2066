// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/activation.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>
#include <millrace/kernels/cpu/float_functions.h>
#include <millrace/kernels/math.h>

namespace millrace::testing {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

/// The distance of `found` from the exact value in units of the last place of f32 or f64; `exact` is known better than
/// T.
template <class T>
double ulps(T found, long double exact) {
  if (static_cast<long double>(found) == exact) return 0;
  const T rounded = std::fabs(static_cast<T>(exact));
  if (std::isinf(rounded) || std::isinf(found)) return std::fabs(found) == rounded ? 0 : 1e9;
  const T next = std::nextafter(rounded, std::numeric_limits<T>::infinity());
  return static_cast<double>(std::fabs((static_cast<long double>(found) - exact) / (static_cast<long double>(next) - rounded)));
}

long double exact(Unary kind, long double x) {
  if (kind == Unary::exp) return std::exp(x);
  if (kind == Unary::tanh) return std::tanh(x);
  if (kind == Unary::softplus) return std::max(x, 0.0L) + std::log1p(std::exp(-std::fabs(x)));
  if (kind == Unary::mish) {
    const long double e = std::exp(x), w = e * (e + 2);
    return std::isinf(e) || x > 1000 ? x : x == -std::numeric_limits<long double>::infinity() ? 0 : x * (w / (w + 2));
  }
  return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x));
}

/// A result below `vanishes` may be zero: it is subnormal, or a factor of it is.
template <class T>
double worst(Unary kind, const std::vector<T>& points, T vanishes = std::numeric_limits<T>::min()) {
  CpuDevice device;
  const Tensor y = unary(kind, {}, Tensor::from(points, DDim{static_cast<std::int64_t>(points.size())}), device.stream(0));
  double most = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const T found = y.data<T>()[i];
    const long double wanted = exact(kind, cpu::flushed(points[i]));
    if (found != 0 || std::fabs(wanted) >= vanishes) most = std::max(most, ulps(found, wanted));
  }
  return most;
}

/// Every 4999th f32, and random f64 of all magnitudes up to 1000.
std::vector<float> sweep_f32() {
  std::vector<float> points;
  for (std::uint64_t bits = 0; bits <= 0xffffffffu; bits += 49999) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (x == x) points.push_back(x);
  }
  return points;
}
std::vector<double> sweep_f64() {
  Random random(1);
  std::vector<double> points;
  for (int i = 0; i < 40000; ++i)
    points.push_back(std::ldexp(static_cast<double>(static_cast<std::int64_t>(random.next())), static_cast<int>(random.between(-90, -53))));
  return points;
}

}  // namespace

TEST_CASE("exp, tanh and sigmoid stay within their stated error, with every instruction set") {
  const std::vector<float> narrow = sweep_f32();
  const std::vector<double> wide = sweep_f64();
  each_instruction_set([&](const std::string&) {
    CHECK(worst(Unary::exp, narrow) <= 1);
    CHECK(worst(Unary::tanh, narrow) <= 3);
    CHECK(worst(Unary::sigmoid, narrow) <= 2);
    CHECK(worst(Unary::exp, wide) <= 1);
    CHECK(worst(Unary::tanh, wide) <= 3);
    CHECK(worst(Unary::sigmoid, wide) <= 2);
  });
}

TEST_CASE("softplus and mish stay within their stated error, with every instruction set") {
  const std::vector<float> narrow = sweep_f32();
  each_instruction_set([&](const std::string&) {
    CHECK(worst(Unary::softplus, narrow) <= 1.5);
    CHECK(worst(Unary::mish, narrow, 0x1p-119f) <= 4);
  });
}

TEST_CASE("A hard sigmoid without a slope is its offset, and NaN of infinity as its formula says") {
  CpuDevice device;
  const std::vector<float> x{-infinity, -3, 0, 2, infinity, nan, 1, 4, -infinity};
  const Tensor y = hard_sigmoid(Tensor::from(x, DDim{9}), 0, 0.25, device.stream(0));
  for (std::size_t i = 0; i < x.size(); ++i) {
    CAPTURE(x[i]);
    CHECK((std::isfinite(x[i]) ? y.data<float>()[i] == 0.25f : std::isnan(y.data<float>()[i])));
  }
  const Tensor sloped = hard_sigmoid(Tensor::from(x, DDim{9}), 0.5, 0.25, device.stream(0));
  CHECK(sloped.data<float>()[0] == 0);
  CHECK(sloped.data<float>()[4] == 1);
  CHECK(std::isnan(sloped.data<float>()[5]));
}

TEST_CASE("softplus and mish take their limits and keep NaN") {
  CpuDevice device;
  const Tensor x = Tensor::from<float>({infinity, -infinity, nan, -0.0f, -108.0f, 90.0f});
  each_instruction_set([&](const std::string&) {
    const std::vector<float> soft = softplus(x, device.stream(0)).to_vector<float>();
    CHECK((soft[0] == infinity && soft[1] == 0 && std::isnan(soft[2]) && soft[5] == 90));
    const std::vector<float> curve = mish(x, device.stream(0)).to_vector<float>();
    CHECK((curve[0] == infinity && curve[1] == 0 && std::isnan(curve[2]) && curve[3] == 0 && std::signbit(curve[3]) && curve[5] == 90));
    CHECK((curve[4] == 0 && std::signbit(curve[4])));
  });
}

TEST_CASE("exp, tanh and sigmoid take their limits, keep NaN, and take subnormals as zeros") {
  CpuDevice device;
  const Tensor x =
      Tensor::from<float>({infinity, -infinity, nan, 0.0f, -0.0f, 1e-42f, 88.7f, 89.5f, -103.0f, -105.0f, 20.0f, -20.0f, 9.5f});
  each_instruction_set([&](const std::string&) {
    const std::vector<float> e = exp(x, device.stream(0)).to_vector<float>();
    CHECK(e[0] == infinity);
    CHECK(e[1] == 0);
    CHECK(std::isnan(e[2]));
    CHECK(e[3] == 1);
    CHECK(e[6] < infinity);
    CHECK(e[7] == infinity);
    CHECK(e[8] == 0);
    CHECK(e[9] == 0);
    const std::vector<float> t = tanh(x, device.stream(0)).to_vector<float>();
    CHECK(t[0] == 1);
    CHECK(t[1] == -1);
    CHECK(std::isnan(t[2]));
    CHECK((t[3] == 0 && t[4] == 0 && std::signbit(t[4])));
    CHECK(t[5] == 0);
    CHECK(t[10] == 1);
    CHECK(t[11] == -1);
    CHECK(t[12] == 1);
    const std::vector<float> s = sigmoid(x, device.stream(0)).to_vector<float>();
    CHECK(s[0] == 1);
    CHECK(s[1] == 0);
    CHECK(std::isnan(s[2]));
    CHECK(s[3] == 0.5f);
    CHECK(s[10] == 1);
    CHECK(s[8] == 0);
  });
}

TEST_CASE("exp, tanh and sigmoid never fall where a neighbouring f32 rises by more than the error") {
  CpuDevice device;
  for (const Unary kind : {Unary::exp, Unary::tanh, Unary::sigmoid}) {
    std::vector<float> points;
    for (const float start : {-17.0f, -1.0f, -0.35f, 0.34f, 0.69f, 8.9f, 16.5f}) {
      float x = start;
      for (int i = 0; i < 3000; ++i, x = std::nextafter(x, 100.0f)) points.push_back(x);
    }
    const std::vector<float> y =
        unary(kind, {}, Tensor::from(points, DDim{static_cast<std::int64_t>(points.size())}), device.stream(0)).to_vector<float>();
    for (std::size_t i = 1; i < y.size(); ++i) {
      if (i % 3000 == 0) continue;
      const float step = std::nextafter(y[i - 1], infinity) - y[i - 1];
      REQUIRE(y[i] >= y[i - 1] - 3 * step);
    }
  }
}

TEST_CASE("an element has the same bits at every place of a tensor of any length, contiguous or not") {
  CpuDevice device(2);
  Random random(9);
  for (const Unary kind : {Unary::exp, Unary::tanh, Unary::sigmoid, Unary::softplus, Unary::gelu, Unary::elu, Unary::mish, Unary::log,
                           Unary::sin, Unary::cos}) {
    const Tensor x = random_tensor(random, DType::f32, DDim{97}, 10);
    const Tensor whole = unary(kind, default_params(kind), x, device.stream(0));
    for (std::int64_t first = 0; first < 97; first += 5)
      for (const std::int64_t count : {1, 3, 17}) {
        const std::int64_t last = std::min<std::int64_t>(97, first + count);
        CHECK(same_bits(unary(kind, default_params(kind), x.rows(first, last), device.stream(0)), whole.rows(first, last)));
      }
    const Tensor turned = random_tensor(random, DType::f32, DDim{12, 20}, 4).permute({1, 0});
    CHECK(same_bits(unary(kind, default_params(kind), turned, device.stream(0)),
                    unary(kind, default_params(kind), turned.permute({1, 0}), device.stream(0)).permute({1, 0})));
  }
}

TEST_CASE("every activation agrees with the reference on every device and dtype") {
  each_backend([](DeviceUnderTest& on) {
    Random random(21);
    for (int index = static_cast<int>(Unary::tanh); index <= static_cast<int>(Unary::clip); ++index) {
      const auto kind = static_cast<Unary>(index);
      INFO(name_of(kind));
      UnaryParams params = default_params(kind);
      if (kind == Unary::clip) params = {-0.5, 0.75};
      for (const DType dtype : floats) {
        const Tensor x = random_tensor(random, dtype, DDim{3, 41}, 6);
        const auto expected = reference::map(reference::function(kind, params), reference::values(x));
        CHECK(error_of(on.down(unary(kind, params, on.up(x), on.stream())), expected) <= 8 * rounding(dtype));
        Tensor in_place = on.up(x);
        unary(kind, params, in_place, in_place, on.stream());
        CHECK(error_of(on.down(in_place), expected) <= 8 * rounding(dtype));
      }
    }
  });
}

}  // namespace millrace::testing
