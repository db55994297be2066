// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <cmath>
#include <cstdint>

#include <millrace/runtime/training/dataset.h>

using namespace millrace;
using namespace millrace::training;

namespace {

Dataset small(bool per_row) {
  const LoD lod = LoD::from_lengths({{2, 0, 3}});
  return {LoDTensor(Tensor::from<float>({0, 1, 2, 3, 4}).reshape({5, 1}), lod),
          per_row ? Tensor::from<std::int64_t>({0, 1, 0, 1, 1}) : Tensor::from<std::int64_t>({2, 1, 0}),
          per_row,
          {},
          "data"};
}

}  // namespace

TEST_CASE("chosen sequences bring their rows and targets along") {
  const std::vector<std::int64_t> chosen{2, 1, 0, 2};
  const Dataset of_sequences = small(false).select(chosen);
  CHECK(of_sequences.x.lod().to_string() == "[[3,0,2,3]]");
  CHECK(of_sequences.x.tensor().to_vector<float>() == std::vector<float>{2, 3, 4, 0, 1, 2, 3, 4});
  CHECK(of_sequences.targets.to_vector<std::int64_t>() == std::vector<std::int64_t>{0, 1, 2, 0});
  const Dataset of_rows = small(true).select(chosen);
  CHECK(of_rows.targets.to_vector<std::int64_t>() == std::vector<std::int64_t>{0, 1, 1, 0, 1, 0, 1, 1});
  CHECK(small(true).select({}).rows() == 0);
  CHECK_THROWS_AS(small(true).select(std::vector<std::int64_t>{3}), IndexError);
}

TEST_CASE("chosen sequences bring their target tokens along, and each counts one end more") {
  Dataset data = small(false);
  data.targets = Tensor::from<std::int64_t>({7, 8, 9, 5});
  data.target_lod = LoD::from_lengths({{1, 3, 0}});
  data.validate();
  CHECK(data.terms() == 7);
  const Dataset chosen = data.select(std::vector<std::int64_t>{2, 1});
  CHECK(chosen.target_lod.to_string() == "[[0,3]]");
  CHECK(chosen.targets.to_vector<std::int64_t>() == std::vector<std::int64_t>{8, 9, 5});
  CHECK(chosen.terms() == 5);
}

TEST_CASE("parts that do not fit are refused by source") {
  Dataset data = small(false);
  data.validate();
  data.per_row = true;
  CHECK_THROWS_WITH_AS(data.validate(), "data: expected 5 targets, one for each row, found 3", ShapeError);
  data = small(false);
  data.classes = {"a", "b"};
  CHECK_THROWS_WITH_AS(data.validate(), "data: expected a class from 0 to 1, found 2", IndexError);
  data.targets = Tensor::from<std::int32_t>({0, 1, 1});
  CHECK_THROWS_AS(data.validate(), DTypeError);
  data.x = LoDTensor(data.x.tensor());
  CHECK_THROWS_AS(data.validate(), LoDError);
}

TEST_CASE("features are measured over all rows, and one that never changes has deviation 1") {
  Dataset data = small(false);
  data.x = LoDTensor(Tensor::from<float>({1, 5, 3, 5, 1, 5, 3, 5, 2, 5}).reshape({5, 2}), data.x.lod());
  const FeatureScale scale = feature_scale(data);
  CHECK(scale.mean == std::vector<double>{2, 5});
  CHECK(scale.deviation[0] == doctest::Approx(std::sqrt(0.8)));
  CHECK(scale.deviation[1] == 1);
}

TEST_CASE("a feature of f64 that never changes has deviation 1, although the sum over its rows is rounded") {
  std::vector<double> values;
  for (int row = 0; row < 10; ++row) values.insert(values.end(), {0.1, row % 2 == 0 ? 3.0 : 5.0, -1e300});
  const Dataset data{
      LoDTensor(Tensor::from(values, {10, 3}), LoD::from_lengths({{10}})), Tensor::from<std::int64_t>({0}), false, {}, "data"};
  const FeatureScale scale = feature_scale(data);
  CHECK(scale.mean == std::vector<double>{0.1, 4, -1e300});
  CHECK(scale.deviation == std::vector<double>{1, 1, 1});
}

