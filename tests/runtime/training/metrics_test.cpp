// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>

#include <doctest/doctest.h>

#include <millrace/runtime/training/metrics.h>

using namespace millrace;
using namespace millrace::training;

namespace {

std::vector<EpochMetrics> epochs(std::int64_t count, bool validated) {
  std::vector<EpochMetrics> made;
  for (std::int64_t i = 1; i <= count; ++i) {
    EpochMetrics e;
    e.epoch = i;
    e.step = 10 * i;
    e.train = {1.0 / static_cast<double>(i), 1 - 1.0 / static_cast<double>(i)};
    if (validated) e.validation = Score{2.0 / static_cast<double>(i), 0.5};
    e.learning_rate = 0.001;
    e.gradient_norm = 0.1;
    made.push_back(e);
  }
  return made;
}

}  // namespace

TEST_CASE("the first of the greatest scores is what a row says") {
  const Tensor scores = Tensor::from<float>({1, 2, 2, 3, 0, 0, -1, -1, -1}).reshape({3, 3});
  CHECK(count_right(scores, Tensor::from<std::int64_t>({1, 0, 0})) == 3);
  CHECK(count_right(scores, Tensor::from<std::int64_t>({2, 0, 1})) == 1);
  CHECK(count_right(Tensor::from<float>({}).reshape({0, 3}), Tensor::from<std::int64_t>({})) == 0);
  CHECK_THROWS_AS(count_right(scores, Tensor::from<std::int64_t>({0})), ShapeError);
}

TEST_CASE("lines of JSON hold what is there, with all its bits") {
  CHECK(json_line(epochs(3, true)[2]) ==
        R"({"epoch": 3, "step": 30, "loss": 0.3333333333333333, "accuracy": 0.6666666666666667, "validation_loss": 0.6666666666666666, )"
        R"("validation_accuracy": 0.5, "learning_rate": 0.001, "gradient_norm": 0.1})");
  FinalMetrics final{3, 30, 2, std::nullopt, Score{0.25, 0.9541}};
  CHECK(json_line(final) == R"({"final": true, "epoch": 3, "step": 30, "best_epoch": 2, "test_loss": 0.25, "test_accuracy": 0.9541})");
  CHECK(final_line(final) == "final: test_accuracy=0.9541 test_loss=0.2500");
  final.test_tokens = TokenErrors{0.125, 0.0625};
  CHECK(json_line(final).ends_with(R"("test_accuracy": 0.9541, "test_token_error_greedy": 0.125, "test_token_error_beam": 0.0625})"));
  CHECK(final_line(final) == "final: test_accuracy=0.9541 test_loss=0.2500 test_token_error_greedy=0.1250 test_token_error_beam=0.0625");
  final.test_tokens.reset();
  final.test->accuracy.reset();
  CHECK(final_line(final) == "final: test_loss=0.2500");
  final.test.reset();
  final.validation = Score{0.5, 0.75};
  CHECK(final_line(final) == "final: validation_accuracy=0.7500 validation_loss=0.5000");
  final.validation.reset();
  CHECK(final_line(final) == "final: step=30");
}

TEST_CASE("epochs go to a tensor and back") {
  for (const bool validated : {false, true}) {
    const std::vector<EpochMetrics> made = epochs(4, validated), found = metrics_of(to_tensor(made));
    REQUIRE(found.size() == made.size());
    for (std::size_t i = 0; i < made.size(); ++i) CHECK(json_line(found[i]) == json_line(made[i]));
  }
  CHECK(metrics_of(to_tensor({})).empty());
  CHECK_THROWS_AS(metrics_of(Tensor::from<double>({1})), ShapeError);
}

TEST_CASE("curves are drawn for any number of epochs") {
  for (const std::int64_t count : {0, 1, 2, 300}) {
    const std::string svg = curves_as_svg("a < b", epochs(count, true));
    CHECK(svg.starts_with("<svg "));
    CHECK(svg.find("a &lt; b") != svg.npos);
    CHECK(svg.find("nan") == svg.npos);
    CHECK((svg.find("<polyline") != svg.npos) == (count > 0));
    const std::string text = curve_as_text(epochs(count, false), 72, 6);
    CHECK(std::count(text.begin(), text.end(), '\n') == 8);
    CHECK((std::count(text.begin(), text.end(), '*') > 0) == (count > 0));
  }
}

