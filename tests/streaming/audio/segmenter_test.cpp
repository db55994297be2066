// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/audio/segmenter.h>

#include <cmath>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/tensor/error.h>
#include <support/random.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

/// Steps of one second: values in, "start-end" out.
LabelConfig label() {
  LabelConfig config;
  config.name = "speech";
  config.enter = 0.5;
  config.leave = 0.35;
  return config;
}

std::vector<std::pair<double, double>> segments(const LabelConfig& config, const std::vector<double>& values) {
  Segmenter segmenter(config, 1.0);
  std::vector<std::pair<double, double>> found;
  const auto keep = [&](const std::optional<Segment>& segment) {
    if (segment) found.emplace_back(segment->start, segment->end);
  };
  for (double value : values) keep(segmenter.step(value));
  keep(segmenter.end(static_cast<double>(values.size())));
  return found;
}

using Spans = std::vector<std::pair<double, double>>;

}  // namespace

TEST_CASE("a segment opens at enter and closes below leave, with what lies between changing nothing") {
  CHECK(segments(label(), {0, 0.49, 0.5, 0.4, 0.36, 0.34, 0.49}) == Spans{{2, 5}});
  CHECK(segments(label(), {0.9, 0.35, 0.35}) == Spans{{0, 3}});
  CHECK(segments(label(), {0.1, 0.4, 0.2}).empty());
  CHECK(segments(label(), {}).empty());
}

TEST_CASE("a gap shorter than min_off is bridged") {
  LabelConfig config = label();
  config.min_off = 2;
  CHECK(segments(config, {1, 0, 0, 1, 0, 0, 0, 0}) == Spans{{0, 4}});
  CHECK(segments(config, {1, 0, 0, 0, 1, 0, 0, 0}) == Spans{{0, 1}, {4, 5}});
  CHECK(segments(config, {1, 0, 0.4, 0.4, 0, 0}) == Spans{{0, 1}});
}

TEST_CASE("a segment shorter than min_on is dropped") {
  LabelConfig config = label();
  config.min_on = 2;
  CHECK(segments(config, {1, 0, 1, 1, 0, 1, 1, 1}) == Spans{{2, 4}, {5, 8}});
}

TEST_CASE("a segment that is open at the end of the audio ends with it") {
  CHECK(segments(label(), {0, 1, 1}) == Spans{{1, 3}});
  LabelConfig config = label();
  config.min_off = 5;
  CHECK(segments(config, {0, 1, 0, 0}) == Spans{{1, 4}});
}

TEST_CASE("padding stays within the audio and does not touch the segment before") {
  LabelConfig config = label();
  config.min_off = 1;
  config.pad = 1;
  CHECK(segments(config, {1, 0, 0, 0, 0, 1}) == Spans{{0, 2}, {4, 6}});
  CHECK(segments(config, {0, 0, 1, 0, 0, 1, 0, 0}) == Spans{{1, 4}, {4, 7}});
}

TEST_CASE("segments are in order, apart, and within the audio, whatever the values") {
  for (const auto seed : seeds(200)) {
    INFO("seed ", seed);
    Random random(seed);
    LabelConfig config = label();
    config.min_on = static_cast<double>(random.between(0, 3));
    config.min_off = static_cast<double>(random.between(0, 3));
    config.pad = config.min_off * 0.5;
    std::vector<double> values;
    for (std::int64_t left = random.between(0, 60); left > 0; --left)
      values.push_back(random.coin() ? random.real() : (random.coin() ? 1.0f : 0.0f));
    double last = 0;
    for (const auto& [start, end] : segments(config, values)) {
      CHECK(start >= last);
      CHECK(end > start);
      CHECK(end - start >= config.min_on);
      last = end;
    }
    CHECK(last <= static_cast<double>(values.size()));
  }
}

TEST_CASE("a segment of just min_on, and a gap of just min_off, count as such wherever they are, also behind a saved state") {
  constexpr double step = 0.01;  // sums and products of it are rounded
  LabelConfig config = label();
  config.min_on = 0.25;
  config.min_off = 0.1;
  Segmenter segmenter(config, step);
  int found = 0, at = 0;
  for (int burst = 0; burst < 200; ++burst) {
    for (int on = 0; on < 25; ++on, ++at) CHECK(!segmenter.step(1));
    std::string state;
    segmenter.save(state);
    Segmenter other(config, step);
    other.load(state);
    segmenter = other;
    std::optional<Segment> segment;
    for (int off = 0; off < 11; ++off, ++at) {
      CHECK(!segment);
      segment = segmenter.step(0);
    }
    REQUIRE(segment);
    CHECK(segment->start == doctest::Approx((at - 36) * step));
    CHECK(segment->end == doctest::Approx((at - 11) * step));
    ++found;
    for (int off = 0; off < burst % 7; ++off, ++at) CHECK(!segmenter.step(0));
  }
  CHECK(found == 200);
  for (int on = 0; on < 25; ++on, ++at) segmenter.step(1);
  CHECK(segmenter.end(at * step));
}

TEST_CASE("a value that is no number changes nothing") { CHECK(segments(label(), {1, std::nan(""), 1, 0}) == Spans{{0, 3}}); }

TEST_CASE("thresholds and times that contradict each other are refused") {
  const auto refused = [](auto change) {
    LabelConfig config = label();
    change(config);
    CHECK_THROWS_AS(Segmenter(config, 1.0), ArgumentError);
  };
  refused([](LabelConfig& c) { c.leave = 0.6; });
  refused([](LabelConfig& c) { c.min_on = -1; });
  refused([](LabelConfig& c) { c.pad = 0.1; });
  refused([](LabelConfig& c) { c.enter = std::nan(""); });
  CHECK_THROWS_AS(Segmenter(label(), 0), ArgumentError);
}