namespace {

/// One feature of as many rows as values.
template <class T>
FeatureScale scale_of(const std::vector<T>& values) {
  const auto rows = static_cast<std::int64_t>(values.size());
  return feature_scale(
      {LoDTensor(Tensor::from(values, {rows, 1}), LoD::from_lengths({{rows}})), Tensor::from<std::int64_t>({0}), false, {}, "data"});
}

template <class T>
void scale_refused(const std::vector<T>& values, const char* why) {
  CHECK_THROWS_WITH_AS(scale_of(values), doctest::Contains(why), ArgumentError);
}

}  // namespace

TEST_CASE("features whose squares no f64 holds have their deviation") {
  for (const double great : {1e200, 1e-200, 1e308, 1e-307}) {
    INFO(great);
    const FeatureScale scale = scale_of<double>({great, -great, great, -great});
    CHECK(scale.mean[0] == 0);
    CHECK(scale.deviation[0] == great);
  }
  CHECK(scale_of<float>({3e38f, -3e38f}).deviation[0] == static_cast<double>(3e38f));
  CHECK(scale_of<float>({1e-45f, 1e-45f}).deviation[0] == 1);
  CHECK(scale_of<double>({5e-324, 5e-324}).mean[0] == 5e-324);
}

TEST_CASE("a feature that cannot be standardized in its dtype is refused by source and place") {
  scale_refused<float>({1e-40f, 0, 1e-40f}, "data, rows, element 0: standardize: expected a deviation of at least 1.17549e-38, found 4.7");
  scale_refused<double>({1e-310, -1e-310}, "standardize: expected a deviation of at least 2.22507e-308, found 1e-310");
  scale_refused<float>({3e38f, -3e38f, -3e38f, -3e38f}, "standardize: expected values at most 3.40282e+38 from their mean -1.5e+38");
  scale_refused<double>({1.7e308, -1.7e308, -1.7e308, -1.7e308}, "standardize: expected values at most 1.79769e+308 from their mean");
}

TEST_CASE("words and classes that are no numbers of a table are refused by source and place") {
  Dataset data = small(false);
  data.x = LoDTensor(Tensor::from<std::int64_t>({0, 1, 2, -3, 4}), data.x.lod());
  CHECK_THROWS_WITH_AS(data.validate(), "data: expected words from 0 on, found -3 as element 3", IndexError);
  data.x = LoDTensor(Tensor::from<std::int64_t>({0, 1, std::int64_t{1} << 40, 3, 4}), data.x.lod());
  CHECK_THROWS_WITH_AS(data.validate(), "data: expected words from 0 to 1048575, found 1099511627776 as element 2", IndexError);
  data = small(false);
  data.targets = Tensor::from<std::int64_t>({0, 1, INT64_MAX});
  CHECK_THROWS_WITH_AS(data.validate(), "data: expected classes from 0 to 1048575, found 9223372036854775807 as target 2", IndexError);
}

TEST_CASE("a number that is not finite is refused by source, row, sequence and place") {
  Dataset data = small(false);
  data.expect_finite();
  data.x = LoDTensor(Tensor::from<float>({0, 1, 2, 3, 4, 5, std::nanf(""), 7, 8, 9}).reshape({5, 2}), data.x.lod());
  CHECK_THROWS_WITH_AS(data.expect_finite(), "data, rows: row 3 (row 1 of sequence 2), element 0: expected a finite number, found nan",
                       ArgumentError);
  data = small(false);
  data.targets = Tensor::from<double>({1, INFINITY, 0}).reshape({3, 1});
  CHECK_THROWS_WITH_AS(data.expect_finite(), "data, targets: sequence 1, element 0: expected a finite number, found inf", ArgumentError);
}
