// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include <millrace/runtime/builder/losses.h>

#include "support/built.h"
#include "support/random_tensor.h"

using namespace millrace;
using namespace millrace::testing;
using build::Var;

namespace {

VarType rows_type(const DDim& dims) { return VarType(DType::f64, dims, 1); }
const DDim three_columns{DDim::unknown, 3}, one_column{DDim::unknown};

double cross_entropy(const LoDTensor& x, const LoDTensor& labels) {
  return built_values<double>(
      [] {
        return build::softmax_cross_entropy_loss(build::input("x", rows_type(three_columns)),
                                                 build::input("labels", VarType(DType::i64, one_column, 1)));
      },
      {{"x", x}, {"labels", labels}})[0];
}

}  // namespace

TEST_CASE("the mean cross entropy is over the rows that count, and 0 of none") {
  const LoD lod = LoD::from_lengths({{2, 0, 1}});
  const Tensor x = Tensor::from(std::vector<double>{1, 2, 3, 0, 0, 0, 5, 1, 1}, DDim{3, 3});
  const double first = std::log(std::exp(1.0) + std::exp(2.0) + std::exp(3.0)) - 3, second = std::log(3.0);
  CHECK(cross_entropy({x, lod}, {Tensor::from<std::int64_t>({2, 1, -100}), lod}) == doctest::Approx((first + second) / 2));
  CHECK(cross_entropy({x, lod}, {Tensor::from<std::int64_t>({-100, -100, -100}), lod}) == 0);
  CHECK_THROWS_WITH_AS(cross_entropy({x, lod}, {Tensor::from<std::int64_t>({2, 3, 0}), lod}),
                       doctest::Contains("expected one of 3 classes as the label of row 1, found 3"), IndexError);
  CHECK_THROWS_WITH_AS(cross_entropy({x, lod}, {Tensor::from<std::int64_t>({2, -1, 0}), lod}), doctest::Contains("found -1"), IndexError);
}

TEST_CASE("the mean squared error is over all elements of ragged rows, and 0 of none") {
  const auto error = [](const Tensor& x, const Tensor& y, const LoD& lod) {
    const auto of = [] {
      return build::mean_squared_error(build::input("x", rows_type(three_columns)), build::input("y", rows_type(three_columns)));
    };
    return built_values<double>(of, {{"x", LoDTensor(x, lod)}, {"y", LoDTensor(y, lod)}})[0];
  };
  Random random(1);
  const Tensor none = random_tensor(random, DDim{0, 3}, 1, DType::f64);
  const Tensor x = Tensor::from(std::vector<double>{1, 2, 3, 4, 5, 6}, DDim{2, 3}),
               y = Tensor::from(std::vector<double>{1, 2, 3, 4, 5, 9}, DDim{2, 3});
  CHECK(error(x, y, LoD::from_lengths({{0, 2}})) == 1.5);
  CHECK(error(none, none, LoD::from_lengths({{0, 0}})) == 0);
}

TEST_CASE("dropout gives a row the same bits alone and among others, and keeps the mean") {
  Random random(2);
  const auto drop = [](const LoDTensor& x, const std::vector<std::int64_t>& samples, bool variational, std::int64_t seed = 7) {
    const auto make = [&] {
      const Var rows = build::input("x", rows_type(three_columns));
      const build::RandomKeys keys = build::keys_of_rows(rows, build::input("samples", VarType(DType::i64, one_column)));
      return build::dropout(rows, variational ? build::keys_of_sequences(keys) : keys, {0.25, seed, 1, true});
    };
    return built(make, {{"x", x}, {"samples", Tensor::from(samples, DDim{static_cast<std::int64_t>(samples.size())})}});
  };
  const Tensor all = random_tensor(random, DDim{5, 3}, 1, DType::f64);
  const LoDTensor found = drop({all, LoD::from_lengths({{2, 0, 3}})}, {11, 12, 13}, false);
  CHECK(found.lod() == LoD::from_lengths({{2, 0, 3}}));
  const auto values = found.tensor().to_vector<double>();
  const auto last = drop({all.rows(2, 5), LoD::from_lengths({{3}})}, {13}, false).tensor().to_vector<double>();
  CHECK(std::vector<double>(values.begin() + 6, values.end()) == last);
  CHECK(drop({all, LoD::from_lengths({{2, 0, 3}})}, {11, 12, 14}, false).tensor().to_vector<double>() != values);

  const Tensor ones = Tensor::from(std::vector<double>(6000, 1), DDim{2000, 3});
  double sum = 0;
  for (const double value : drop({ones, LoD::from_lengths({{2000}})}, {3}, false).tensor().to_vector<double>()) {
    CHECK((value == 0 || value == 1 / 0.75));
    sum += value;
  }
  CHECK(std::abs(sum / 6000 - 1) < 0.04);
  // One mask for all rows of a sequence.
  const auto same = drop({ones.rows(0, 4), LoD::from_lengths({{4}})}, {5}, true, 8).tensor().to_vector<double>();
  for (std::size_t i = 3; i < same.size(); ++i) CHECK(same[i] == same[i - 3]);
}

TEST_CASE("zoneout keeps units where the mask is 0") {
  Random random(3);
  const Feeds feeds{{"before", random_tensor(random, DDim{4, 3}, 1, DType::f64)},
                    {"after", random_tensor(random, DDim{4, 3}, 1, DType::f64)}};
  const Program program = built_program([] {
    const VarType type(DType::f64, three_columns);
    const Var before = build::input("before", type), after = build::input("after", type);
    const Var keeps = build::keep_mask(after, {build::constant(Tensor::from<std::int64_t>({1, 2, 3, 4}))}, {0.5, 1, 1, true});
    build::output("keeps", keeps);
    build::output("h", build::zoneout(before, after, keeps));
  });
  const RunResult found = run_fifo(run(program, feeds));
  const auto keeps = found["keeps"].tensor().to_vector<double>(), h = found["h"].tensor().to_vector<double>();
  const auto before = feeds.at("before").tensor().tensor().to_vector<double>(),
             after = feeds.at("after").tensor().tensor().to_vector<double>();
  for (std::size_t i = 0; i < h.size(); ++i) CHECK(h[i] == doctest::Approx(keeps[i] == 1 ? after[i] + (before[i] - after[i]) : after[i]));
  CHECK(std::count(keeps.begin(), keeps.end(), 0.0) > 0);
  CHECK(std::count(keeps.begin(), keeps.end(), 1.0) > 0);
}
