// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/causal_filter.h>

#include <algorithm>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>

namespace millrace::testing {
namespace {

/// A tensor [sequences, places, channels] as one with the axes of `desc`.
Tensor turned(const FilterDesc& desc, const Tensor& x) {
  std::vector<int> order(3);
  order[static_cast<std::size_t>(desc.sequences)] = 0;
  order[static_cast<std::size_t>(desc.places)] = 1;
  order[static_cast<std::size_t>(desc.channels)] = 2;
  return x.permute(order);
}

template <class T>
void expect_sums(const FilterDesc& desc, const Tensor& x, const Tensor& past, const Tensor& weights, const Tensor* bias,
                 const Filtered& found) {
  const std::int64_t length = x.dim(1), before = past.dim(1), channels = x.dim(2);
  const std::vector<T> rows = x.to_vector<T>(), front = past.to_vector<T>(), taps = weights.to_vector<T>();
  const std::vector<T> added = bias == nullptr ? std::vector<T>{} : bias->to_vector<T>();
  const auto seen = [&](std::int64_t n, std::int64_t t, std::int64_t c) {
    const std::int64_t at = t < 0 ? (n * before + before + t) * channels + c : (n * length + t) * channels + c;
    return (t < 0 ? front : rows)[static_cast<std::size_t>(at)];
  };
  std::vector<T> sums, window;
  for (std::int64_t n = 0; n < x.dim(0); ++n) {
    for (std::int64_t t = 0; t < length; ++t)
      for (std::int64_t c = 0; c < channels; ++c) {
        T sum{};
        for (std::size_t j = 0; j < desc.delays.size(); ++j) {
          const T product = taps[j * static_cast<std::size_t>(channels) + static_cast<std::size_t>(c)] * seen(n, t - desc.delays[j], c);
          sum = j == 0 ? product : sum + product;
        }
        sums.push_back(added.empty() ? sum : sum + added[static_cast<std::size_t>(c)]);
      }
    for (std::int64_t t = 0; t < before; ++t)
      for (std::int64_t c = 0; c < channels; ++c) window.push_back(seen(n, length - before + t, c));
  }
  const Tensor out = Tensor::from(sums, x.dims()), last = Tensor::from(window, past.dims());
  CHECK(same_bits(found.out, turned(desc, out)));
  CHECK(same_bits(found.last, turned(desc, last)));
}

}  // namespace

TEST_CASE("a causal filter sums rounded products in the order of its taps, along any axes, for any lengths, on every instruction set") {
  Random random(5);
  each_instruction_set([&](const std::string& name) {
    CpuDevice one(1), two(2);
    for (const std::int64_t length : {0, 1, 2, 15, 16, 61, 200})
      for (const std::int64_t channels : {1, 3, 64, 70}) {
        FilterDesc desc;
        for (std::int64_t taps = random.between(1, 5); taps > 0; --taps) desc.delays.push_back(random.between(0, 6));
        const std::int64_t reach = *std::max_element(desc.delays.begin(), desc.delays.end()), before = reach + random.between(0, 1);
        const DType dtype = random.between(0, 3) == 0 ? DType::f64 : DType::f32;
        const Tensor x = random_tensor(random, dtype, DDim{random.between(1, 3), length, channels}),
                     past = random_tensor(random, dtype, DDim{x.dim(0), before, channels}),
                     weights = random_tensor(random, dtype, DDim{static_cast<std::int64_t>(desc.delays.size()), channels}),
                     bias = random_tensor(random, dtype, DDim{channels});
        const Tensor* const added = random.between(0, 1) == 0 ? nullptr : &bias;
        int axes[3] = {0, 1, 2};
        do {
          desc.sequences = axes[0], desc.places = axes[1], desc.channels = axes[2];
          INFO(name, ", length ", length, ", channels ", channels, ", axes ", axes[0], axes[1], axes[2]);
          const Tensor from = turned(desc, x), front = turned(desc, past);
          const Filtered views = causal_filter(desc, from, front, weights, added, one.stream(0));
          const Filtered rows = causal_filter(desc, clone(from, one.stream(0)), clone(front, one.stream(0)), weights, added, two.stream(0));
          if (dtype == DType::f64)
            expect_sums<double>(desc, x, past, weights, added, views);
          else
            expect_sums<float>(desc, x, past, weights, added, views);
          CHECK(same_bits(rows.out, views.out));
          CHECK(same_bits(rows.last, views.last));
        } while (std::next_permutation(axes, axes + 3));
      }
  });
}

TEST_CASE("a causal filter names what does not fit") {
  CpuDevice device;
  const Tensor x(DType::f32, DDim{2, 5, 3}), past(DType::f32, DDim{2, 2, 3}), weights(DType::f32, DDim{2, 3});
  const auto run = [&](FilterDesc desc, const Tensor& from, const Tensor& front, const Tensor& taps, const Tensor* bias = nullptr) {
    for (const Tensor* tensor : {&from, &front, &taps}) tensor->storage()->mark_written();
    return causal_filter(desc, from, front, taps, bias, device.stream(0));
  };
  CHECK(run({0, 1, 2, {2, 0}}, x, past, weights).out.dims() == x.dims());
  CHECK_THROWS_AS(run({0, 1, 2, {3, 0}}, x, past, weights), ShapeError);
  CHECK_THROWS_AS(run({0, 1, 2, {2, 1, 0}}, x, past, weights), ShapeError);
  CHECK_THROWS_AS(run({0, 1, 2, {2, 0}}, x, Tensor(DType::f32, DDim{1, 2, 3}), weights), ShapeError);
  CHECK_THROWS_AS(run({0, 1, 2, {2, 0}}, x, Tensor(DType::f64, DDim{2, 2, 3}), weights), DTypeError);
  CHECK_THROWS_AS(run({0, 1, 2, {2, 0}}, Tensor(DType::f16, DDim{2, 5, 3}), past, weights), DTypeError);
  CHECK_THROWS_AS(run({0, 1, 1, {2, 0}}, x, past, weights), ArgumentError);
  CHECK_THROWS_AS(run({0, 1, 2, {}}, x, past, weights), ArgumentError);
  CHECK_THROWS_AS(run({0, 1, 2, {-1, 0}}, x, past, weights), ArgumentError);
  const Tensor long_bias = Tensor::from<float>({1, 2, 3, 4});
  CHECK_THROWS_AS(run({0, 1, 2, {2, 0}}, x, past, weights, &long_bias), ShapeError);
}

}  // namespace millrace::testing
