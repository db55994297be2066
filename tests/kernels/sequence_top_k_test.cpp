// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/sequence_top_k.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>

namespace millrace::testing {
namespace {
using List = std::vector<std::int64_t>;
}  // namespace

TEST_CASE("the greatest rows of each sequence come first, equal ones in their order, on every device and dtype") {
  each_backend([](DeviceUnderTest& on) {
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32}) {
      const Tensor x = reference::tensor({DDim{7}, {1, 3, 3, 0, -2, 5, -2}}, dtype);
      const SequenceTopK best = sequence_top_k(on.up(x), {0, 4, 4, 5, 7}, 2, on.stream());
      CHECK(best.offsets == List{0, 2, 2, 3, 5});
      CHECK(reference::values(on.down(best.values)).at == std::vector<double>{3, 3, -2, 5, -2});
      CHECK(on.down(best.places).to_vector<std::int64_t>() == List{1, 2, 0, 0, 1});
    }
  });
}

TEST_CASE("each column is sorted on its own, as a stable sort of the whole sequence would") {
  CpuDevice one(1), two(2);
  for (const std::uint64_t seed : seeds(20)) {
    INFO("seed ", seed);
    Random random(seed);
    List offsets{0};
    for (int n = 0; n < 9; ++n) offsets.push_back(offsets.back() + random.between(0, 30));
    const std::int64_t k = random.between(0, 12);
    // Few different values, so that many are equal.
    Tensor x(DType::f32, DDim{offsets.back(), 3});
    for (std::int64_t i = 0; i < x.elements(); ++i) x.mutable_data<float>()[i] = static_cast<float>(random.between(-4, 4));
    if (x.elements() == 0) continue;
    const SequenceTopK best = sequence_top_k(x, offsets, k, two.stream(0));
    for (std::size_t n = 0; n + 1 < offsets.size(); ++n) {
      const SequenceTopK alone = sequence_top_k(x.rows(offsets[n], offsets[n + 1]), {0, offsets[n + 1] - offsets[n]}, k, one.stream(0));
      CHECK(same_bits(alone.values, best.values.rows(best.offsets[n], best.offsets[n + 1])));
      CHECK(same_bits(alone.places, best.places.rows(best.offsets[n], best.offsets[n + 1])));
      for (std::int64_t c = 0; c < 3; ++c) {
        List rows(static_cast<std::size_t>(offsets[n + 1] - offsets[n]));
        std::iota(rows.begin(), rows.end(), 0);
        const auto value = [&](std::int64_t row) { return x.data<float>()[(offsets[n] + row) * 3 + c]; };
        std::sort(rows.begin(), rows.end(),
                  [&](std::int64_t a, std::int64_t b) { return value(a) != value(b) ? value(a) > value(b) : a < b; });
        for (std::int64_t i = best.offsets[n]; i < best.offsets[n + 1]; ++i)
          CHECK(best.places.data<std::int64_t>()[i * 3 + c] == rows[static_cast<std::size_t>(i - best.offsets[n])]);
      }
    }
  }
}

TEST_CASE("the best along the last axis are those along another, in the same order, on every instruction set") {
  each_instruction_set([](const std::string& name) {
    INFO(name);
    CpuDevice one(1), two(2);
    Random random(3);
    for (const DType dtype : {DType::f32, DType::f64})
      for (const std::int64_t n : {1, 5, 40, 700})
        for (const std::int64_t k : {0, 1, 4, 39, 300})
          for (const bool largest : {true, false}) {
            if (k > n) continue;
            std::vector<double> values;
            for (std::int64_t i = 0; i < 9 * n; ++i)
              values.push_back(random.between(0, 50) == 0 ? std::nan("") : static_cast<double>(random.between(-20, 20)));
            const Tensor x = reference::tensor({DDim{9, n}, values}, dtype);
            const TopK wanted = top_k(clone(x.permute({1, 0}), one.stream(0)), k, 0, largest, one.stream(0));
            for (CpuDevice* const device : {&one, &two}) {
              const TopK found = top_k(x, k, -1, largest, device->stream(0));
              CHECK(same_bits(found.values, clone(wanted.values.permute({1, 0}), one.stream(0))));
              CHECK(same_bits(found.places, clone(wanted.places.permute({1, 0}), one.stream(0))));
            }
          }
  });
}

TEST_CASE("NaN counts as the greatest, k may be larger than any sequence, and nothing gives nothing") {
  CpuDevice device;
  const SequenceTopK best = sequence_top_k(Tensor::from<float>({1, NAN, INFINITY, NAN}), {0, 4}, 99, device.stream(0));
  CHECK(best.places.to_vector<std::int64_t>() == List{1, 3, 2, 0});
  CHECK(sequence_top_k(Tensor(DType::f32, DDim{0, 2}), {0, 0}, 3, device.stream(0)).values.dims() == DDim{0, 2});
  CHECK(sequence_top_k(Tensor::from<float>({1}), {0, 1}, 0, device.stream(0)).values.dims() == DDim{0});
  CHECK_THROWS_WITH_AS(sequence_top_k(Tensor::from<float>({1}), {0, 1}, -1, device.stream(0)),
                       "sequence_top_k: expected k of 0 or more, found -1", ArgumentError);
  CHECK_THROWS_AS(sequence_top_k(Tensor::from<float>({1}), {0, 2}, 1, device.stream(0)), LoDError);
  CHECK_THROWS_AS(sequence_top_k(Tensor::from({true}), {0, 1}, 1, device.stream(0)), DTypeError);
}

}  // namespace millrace::testing
