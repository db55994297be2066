// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/import/onnx.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include <runtime/models/import/with_onnx/imported.h>
#include <support/program_runs.h>
#include <support/random_tensor.h>
#include <support/same_bits.h>

#include <millrace/tensor/error.h>

/// Sizes that a run finds: of kernels, frames, images, matrices, rows.
namespace millrace {
namespace {

using testing::GraphBuilder, testing::Ints, testing::list, testing::parse, testing::Random, testing::random_tensor, testing::same_bits;

constexpr int i64 = onnx::TensorProto::INT64;

std::vector<double> numbers(const Tensor& x) {
  const std::vector<float> found = x.to_vector<float>();
  return {found.begin(), found.end()};
}

bool near(const Tensor& a, const Tensor& b) {
  if (a.dims() != b.dims()) return false;
  const std::vector<double> x = numbers(a), y = numbers(b);
  return std::equal(x.begin(), x.end(), y.begin(), [](double one, double other) { return std::abs(one - other) < 1e-4; });
}

// ---- Det

/// By the sum over permutations.
double determinant(const std::vector<double>& rows, std::size_t size) {
  std::vector<std::size_t> order(size);
  std::iota(order.begin(), order.end(), 0);
  double sum = 0;
  do {
    double product = 1;
    for (std::size_t i = 0; i < size; ++i) {
      product *= rows[i * size + order[i]];
      for (std::size_t j = 0; j < i; ++j)
        if (order[j] > order[i]) product = -product;
    }
    sum += product;
  } while (std::next_permutation(order.begin(), order.end()));
  return sum;
}

Tensor det_of(const Tensor& x, const Ints& extents) {
  GraphBuilder graph;
  graph.input("x", extents).output("y");
  graph.node("Det", {"x"}, {"y"});
  return testing::on_cpu(parse(graph), {{"x", x}})["y"].tensor();
}

TEST_CASE("Det is the sum over permutations, of matrices whose size the file or only the run knows") {
  Random random(5);
  for (const std::int64_t size : {1, 2, 3, 4, 6}) {
    CAPTURE(size);
    const Tensor x = random_tensor(random, DDim{3, size, size});
    const Tensor known = det_of(x, {3, size, size}), open = det_of(x, {-1, -1, -1});
    CHECK(known.dims() == DDim{3});
    CHECK(same_bits(known, open));
    const std::vector<double> elements = numbers(x);
    const auto count = static_cast<std::size_t>(size * size);
    for (std::size_t i = 0; i < 3; ++i) {
      const std::vector<double> one(elements.begin() + static_cast<std::ptrdiff_t>(i * count),
                                    elements.begin() + static_cast<std::ptrdiff_t>((i + 1) * count));
      CHECK(numbers(known)[i] == doctest::Approx(determinant(one, static_cast<std::size_t>(size))).epsilon(1e-4));
    }
    CHECK(same_bits(det_of(x.rows(1, 2).reshape(DDim{size, size}), {size, size}).reshape(DDim{1}), known.rows(1, 2)));
  }
}

TEST_CASE("Det of singular, empty and NaN matrices, and of none") {
  const auto of = [](const std::vector<float>& rows, std::int64_t size) {
    return det_of(Tensor::from(rows, DDim{size, size}), {-1, -1}).to_vector<float>().at(0);
  };
  CHECK(of({1, 2, 2, 4}, 2) == 0);
  CHECK(of({0, 0, 0, 0}, 2) == 0);
  CHECK(of({0, 1, 1, 0}, 2) == -1);
  CHECK(of({0, 2, 0, 0, 0, 3, 4, 0, 0}, 3) == 24);
  CHECK(of({}, 0) == 1);
  CHECK(det_of(Tensor(DType::f32, DDim{0, 3, 3}), {-1, 3, 3}).dims() == DDim{0});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto& rows : {std::vector<float>{nan, 1, 2, 3}, {1, nan, 2, 3}, {5, 1, nan, 3}, {5, 1, 2, nan}})
    CHECK(std::isnan(of(rows, 2)));
  CHECK_THROWS_AS(det_of(Tensor(DType::f32, DDim{2, 3}), {2, 3}), ProgramError);
  CHECK_THROWS_AS(det_of(testing::ones({2, 3}), {-1, -1}), ShapeError);
  for (const Ints& extents : {Ints{-1, 3, -1}, Ints{2, 3, -1}, Ints{-1, -1, 6}, Ints{-1, -1, -1}}) {
    CAPTURE(extents.size());
    CHECK_THROWS_AS(det_of(testing::ones({2, 3, 6}), extents), ShapeError);
  }
}

// ---- Conv

struct Sizes {
  DDim x, w;
  Ints strides, dilations, pads;
  const char* automatic = "NOTSET";
  int group = 1;
};

Tensor convolution(const Tensor& x, const Tensor& w, const Tensor& bias, const Sizes& sizes, bool open) {
  GraphBuilder graph;
  const auto extents = [&](const Tensor& value) {
    return open ? Ints(static_cast<std::size_t>(value.rank()), -1) : Ints(value.dims().begin(), value.dims().end());
  };
  graph.input("x", extents(x)).input("w", extents(w)).input("b", extents(bias)).output("y");
  testing::NodeBuilder node = graph.node("Conv", {"x", "w", "b"}, {"y"});
  node.set("strides", sizes.strides).set("dilations", sizes.dilations).set("auto_pad", sizes.automatic).set("group", sizes.group);
  if (!sizes.pads.empty()) node.set("pads", sizes.pads);
  return testing::on_cpu(parse(graph), {{"x", x}, {"w", w}, {"b", bias}})["y"].tensor();
}

TEST_CASE("A convolution whose kernel only the run knows gives what one of a known kernel does") {
  Random random(7);
  const Sizes all[] = {
      {.x = {2, 3, 11}, .w = {4, 3, 3}, .strides = {1}, .dilations = {1}, .pads = {}},
      {.x = {2, 4, 11}, .w = {6, 2, 3}, .strides = {2}, .dilations = {2}, .pads = {1, 2}, .group = 2},
      {.x = {1, 3, 11}, .w = {4, 3, 4}, .strides = {3}, .dilations = {1}, .pads = {}, .automatic = "SAME_UPPER"},
      {.x = {1, 3, 11}, .w = {4, 3, 4}, .strides = {1}, .dilations = {1}, .pads = {}, .automatic = "SAME_LOWER"},
      {.x = {1, 3, 11}, .w = {4, 3, 2}, .strides = {4}, .dilations = {1}, .pads = {}, .automatic = "VALID"},
      {.x = {2, 4, 9, 8}, .w = {4, 2, 3, 2}, .strides = {2, 1}, .dilations = {1, 2}, .pads = {1, 0, 1, 2}, .group = 2},
      {.x = {2, 3, 9, 8}, .w = {4, 3, 3, 2}, .strides = {2, 1}, .dilations = {1, 1}, .pads = {}, .automatic = "SAME_UPPER"},
      {.x = {0, 3, 9}, .w = {4, 3, 3}, .strides = {1}, .dilations = {1}, .pads = {}},
  };
  for (const Sizes& sizes : all) {
    CAPTURE(sizes.x);
    CAPTURE(sizes.automatic);
    const Tensor x = random_tensor(random, sizes.x), w = random_tensor(random, sizes.w), bias = random_tensor(random, DDim{sizes.w[0]});
    CHECK(near(convolution(x, w, bias, sizes, true), convolution(x, w, bias, sizes, false)));
  }
  const Sizes one = {.x = {1, 5, 9}, .w = {4, 3, 3}, .strides = {1}, .dilations = {1}, .pads = {}};
  CHECK_THROWS_AS(convolution(testing::ones(one.x), testing::ones(one.w), testing::ones({4}), one, true), ShapeError);
  CHECK_THROWS_AS(convolution(testing::ones({1, 3, 9}), testing::ones(one.w), testing::ones({1}), one, true), ShapeError);
}

// ---- Col2Im

Tensor folded(const Tensor& x, const Ints& image, const Ints& block, bool known, const Ints& dilations = {1, 1}) {
  GraphBuilder graph;
  graph.input("x", {-1, -1, -1}).output("y");
  std::map<std::string, Value> feeds{{"x", x}};
  const auto sizes = [&](const std::string& name, const Ints& values) {
    if (known) return void(graph.initializer(name, list(values)));
    graph.input(name, {static_cast<std::int64_t>(values.size())}, i64);
    feeds.emplace(name, list(values));
  };
  sizes("image", image);
  sizes("block", block);
  graph.node("Col2Im", {"x", "image", "block"}, {"y"}).set("strides", Ints{2, 1}).set("dilations", dilations).set("pads", Ints{1, 0, 0, 1});
  return testing::on_cpu(parse(graph, 18), feeds)["y"].tensor();
}

TEST_CASE("Col2Im takes extents of the image and of a block that a run computes, with the bits of those that the file holds") {
  Random random(9);
  const Tensor x = random_tensor(random, DDim{2, 12, 15});
  CHECK(same_bits(folded(x, {6, 5}, {2, 2}, false), folded(x, {6, 5}, {2, 2}, true)));
  const Tensor dilated = random_tensor(random, DDim{1, 6, 4});
  CHECK(same_bits(folded(dilated, {6, 3}, {3, 2}, false, {2, 2}), folded(dilated, {6, 3}, {3, 2}, true, {2, 2})));
  // Another number of places than windows, and channels that the elements of a block do not divide.
  CHECK_THROWS_AS(folded(x, {6, 6}, {2, 2}, false), ShapeError);
  CHECK_THROWS_AS(folded(random_tensor(random, DDim{2, 11, 15}), {6, 5}, {2, 2}, false), ShapeError);
  CHECK_THROWS_AS(folded(random_tensor(random, DDim{1, 3, 10}), {6, 5}, {2, 1}, false), ShapeError);
}

// ---- STFT

TEST_CASE("An STFT takes a step and a length that a run computes, with the bits of those that the file holds") {
  Random random(11);
  const Tensor x = random_tensor(random, DDim{2, 40, 1});
  Tensor window = random_tensor(random, DDim{8});
  const auto made = [&](bool known, bool windowed, bool says_length, const Tensor& signal) {
    GraphBuilder graph;
    graph.input("x", {-1, -1, 1}).output("y");
    std::map<std::string, Value> feeds{{"x", signal}};
    const auto number = [&](const std::string& name, std::int64_t value) {
      if (known) return void(graph.initializer(name, Tensor::scalar(value)));
      graph.input(name, {}, i64);
      feeds.emplace(name, Tensor::scalar(value));
    };
    number("step", 4);
    if (says_length) number("length", 8);
    if (windowed) known ? graph.initializer("window", window) : graph.input("window", {-1});
    if (windowed && !known) feeds.emplace("window", window);
    graph.node("STFT", {"x", "step", windowed ? "window" : "", says_length ? "length" : ""}, {"y"});
    return testing::on_cpu(parse(graph), feeds)["y"].tensor();
  };
  CHECK(made(true, true, true, x).dims() == DDim{2, 9, 5, 2});
  CHECK(same_bits(made(false, true, true, x), made(true, true, true, x)));
  CHECK(same_bits(made(false, true, false, x), made(true, true, false, x)));
  CHECK(same_bits(made(false, false, true, x), made(true, false, true, x)));
  CHECK(made(false, true, true, x.slice(1, 0, 6).copy_to(CpuPlace{})).dims() == DDim{2, 0, 5, 2});  // no whole frame
  CHECK_THROWS_AS(made(false, false, false, x), ProgramError);
  for (const std::int64_t other : {1, 7, 16}) {
    window = testing::ones({other});
    CHECK_THROWS_AS(made(false, true, true, x), ShapeError);
  }
}

// ---- Unique

TEST_CASE("Unique compares slices along an axis whose number of elements only the run knows, or is large") {
  const auto made = [](const Tensor& x, const Ints& extents, int axis) {
    GraphBuilder graph;
    graph.input("x", extents).output("y").output("first").output("groups").output("counts");
    graph.node("Unique", {"x"}, {"y", "first", "groups", "counts"}).set("axis", axis);
    const RunResult run = testing::on_cpu(parse(graph), {{"x", x}});
    return std::vector<Tensor>{run["y"].tensor(), run["first"].tensor(), run["groups"].tensor(), run["counts"].tensor()};
  };
  const Tensor x = Tensor::from(std::vector<float>{2, 1, 0, 1, 1, 1, 2, 1, 0, 1, 0, 5}, DDim{4, 3});
  for (const Ints& extents : {Ints{-1, -1}, Ints{-1, 3}}) {
    const std::vector<Tensor> rows = made(x, extents, 0);
    CHECK(rows[0].to_vector<float>() == std::vector<float>{1, 0, 5, 1, 1, 1, 2, 1, 0});
    CHECK(rows[1].to_vector<std::int64_t>() == Ints{3, 1, 0});
    CHECK(rows[2].to_vector<std::int64_t>() == Ints{2, 1, 2, 0});
    CHECK(rows[3].to_vector<std::int64_t>() == Ints{1, 1, 2});
  }
  CHECK(made(x, {-1, -1}, 1)[0].to_vector<float>() == std::vector<float>{0, 1, 2, 1, 1, 1, 0, 1, 2, 5, 0, 1});
  // Without elements all slices are equal, and no slices are none.
  const std::vector<Tensor> same = made(Tensor(DType::f32, DDim{4, 0}), {-1, -1}, 0);
  CHECK(same[0].dims() == DDim{1, 0});
  CHECK(same[3].to_vector<std::int64_t>() == Ints{4});
  CHECK(made(Tensor(DType::f32, DDim{0, 3}), {-1, -1}, 0)[0].dims() == DDim{0, 3});
  std::vector<float> wide(600, 1);
  wide[599] = 0;
  CHECK(made(Tensor::from(wide, DDim{2, 300}), {2, 300}, 0)[1].to_vector<std::int64_t>() == Ints{1, 0});
}

// ---- masks of the longest sequence

TEST_CASE("A mask of the longest sequence hides keys as its rows behind the past do") {
  Random random(13);
  const Tensor x = random_tensor(random, DDim{2, 3, 4}), w = random_tensor(random, DDim{4, 12}),
               past = random_tensor(random, DDim{2, 2, 2, 2, 2});
  std::vector<std::int32_t> all, some;
  for (int batch = 0; batch < 2; ++batch)
    for (int row = 0; row < 7; ++row)
      for (int key = 0; key < 7; ++key) {
        all.push_back((row * 3 + key * 5 + batch) % 4 > 0 ? 1 : 0);
        if (row >= 2 && row < 5 && key < 5) some.push_back(all.back());
      }
  const auto made = [&](const Tensor& mask, const Ints& extents) {
    GraphBuilder graph;
    graph.input("x", {-1, -1, 4}).input("mask", extents, onnx::TensorProto::INT32).input("past", {2, -1, 2, -1, 2}).initializer("w", w);
    graph.output("y");
    graph.node("Attention", {"x", "w", "", "mask", "past"}, {"y"}).domain("com.microsoft").set("num_heads", 2);
    return testing::on_cpu(parse(graph), {{"x", x}, {"mask", mask}, {"past", past}})["y"].tensor();
  };
  const Tensor rows = made(Tensor::from(some, DDim{2, 3, 5}), {-1, -1, -1});
  CHECK(same_bits(made(Tensor::from(all, DDim{2, 1, 7, 7}), {-1, 1, -1, -1}), rows));
  CHECK_THROWS_AS(made(Tensor::from(std::vector<std::int32_t>(32, 1), DDim{2, 1, 4, 4}), {-1, 1, -1, -1}), ShapeError);
}

}  // namespace
}  // namespace millrace