TEST_CASE("a curve of one epoch is a point") {
  const std::string svg = curves_as_svg("a", epochs(1, true));
  std::size_t points = 0;
  for (std::size_t at = svg.find("<circle "); at != svg.npos; at = svg.find("<circle ", at + 1)) ++points;
  CHECK(points == 4);  // of training and validation, loss and accuracy
}

TEST_CASE("an axis of accuracies that do not move lies between 0 and 1") {
  for (const double accuracy : {0.0, 0.25, 1.0}) {
    std::vector<EpochMetrics> all = epochs(3, false);
    for (EpochMetrics& e : all) e.train.accuracy = accuracy;
    INFO("accuracy ", accuracy);
    const std::string text = curve_as_text(all, 72, 6);
    CHECK(text.starts_with(accuracy == 1 ? "   1.000 |***" : accuracy == 0 ? "   0.500 |   " : "   0.750 |   "));
    CHECK(text.find(accuracy == 1 ? "\n   0.500 |   " : accuracy == 0 ? "\n   0.000 |***" : "\n   0.000 |   ") != text.npos);
    CHECK(std::count(text.begin(), text.end(), '*') == 3);
    CHECK(curves_as_svg("a", all).find(">-0.") == std::string::npos);
  }
}

TEST_CASE("curves of the largest losses are drawn, also where they do not move") {
  for (const double loss : {1e16, 2.89e24, 1e300, std::numeric_limits<double>::max()})
    for (const double other : {loss, -loss}) {
      INFO(loss, " and ", other);
      std::vector<EpochMetrics> all = epochs(3, true);
      for (EpochMetrics& e : all) e.train = {loss, std::nullopt}, e.validation = Score{other, std::nullopt};
      const std::string svg = curves_as_svg("a", all);
      CHECK(svg.find("nan") == svg.npos);
      CHECK(svg.find("inf") == svg.npos);
      const std::string text = curve_as_text(all, 72, 6);
      CHECK(std::count(text.begin(), text.end(), '*') == 3);
    }
}

TEST_CASE("a title becomes text that XML has") {
  CHECK(curves_as_svg("tab\tand\x01", {}).find("tab?and? by epoch") != std::string::npos);
  CHECK(curves_as_svg("lat\xe9", {}).find("lat? by epoch") != std::string::npos);
  CHECK(curves_as_svg("caf\xc3\xa9", {}).find("caf\xc3\xa9 by epoch") != std::string::npos);
}

TEST_CASE("a loss that is not finite is null in JSON and left out of the curves") {
  const double great = std::numeric_limits<double>::infinity(), none = std::numeric_limits<double>::quiet_NaN();
  std::vector<EpochMetrics> all = epochs(5, true);
  for (EpochMetrics& e : all) e.train.accuracy.reset(), e.validation->accuracy.reset();
  all[1].validation->loss = great;
  all[2].validation->loss = none;
  CHECK(json_line(all[1]) ==
        R"({"epoch": 2, "step": 20, "loss": 0.5, "validation_loss": null, "learning_rate": 0.001, "gradient_norm": 0.1})");
  CHECK(json_line(FinalMetrics{3, 30, 2, Score{none, std::nullopt}, Score{great, 0.5}}) ==
        R"({"final": true, "epoch": 3, "step": 30, "best_epoch": 2, "validation_loss": null, "test_loss": null, "test_accuracy": 0.5})");
  const std::string text = curve_as_text(all, 72, 6);
  CHECK(std::count(text.begin(), text.end(), '*') == 3);
  CHECK(text.starts_with("   2.000 |*"));
  const std::string svg = curves_as_svg("a", all);
  CHECK(svg.find("inf") == svg.npos);
  CHECK(svg.find("nan") == svg.npos);
  for (EpochMetrics& e : all) e.validation->loss = great;
  CHECK(curve_as_text(all, 72, 6).find('*') == std::string::npos);
  CHECK(curves_as_svg("a", all).find("inf") == svg.npos);
}
