// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/import/onnx.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <runtime/models/import/with_onnx/imported.h>
#include <support/program_runs.h>
#include <support/random_tensor.h>
#include <support/same_bits.h>

#include <millrace/runtime/lowering/recurrence.h>

namespace millrace {
namespace {

using testing::GraphBuilder, testing::Ints, testing::list, testing::ones, testing::parse, testing::Random, testing::random_tensor,
    testing::same_bits;

/// The numbers of a nearest Resize of 0, 1, 2 and so on, [1, 1, length], whose length a run knows.
std::vector<float> nearest(std::int64_t length, const char* coordinates, const char* rounding, float scale, std::int64_t size = 0,
                           int opset = 19) {
  GraphBuilder graph;
  graph.input("x", {1, 1, -1}).initializer("scales", Tensor::from<float>({1, 1, scale})).initializer("sizes", list({1, 1, size}));
  graph.output("y");
  graph.node("Resize", {"x", "", size > 0 ? "" : "scales", size > 0 ? "sizes" : ""}, {"y"})
      .set("coordinate_transformation_mode", coordinates)
      .set("nearest_mode", rounding);
  std::vector<float> x;
  for (std::int64_t i = 0; i < length; ++i) x.push_back(static_cast<float>(i));
  return testing::on_cpu(parse(graph, opset), {{"x", Tensor::from(x, DDim{1, 1, length})}})["y"].tensor().to_vector<float>();
}

TEST_CASE("A nearest Resize divides by scales in f32, and its quotients by sizes are exact") {
  using Floats = std::vector<float>;
  // 3 / 0.6f is 5 in f32, and less in f64.
  CHECK(nearest(7, "asymmetric", "floor", 0.6f) == Floats{0, 1, 3, 5});
  CHECK(nearest(7, "half_pixel", "round_prefer_floor", 0.7f) == Floats{0, 2, 3, 4});
  CHECK(nearest(5, "pytorch_half_pixel", "floor", 0.6f) == Floats{0, 2, 3});
  CHECK(nearest(5, "half_pixel", "round_prefer_ceil", 1.0f, 5) == Floats{0, 1, 2, 3, 4});
  // Numbers of ONNX Runtime 1.32.
  CHECK(nearest(5, "half_pixel_symmetric", "ceil", 1.0f / 3) == Floats{2});
  CHECK(nearest(3, "half_pixel_symmetric", "ceil", 1.7f) == Floats{0, 1, 1, 2, 2});
  CHECK(nearest(3, "tf_half_pixel_for_nn", "round_prefer_ceil", 1.0f / 3, 0, 11) == Floats{2});
  CHECK(nearest(4, "tf_half_pixel_for_nn", "round_prefer_ceil", 0.6f, 0, 11) == Floats{1, 3});
  CHECK(nearest(4, "tf_half_pixel_for_nn", "ceil", 1.0f, 0, 11) == Floats{0, 1, 2, 3});
  for (const auto& [length, size] : {std::pair{14, 18}, {21, 27}, {28, 18}, {7, 5}, {5, 7}}) {
    INFO(length, " to ", size);
    Floats wanted;
    for (int i = 0; i < size; ++i) wanted.push_back(static_cast<float>(i * length / size));
    CHECK(nearest(length, "asymmetric", "floor", 1.0f, size) == wanted);
  }
}

TEST_CASE("Products of dequantized factors whose scales have a product that f32 does not hold are those of floats") {
  const auto product = [](const char* op, float a_scale, float b_scale) {
    GraphBuilder graph;
    graph.input("a", op == std::string("MatMul") ? Ints{3, 3} : Ints{3, 1, 3}, onnx::TensorProto::UINT8).output("y");
    graph.initializer("a_scale", Tensor::scalar(a_scale)).initializer("b_scale", Tensor::scalar(b_scale));
    graph.initializer("zero", Tensor::scalar(std::uint8_t{3}));
    graph.initializer("b", Tensor::from(std::vector<std::uint8_t>{2, 5, 4}, op == std::string("MatMul") ? DDim{3, 1} : DDim{1, 1, 3}));
    graph.node("DequantizeLinear", {"a", "a_scale", "zero"}, {"x"});
    graph.node("DequantizeLinear", {"b", "b_scale", "zero"}, {"w"});
    graph.node(op, {"x", "w"}, {"y"});
    const Tensor a = Tensor::from(std::vector<std::uint8_t>{3, 3, 3, 3, 9, 200, 3, 4, 3}, DDim{3, 3});
    const Tensor given = op == std::string("MatMul") ? a : a.reshape(DDim{3, 1, 3});
    return testing::on_cpu(parse(graph), {{"a", given}})["y"].tensor().to_vector<float>();
  };
  for (const char* op : {"MatMul", "Conv"}) {
    INFO(op);
    const float infinity = std::numeric_limits<float>::infinity();
    CHECK(product(op, 1e30f, 1e30f) == std::vector<float>{0, infinity, infinity});
    const std::vector<float> small = product(op, 1e-24f, 1e-14f);  // the product of the scales alone is subnormal
    CHECK(small[1] / 2.09e-36f == doctest::Approx(1));
    CHECK(small[2] / 2e-38f == doctest::Approx(1));
    CHECK(product(op, 0.5f, 0.25f) == std::vector<float>{0, 0.125f * (12 + 197), 0.25f});
    CHECK(product(op, 0.0f, 0.25f) == std::vector<float>{0, 0, 0});
  }
}

TEST_CASE("A GlobalAveragePool of dequantized bytes is an exact sum times the scale") {
  const auto mean = [](const Tensor& bytes, float scale, bool open) {
    GraphBuilder graph;
    graph.input("a", {1, bytes.dim(1), open ? -1 : bytes.dim(2)}, onnx::TensorProto::UINT8).output("y");
    graph.initializer("scale", Tensor::scalar(scale)).initializer("zero", Tensor::scalar(std::uint8_t{3}));
    graph.node("DequantizeLinear", {"a", "scale", "zero"}, {"x"});
    graph.node("GlobalAveragePool", {"x"}, {"y"});
    return testing::on_cpu(parse(graph), {{"a", bytes}})["y"].tensor().to_vector<float>();
  };
  Random random(4);
  std::vector<std::uint8_t> numbers;
  double sum = 0;
  for (int i = 0; i < 1000; ++i) {
    numbers.push_back(static_cast<std::uint8_t>(random.between(0, 255)));
    sum += numbers.back() - 3.0;
  }
  const Tensor bytes = Tensor::from(numbers, DDim{1, 1, 1000});
  CHECK(mean(bytes, 0.1f, false) == std::vector<float>{static_cast<float>(sum) * 0.1f / 1000.0f});
  CHECK(mean(bytes, 0.1f, true)[0] == doctest::Approx(sum * 1e-4).epsilon(1e-5));
}

TEST_CASE("A transposed convolution whose extents are open gives the places that output_shape asks for, with the bits of known ones") {
  for (const std::uint64_t seed : testing::seeds(40)) {
    INFO("seed ", seed);
    Random random(seed);
    const std::int64_t kernel = random.between(1, 5), stride = random.between(1, 4), dilation = random.between(1, 2);
    const std::int64_t length = random.between(1, 9), full = (length - 1) * stride + (kernel - 1) * dilation + 1;
    const std::int64_t out = std::max<std::int64_t>(1, full + random.between(-4, 4));
    const char* const pads[] = {"NOTSET", "SAME_UPPER", "SAME_LOWER"};
    const std::string automatic = pads[random.between(0, 2)];
    const Tensor w = random_tensor(random, {2, 3, kernel}), bias = random_tensor(random, {3}), x = random_tensor(random, {2, 2, length});
    const auto made = [&](std::int64_t declared) {
      GraphBuilder graph;
      graph.input("x", {2, 2, declared}).output("y").initializer("w", w).initializer("b", bias);
      graph.node("ConvTranspose", {"x", "w", "b"}, {"y"})
          .set("output_shape", Ints{out})
          .set("strides", Ints{stride})
          .set("dilations", Ints{dilation})
          .set("auto_pad", automatic.c_str());
      const Program program = parse(graph);
      CHECK(program.var(program.outputs()[0].var).type.shape == DDim{2, 3, out});
      return testing::on_cpu(program, {{"x", x}})["y"].tensor().copy_to(CpuPlace{});
    };
    CHECK(same_bits(made(-1), made(length)));
  }
}

TEST_CASE("A Loop of no trips gives picks of places and greatest elements with the extents of one that has some") {
  GraphBuilder body;
  body.input("i", {}, onnx::TensorProto::INT64).input("go", {}, onnx::TensorProto::BOOL).input("s", {-1, 4});
  body.output("go").output("next").output("place").output("kept").output("best");
  body.initializer("two", list({2}));
  body.node("Tanh", {"s"}, {"next"});
  body.node("ArgMax", {"next"}, {"place"}).set("axis", 1).set("keepdims", 0);
  body.node("ArgMin", {"next"}, {"kept"}).set("axis", 1);
  body.node("TopK", {"next", "two"}, {"best", "places"}).set("axis", 1);
  GraphBuilder graph;
  graph.input("x", {-1, 4}).input("n", {}, onnx::TensorProto::INT64).output("y").output("place_all").output("kept_all").output("best_all");
  graph.node("Loop", {"n", "", "x"}, {"y", "place_all", "kept_all", "best_all"}).set("body", body.graph);
  const Program program = parse(graph);
  for (const std::int64_t trips : {0, 3}) {
    const RunResult result = testing::on_cpu(program, {{"x", ones({5, 4})}, {"n", Tensor::scalar(trips)}});
    CHECK(result["place_all"].tensor().dims() == DDim{trips, 5});
    CHECK(result["kept_all"].tensor().dims() == DDim{trips, 5, 1});
    CHECK(result["best_all"].tensor().dims() == DDim{trips, 5, 2});
  }
}

TEST_CASE("A Loop of no trips gives triangles and scattered rows with the batch of its state") {
  GraphBuilder body;
  body.input("i", {}, onnx::TensorProto::INT64).input("go", {}, onnx::TensorProto::BOOL).input("s", {-1, 4});
  body.output("go").output("next").output("triangle").output("changed");
  body.initializer("first", Tensor::from(std::vector<std::int64_t>{0}, DDim{1, 1})).initializer("row", ones({1, 4}));
  body.node("Tanh", {"s"}, {"next"});
  body.node("Trilu", {"next"}, {"triangle"});
  body.node("ScatterND", {"triangle", "first", "row"}, {"changed"});
  GraphBuilder graph;
  graph.input("x", {-1, 4}).input("n", {}, onnx::TensorProto::INT64).output("y").output("triangles").output("all");
  graph.node("Loop", {"n", "", "x"}, {"y", "triangles", "all"}).set("body", body.graph);
  const Program program = parse(graph);
  for (const std::int64_t trips : {0, 3}) {
    const RunResult result = testing::on_cpu(program, {{"x", ones({5, 4})}, {"n", Tensor::scalar(trips)}});
    CHECK(result["triangles"].tensor().dims() == DDim{trips, 5, 4});
    CHECK(result["all"].tensor().dims() == DDim{trips, 5, 4});
  }
}

TEST_CASE("SpaceToDepth takes pictures of any size, and GroupNormalization channels that its scale alone counts") {
  Random random(3);
  const Tensor x = random_tensor(random, {2, 4, 4, 6}), scale = random_tensor(random, {4}), bias = random_tensor(random, {4});
  const auto made = [&](const Ints& declared) {
    GraphBuilder graph;
    graph.input("x", declared).output("deep").output("normed").initializer("scale", scale).initializer("bias", bias);
    graph.node("SpaceToDepth", {"x"}, {"deep"}).set("blocksize", 2);
    graph.node("GroupNormalization", {"x", "scale", "bias"}, {"normed"}).set("num_groups", 2);
    const RunResult result = testing::on_cpu(parse(graph, 21), {{"x", x}});
    return std::pair(result["deep"].tensor().copy_to(CpuPlace{}), result["normed"].tensor().copy_to(CpuPlace{}));
  };
  const auto open = made({2, -1, -1, -1}), known = made({2, 4, 4, 6});
  CHECK(open.first.dims() == DDim{2, 16, 2, 3});
  CHECK(same_bits(open.first, known.first));
  CHECK(same_bits(open.second, known.second));
  GraphBuilder odd;
  odd.input("x", {1, 1, -1, 6}).output("y").node("SpaceToDepth", {"x"}, {"y"}).set("blocksize", 2);
  CHECK_THROWS_AS(testing::on_cpu(parse(odd), {{"x", ones({1, 1, 3, 6})}}), Error);
}

TEST_CASE("DepthToSpace and a GroupNormalization with a scale for each group take any number of channels") {
  Random random(4);
  const Tensor x = random_tensor(random, {2, 8, 3, 5}), scale = random_tensor(random, {2}), bias = random_tensor(random, {2});
  for (const char* mode : {"DCR", "CRD"}) {
    const auto made = [&](const Ints& declared) {
      GraphBuilder graph;
      graph.input("x", declared).output("wide").output("normed").initializer("scale", scale).initializer("bias", bias);
      graph.node("DepthToSpace", {"x"}, {"wide"}).set("blocksize", 2).set("mode", mode);
      graph.node("GroupNormalization", {"x", "scale", "bias"}, {"normed"}).set("num_groups", 2);
      const RunResult result = testing::on_cpu(parse(graph, 18), {{"x", x}});
      return std::pair(result["wide"].tensor().copy_to(CpuPlace{}), result["normed"].tensor().copy_to(CpuPlace{}));
    };
    const auto open = made({-1, -1, -1, -1}), known = made({2, 8, 3, 5});
    CHECK(open.first.dims() == DDim{2, 2, 6, 10});
    CHECK(same_bits(open.first, known.first));
    CHECK(same_bits(open.second, known.second));
  }
  GraphBuilder odd;
  odd.input("x", {-1, -1, -1, -1}).output("y").node("DepthToSpace", {"x"}, {"y"}).set("blocksize", 2);
  CHECK_THROWS_AS(testing::on_cpu(parse(odd), {{"x", ones({1, 7, 3, 6})}}), ShapeError);
  GraphBuilder groups;
  groups.input("x", {1, 5, 3}).output("y").initializer("scale", ones({2})).initializer("bias", ones({2}));
  groups.node("GroupNormalization", {"x", "scale", "bias"}, {"y"}).set("num_groups", 2);
  CHECK_THROWS_WITH_AS(parse(groups, 18), doctest::Contains("expected an extent of axis 1 that 2 divides, found f32[1, 5, 3]"),
                       ProgramError);
}

TEST_CASE("A Clip of old opsets without a bound cuts infinity to the ends of f32") {
  constexpr float most = std::numeric_limits<float>::max(), infinite = std::numeric_limits<float>::infinity();
  GraphBuilder graph;
  graph.input("x", {-1}).output("all").output("low").output("high");
  graph.node("Clip", {"x"}, {"all"});
  graph.node("Clip", {"x"}, {"low"}).set("min", -1.0f);
  graph.node("Clip", {"x"}, {"high"}).set("max", 1.0f);
  const std::map<std::string, Value> feeds{{"x", Tensor::from<float>({-infinite, -2, 2, infinite})}};
  for (const int opset : {6, 10}) {
    const RunResult result = testing::on_cpu(parse(graph, opset), feeds);
    CHECK(result["all"].tensor().to_vector<float>() == std::vector<float>{-most, -2, 2, most});
    CHECK(result["low"].tensor().to_vector<float>() == std::vector<float>{-1, -1, 2, most});
    CHECK(result["high"].tensor().to_vector<float>() == std::vector<float>{-most, -2, 1, 1});
  }
}

TEST_CASE("An If takes a condition of one element, whatever its axes") {
  GraphBuilder then, otherwise, graph;
  then.output("a").node("Neg", {"x"}, {"a"});
  otherwise.output("b").node("Abs", {"x"}, {"b"});
  graph.input("c", {1, 1}, onnx::TensorProto::BOOL).input("x", {-1}).output("y");
  graph.node("If", {"c"}, {"y"}).set("then_branch", then.graph).set("else_branch", otherwise.graph);
  const Program program = parse(graph);
  for (const bool condition : {true, false}) {
    const Tensor c = Tensor::from<bool>({condition}).reshape(DDim{1, 1});
    const RunResult result = testing::on_cpu(program, {{"c", c}, {"x", Tensor::from<float>({1, -2})}});
    CHECK(result["y"].tensor().to_vector<float>() == (condition ? std::vector<float>{-1, 2} : std::vector<float>{1, 2}));
  }
}

TEST_CASE("Random numbers are those of their distribution, the same in every run, and each node has its own") {
  GraphBuilder graph;
  graph.input("x", {-1, 2});
  for (const char* name : {"normal", "other", "seeded", "again", "uniform", "shaped", "coins"}) graph.output(name);
  graph.node("RandomNormalLike", {"x"}, {"normal"}).set("mean", 3.0f).set("scale", 2.0f);
  graph.node("RandomNormalLike", {"x"}, {"other"}).set("mean", 3.0f).set("scale", 2.0f);
  graph.node("RandomNormalLike", {"x"}, {"seeded"}).set("seed", 7.0f);
  graph.node("RandomNormalLike", {"x"}, {"again"}).set("seed", 7.0f);
  graph.node("RandomUniformLike", {"x"}, {"uniform"}).set("low", -1.0f).set("high", 3.0f).set("dtype", 11);
  graph.node("RandomUniform", {}, {"shaped"}).set("shape", Ints{3, 4});
  graph.node("Bernoulli", {"x"}, {"coins"}).set("dtype", 7);
  const Program program = parse(graph);
  constexpr std::int64_t rows = 20000;
  const Value x = make_darray(DDim{rows, 2}, 0.25f);
  const RunResult result = testing::on_cpu(program, {{"x", x}}), next = testing::on_cpu(program, {{"x", x}});
  const auto moments = [&](const char* name) {
    const Tensor& drawn = result[name].tensor();
    double sum = 0, squares = 0;
    for (std::int64_t i = 0; i < drawn.elements(); ++i) {
      const double each = drawn.reshape(DDim{drawn.elements()}).rows(i, i + 1).item();
      sum += each;
      squares += each * each;
    }
    const double mean = sum / static_cast<double>(drawn.elements());
    return std::pair(mean, squares / static_cast<double>(drawn.elements()) - mean * mean);
  };
  CHECK(moments("normal").first == doctest::Approx(3).epsilon(0.01));
  CHECK(moments("normal").second == doctest::Approx(4).epsilon(0.03));
  CHECK(moments("uniform").first == doctest::Approx(1).epsilon(0.03));
  CHECK(moments("uniform").second == doctest::Approx(16.0 / 12).epsilon(0.03));
  CHECK(moments("coins").first == doctest::Approx(0.25).epsilon(0.03));
  CHECK(result["uniform"].tensor().dtype() == DType::f64);
  CHECK(result["coins"].tensor().dtype() == DType::i64);
  CHECK(result["shaped"].tensor().dims() == DDim{3, 4});
  for (const char* name : {"normal", "uniform", "shaped", "coins"}) CHECK(same_bits(result[name].tensor(), next[name].tensor()));
  CHECK_FALSE(same_bits(result["normal"].tensor(), result["other"].tensor()));
  CHECK(same_bits(result["seeded"].tensor(), result["again"].tensor()));
  CHECK(testing::on_cpu(program, {{"x", make_darray(DDim{0, 2}, 0.0f)}})["normal"].tensor().dims() == DDim{0, 2});
}

TEST_CASE("Multinomial draws classes as often as their exponentials say, and none that is impossible") {
  GraphBuilder graph;
  graph.input("x", {-1, -1}).output("y");
  graph.node("Multinomial", {"x"}, {"y"}).set("sample_size", 20000).set("dtype", 7);
  const float never = -std::numeric_limits<float>::infinity();
  const Tensor x = Tensor::from(std::vector<float>{std::log(3.0f), never, 0, 5, 5, never}, DDim{2, 3});
  const Tensor drawn = testing::on_cpu(parse(graph), {{"x", x}})["y"].tensor();
  CHECK(drawn.dims() == DDim{2, 20000});
  std::vector<std::vector<double>> counts(2, std::vector<double>(3, 0));
  const std::vector<std::int64_t> classes = drawn.to_vector<std::int64_t>();
  for (std::size_t i = 0; i < classes.size(); ++i) counts.at(i / 20000).at(static_cast<std::size_t>(classes[i])) += 1.0 / 20000;
  CHECK(counts[0][0] == doctest::Approx(0.75).epsilon(0.03));
  CHECK(counts[1][0] == doctest::Approx(0.5).epsilon(0.03));
  CHECK(counts[0][1] + counts[1][2] == 0);
}

TEST_CASE("Iterations of loops draw other numbers, those of a loop within a loop too") {
  GraphBuilder inner;
  inner.input("j", {}, onnx::TensorProto::INT64).input("again", {}, onnx::TensorProto::BOOL);
  inner.output("more").output("drawn");
  inner.node("Identity", {"again"}, {"more"});
  inner.node("RandomNormal", {}, {"drawn"}).set("shape", Ints{2});
  GraphBuilder outer;
  outer.input("i", {}, onnx::TensorProto::INT64).input("go", {}, onnx::TensorProto::BOOL);
  outer.output("still").output("rows");
  outer.node("Identity", {"go"}, {"still"});
  outer.node("Loop", {"three", ""}, {"rows"}).set("body", inner.graph);
  GraphBuilder graph;
  graph.input("n", {}, onnx::TensorProto::INT64).initializer("three", Tensor::scalar(std::int64_t{3})).output("y");
  graph.node("Loop", {"n", ""}, {"y"}).set("body", outer.graph);
  const Program program = parse(graph);
  const auto run = [&](std::int64_t n) { return testing::on_cpu(program, {{"n", Tensor::scalar(n)}})["y"].tensor(); };
  const Tensor whole = run(4);
  CHECK(whole.dims() == DDim{4, 3, 2});
  std::vector<float> numbers = whole.to_vector<float>();
  std::sort(numbers.begin(), numbers.end());
  CHECK(std::adjacent_find(numbers.begin(), numbers.end()) == numbers.end());
  CHECK(same_bits(run(2), whole.rows(0, 2)));
}

TEST_CASE("Numbers drawn for each row are refused in a live sequence, and a distribution of integers is refused") {
  GraphBuilder graph;
  graph.input("x", {-1, 2}).output("y");
  graph.node("RandomNormalLike", {"x"}, {"r"});
  graph.node("Add", {"x", "r"}, {"y"});
  CHECK_THROWS_AS(make_recurrence(parse(graph)), UnsupportedError);
  GraphBuilder whole;
  whole.input("x", {2}, onnx::TensorProto::INT64).output("y").node("RandomNormalLike", {"x"}, {"y"});
  CHECK_THROWS_WITH_AS(parse(whole), doctest::Contains("expected floats to draw, found i64"), UnsupportedError);
}

TEST_CASE("A Fourier transform takes a length that a run computes, with the bits of one that the file holds") {
  Random random(3);
  const auto made = [](const Tensor& x, std::int64_t length, bool known, bool inverse, bool onesided) {
    GraphBuilder graph;
    graph.input("x", {-1, -1, x.dim(2)}).output("y");
    known ? graph.initializer("n", Tensor::scalar(length)) : graph.input("n", {}, onnx::TensorProto::INT64);
    graph.node("DFT", {"x", "n"}, {"y"}).set("axis", 1).set("inverse", inverse).set("onesided", onesided);
    std::map<std::string, Value> feeds{{"x", x}};
    if (!known) feeds.emplace("n", Tensor::scalar(length));
    return testing::on_cpu(parse(graph, 17), feeds)["y"].tensor();
  };
  for (const std::int64_t length : {5, 8, 12}) {
    CAPTURE(length);
    const Tensor real = random_tensor(random, DDim{2, 8, 1}), both = random_tensor(random, DDim{2, 8, 2});
    for (const bool onesided : {false, true}) {
      const Tensor whole = made(real, length, true, false, onesided);
      CHECK(whole.dims() == DDim{2, onesided ? length / 2 + 1 : length, 2});
      CHECK(same_bits(made(real, length, false, false, onesided), whole));
    }
    for (const bool onesided : {false, true})
      CHECK(same_bits(made(both, length, false, true, onesided), made(both, length, true, true, onesided)));
  }
}

TEST_CASE("Weights say the open extents of the inputs that they multiply, so that rows are told apart") {
  const auto type_of = [](const GraphBuilder& graph) {
    const Program program = parse(graph);
    return program.var(program.inputs()[0].var).type.to_string();
  };
  GraphBuilder product;
  product.input("x", {-1, -1}).initializer("w", ones({3, 2})).initializer("b", ones({2})).output("y");
  product.node("MatMul", {"x", "w"}, {"p"});
  product.node("Add", {"p", "b"}, {"y"});
  CHECK(type_of(product) == "f32[?, 3]");
  CHECK_NOTHROW(make_recurrence(parse(product)));
  CHECK_THROWS_AS(testing::on_cpu(parse(product), {{"x", ones({4, 2})}}), ShapeError);
  GraphBuilder turned;
  turned.input("x", {-1, -1}).initializer("w", ones({2, 3})).output("y");
  turned.node("Gemm", {"x", "w"}, {"y"}).set("transB", 1);
  CHECK(type_of(turned) == "f32[?, 3]");
  GraphBuilder windows;
  windows.input("x", {-1, -1, -1}).initializer("w", ones({4, 2, 3})).output("y");
  windows.node("Conv", {"x", "w"}, {"y"}).set("group", 2);
  CHECK(type_of(windows) == "f32[?, 4, ?]");
  GraphBuilder cells;
  cells.input("x", {-1, -1}).initializer("W", ones({1, 8, 3})).initializer("R", ones({1, 8, 2})).initializer("one", list({1})).output("y");
  cells.node("Unsqueeze", {"x", "one"}, {"rows"});
  cells.node("LSTM", {"rows", "W", "R"}, {"y"}).set("hidden_size", 2);
  CHECK(type_of(cells) == "f32[?, 3]");
  CHECK(make_recurrence(parse(cells)).states.size() == 2);
  // An extent of 1 may be stretched.
  GraphBuilder stretched;
  stretched.input("x", {-1, -1}).initializer("w", ones({3, 2})).initializer("b", ones({3})).output("y");
  stretched.node("Add", {"x", "b"}, {"s"});
  stretched.node("MatMul", {"s", "w"}, {"y"});
  CHECK(testing::on_cpu(parse(stretched), {{"x", ones({4, 1})}})["y"].tensor().dims() == DDim{4, 2});
}

TEST_CASE("Attention of ONNX Runtime's optimiser is that of ONNX, with bias, past and masks of keys") {
  Random random(5);
  constexpr std::int64_t batch = 2, rows = 3, past = 2, heads = 2, size = 4, width = heads * size;
  const Tensor q = random_tensor(random, DDim{batch, rows, width}), k = random_tensor(random, DDim{batch, rows, width}),
               v = random_tensor(random, DDim{batch, rows, width}), bias = random_tensor(random, DDim{3 * width}),
               old_k = random_tensor(random, DDim{batch, heads, past, size}), old_v = random_tensor(random, DDim{batch, heads, past, size});
  const Tensor seen = Tensor::from(std::vector<std::int32_t>{1, 0, 1, 1, 0, 1, 1, 1, 1, 1}, DDim{batch, past + rows});
  const auto parts = [&](GraphBuilder& graph) {
    for (const char* name : {"q", "k", "v"}) graph.input(name, {-1, -1, width});
    for (const char* name : {"old_k", "old_v"}) graph.input(name, {-1, heads, -1, size});
    graph.input("seen", {-1, -1}, onnx::TensorProto::INT32).initializer("bias", bias).output("y");
  };
  const std::map<std::string, Value> feeds{{"q", q}, {"k", k}, {"v", v}, {"old_k", old_k}, {"old_v", old_v}, {"seen", seen}};
  GraphBuilder joined;
  parts(joined);
  joined.output("new_k");
  joined.node("MultiHeadAttention", {"q", "k", "v", "bias", "seen", "", "old_k", "old_v"}, {"y", "new_k", "new_v"})
      .domain("com.microsoft")
      .set("num_heads", 2)
      .set("unidirectional", 1)
      .set("mask_filter_value", -std::numeric_limits<float>::infinity());
  GraphBuilder plain;
  parts(plain);
  plain.initializer("zero", Tensor::from<std::int32_t>({0})).initializer("axes", list({1, 2}));
  for (const auto& [name, begin] : {std::pair{"q", 0}, {"k", 8}, {"v", 16}}) {
    plain.initializer(std::string(name) + " bias", bias.rows(begin, begin + 8));
    plain.node("Add", {name, std::string(name) + " bias"}, {std::string(name) + " sum"});
  }
  plain.node("Greater", {"seen", "zero"}, {"look"});
  plain.node("Unsqueeze", {"look", "axes"}, {"mask"});
  plain.node("Attention", {"q sum", "k sum", "v sum", "mask", "old_k", "old_v"}, {"y"})
      .set("q_num_heads", 2)
      .set("kv_num_heads", 2)
      .set("is_causal", 1);
  const RunResult found = testing::on_cpu(parse(joined, 23), feeds);
  const std::vector<float> got = found["y"].tensor().to_vector<float>(),
                           expected = testing::on_cpu(parse(plain, 23), feeds)["y"].tensor().to_vector<float>();
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i] == doctest::Approx(expected[i]).epsilon(1e-5));
  CHECK(found["new_k"].tensor().dims() == DDim{batch, heads, past + rows, size});
}

TEST_CASE("Attention of ONNX Runtime's optimiser multiplies by the weights of Q, K and V side by side, and hides keys behind lengths") {
  Random random(6);
  const Tensor x = random_tensor(random, DDim{2, 3, 5}), w = random_tensor(random, DDim{5, 24}), bias = random_tensor(random, DDim{24});
  GraphBuilder fixed;
  fixed.input("x", {-1, 3, 5}).input("lengths", {-1}, onnx::TensorProto::INT32).initializer("w", w).initializer("b", bias).output("y");
  fixed.node("Attention", {"x", "w", "b", "lengths"}, {"y"})
      .domain("com.microsoft")
      .set("num_heads", 2)
      .set("mask_filter_value", -std::numeric_limits<float>::infinity());
  const Program program = parse(fixed);
  const auto with = [&](const Tensor& rows) {
    return testing::on_cpu(program, {{"x", rows}, {"lengths", Tensor::from(std::vector<std::int32_t>{2, 3}, DDim{2})}})["y"].tensor();
  };
  const Tensor whole = with(x);
  CHECK(whole.dims() == DDim{2, 3, 8});
  const Tensor more = Tensor::from(std::vector<std::int32_t>{2, 3, 0, 0}, DDim{4});  // as masks of ends and beginnings have them
  CHECK_THROWS_AS(testing::on_cpu(program, {{"x", x}, {"lengths", more}}), Error);
  // A batch of one does not take the lengths for another batch.
  CHECK_THROWS_AS(testing::on_cpu(program, {{"x", x.rows(0, 1)}, {"lengths", more}}), ShapeError);
  // Another third row of the first sequence, which is hidden, changes that row alone.
  std::vector<float> changed = x.to_vector<float>();
  for (std::size_t i = 10; i < 15; ++i) changed[i] += 1;
  const Tensor other = with(Tensor::from(changed, DDim{2, 3, 5}));
  CHECK(same_bits(other.rows(1, 2), whole.rows(1, 2)));
  CHECK(same_bits(other.slice(1, 0, 2).rows(0, 1).copy_to(CpuPlace{}), whole.slice(1, 0, 2).rows(0, 1).copy_to(CpuPlace{})));
  CHECK_FALSE(same_bits(other, whole));
}

TEST_CASE("Embeddings of ONNX Runtime's optimiser are the norm of sums of rows, with the lengths by the mask") {
  GraphBuilder graph;
  graph.input("ids", {-1, -1}, onnx::TensorProto::INT32).input("mask", {-1, -1}, onnx::TensorProto::INT32);
  graph.initializer("words", Tensor::from(std::vector<float>{1, 2, 4, 0}, DDim{2, 2}));
  graph.initializer("places", Tensor::from(std::vector<float>{0, 1, 2, 0, 5, 5}, DDim{3, 2}));
  graph.initializer("scale", ones({2})).initializer("shift", Tensor::from<float>({0, 10}));
  graph.output("y").output("lengths").output("sum");
  graph.node("EmbedLayerNormalization", {"ids", "", "words", "places", "", "scale", "shift", "mask"}, {"y", "lengths", "sum"})
      .domain("com.microsoft");
  const RunResult result = testing::on_cpu(parse(graph), {{"ids", Tensor::from(std::vector<std::int32_t>{0, 1, 1, 0}, DDim{2, 2})},
                                                          {"mask", Tensor::from(std::vector<std::int32_t>{1, 1, 1, 0}, DDim{2, 2})}});
  CHECK(result["sum"].tensor().to_vector<float>() == std::vector<float>{1, 3, 6, 0, 4, 1, 3, 2});
  CHECK(result["lengths"].tensor().to_vector<std::int32_t>() == std::vector<std::int32_t>{2, 1});
  const std::vector<float> y = result["y"].tensor().to_vector<float>(), expected{-1, 11, 1, 9, 1, 9, 1, 9};
  for (std::size_t i = 0; i < y.size(); ++i) CHECK(y[i] == doctest::Approx(expected[i]).epsilon(1e-4));
}

TEST_CASE("Hardmax of an empty axis is empty, and of some elements the first of the greatest") {
  const float least = -std::numeric_limits<float>::infinity();
  for (const int opset : {11, 13}) {
    GraphBuilder graph;
    graph.input("x", {2, -1}).output("y").node("Hardmax", {"x"}, {"y"}).set("axis", 1);
    const Program program = parse(graph, opset);
    CHECK(testing::on_cpu(program, {{"x", make_darray(DDim{2, 0}, 0.0f)}})["y"].tensor().dims() == DDim{2, 0});
    const Tensor x = Tensor::from(std::vector<float>{1, 3, 3, least, least, least}, DDim{2, 3});
    CHECK(testing::on_cpu(program, {{"x", x}})["y"].tensor().to_vector<float>() == std::vector<float>{0, 1, 0, 1, 0, 0});
  }
}

TEST_CASE("GlobalLpPool is the norm of all places, and AveragePool refuses integers") {
  GraphBuilder graph;
  graph.input("x", {-1, -1, -1}).output("three").output("two");
  graph.node("GlobalLpPool", {"x"}, {"three"}).set("p", 3);
  graph.node("GlobalLpPool", {"x"}, {"two"});
  const RunResult result = testing::on_cpu(parse(graph), {{"x", Tensor::from(std::vector<float>{3, -4, 0, 0, 5, -5}, DDim{1, 3, 2})}});
  CHECK(result["two"].tensor().dims() == DDim{1, 3, 1});
  const std::vector<float> three = result["three"].tensor().to_vector<float>(), two = result["two"].tensor().to_vector<float>();
  const std::vector<double> cubes{std::cbrt(91.0), 0, std::cbrt(250.0)}, squares{5, 0, std::sqrt(50.0)};
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(three[i] == doctest::Approx(cubes[i]).epsilon(1e-6));
    CHECK(two[i] == doctest::Approx(squares[i]).epsilon(1e-6));
  }
  GraphBuilder whole;
  whole.input("x", {1, 1, 4}, onnx::TensorProto::INT64).output("y").node("AveragePool", {"x"}, {"y"}).set("kernel_shape", Ints{2});
  CHECK_THROWS_WITH_AS(parse(whole), doctest::Contains("expected floats, found i64[1, 1, 4]"), ProgramError);
}

TEST_CASE("Norms and logarithms of sums of integers are cut off to integers, and a slope of integers is one") {
  GraphBuilder graph;
  graph.input("x", {-1, 2}, onnx::TensorProto::INT64).input("slope", {2}, onnx::TensorProto::INT64);
  graph.input("found", {1}, onnx::TensorProto::INT64).output("norms_found");
  graph.output("norms").output("logs").output("smooth").output("each").output("sloped").initializer("axis", list({1}));
  for (const auto& [op, name] : {std::pair{"ReduceL2", "norms"}, {"ReduceLogSum", "logs"}, {"ReduceLogSumExp", "smooth"}})
    graph.node(op, {"x", "axis"}, {name}).set("keepdims", 0);
  graph.node("ReduceL2", {"x"}, {"each"}).set("noop_with_empty_axes", 1);
  graph.node("ReduceL2", {"x", "found"}, {"norms_found"}).set("keepdims", 0);
  graph.node("PRelu", {"x", "slope"}, {"sloped"});
  const RunResult result = testing::on_cpu(parse(graph, 18), {{"x", Tensor::from(Ints{3, 4, 21, -1}, DDim{2, 2})},
                                                              {"found", Tensor::from(Ints{1}, DDim{1})},
                                                              {"slope", Tensor::from(Ints{5, 7}, DDim{2})}});
  CHECK(result["norms_found"].tensor().to_vector<std::int64_t>() == Ints{5, 21});
  CHECK(result["norms"].tensor().to_vector<std::int64_t>() == Ints{5, 21});
  CHECK(result["logs"].tensor().to_vector<std::int64_t>() == Ints{1, 2});
  CHECK(result["smooth"].tensor().to_vector<std::int64_t>() == Ints{4, 21});
  CHECK(result["each"].tensor().to_vector<std::int64_t>() == Ints{3, 4, 21, 1});
  CHECK(result["sloped"].tensor().to_vector<std::int64_t>() == Ints{3, 4, 21, -7});
}

TEST_CASE("Reductions of integers over no axis are exact where they are the identity or the size") {
  for (const bool in_run : {false, true}) {
    GraphBuilder graph;
    graph.input("x", {-1}, onnx::TensorProto::INT64).output("sizes").output("same").output("logs");
    if (in_run) graph.input("none", {0}, onnx::TensorProto::INT64);
    for (const auto& [op, name] : {std::pair{"ReduceL2", "sizes"}, {"ReduceLogSumExp", "same"}, {"ReduceLogSum", "logs"}})
      graph.node(op, {"x", in_run ? "none" : ""}, {name}).set("noop_with_empty_axes", 1);
    const std::int64_t odd = (std::int64_t{1} << 53) + 1;
    std::map<std::string, Value> feeds{{"x", Tensor::from(Ints{odd, -odd, 8}, DDim{3})}};
    if (in_run) feeds.emplace("none", Tensor::from(Ints{}, DDim{0}));
    const RunResult result = testing::on_cpu(parse(graph, 18), feeds);
    CHECK(result["sizes"].tensor().to_vector<std::int64_t>() == Ints{odd, odd, 8});
    CHECK(result["same"].tensor().to_vector<std::int64_t>() == Ints{odd, -odd, 8});
    CHECK(result["logs"].tensor().to_vector<std::int64_t>().back() == 2);
  }
}

TEST_CASE("Integers of 16 and 32 bits are multiplied, counted, scattered and compared with 0 as ONNX has them") {
  GraphBuilder graph;
  graph.input("a", {-1, 2}, onnx::TensorProto::UINT32).input("s", {-1}, onnx::TensorProto::INT16).input("n", {}, onnx::TensorProto::INT16);
  graph.input("i", {-1, 1}, onnx::TensorProto::INT64);
  graph.output("product").output("sign").output("above").output("places").output("counted").output("added").output("squares");
  graph.node("MatMul", {"a", "a"}, {"product"});
  graph.node("Sign", {"s"}, {"sign"});
  graph.node("Relu", {"s"}, {"above"});
  graph.node("NonZero", {"s"}, {"places"});
  graph.node("Sub", {"n", "n"}, {"zero"});
  graph.node("Div", {"n", "n"}, {"one"});
  graph.node("Range", {"zero", "n", "one"}, {"counted"});
  graph.node("ScatterND", {"s", "i", "s"}, {"added"}).set("reduction", "add");
  graph.node("ReduceSumSquare", {"a"}, {"squares"}).set("keepdims", 0);
  const RunResult result = testing::on_cpu(parse(graph, 18), {{"a", Tensor::from(Ints{65536, 1, 65535, 2}, DDim{2, 2})},
                                                              {"s", Tensor::from(std::vector<std::int32_t>{-32768, 0, 5}, DDim{3})},
                                                              {"n", Tensor::scalar(std::int32_t{3})},
                                                              {"i", Tensor::from(Ints{0, 1, 2}, DDim{3, 1})}});
  CHECK(result["product"].tensor().to_vector<std::int64_t>() == Ints{65535, 65538, 65536LL * 65535 + 2 * 65535 - (1LL << 32), 65539});
  CHECK(result["sign"].tensor().to_vector<std::int32_t>() == std::vector<std::int32_t>{-1, 0, 1});
  CHECK(result["above"].tensor().to_vector<std::int32_t>() == std::vector<std::int32_t>{0, 0, 5});
  CHECK(result["places"].tensor().to_vector<std::int64_t>() == Ints{0, 2});
  CHECK(result["counted"].tensor().to_vector<std::int32_t>() == std::vector<std::int32_t>{0, 1, 2});
  CHECK(result["added"].tensor().to_vector<std::int32_t>() == std::vector<std::int32_t>{0, 0, 10});
  CHECK(result["squares"].tensor().to_vector<std::int64_t>() == Ints{(65536LL * 65536 + 1 + 65535LL * 65535 + 4) % (1LL << 32)});
}

TEST_CASE("RotaryEmbedding turns heads whose size only the run knows as those of a known size") {
  Random random(6);
  const Tensor four = random_tensor(random, {2, 3, 4, 8}), three = random_tensor(random, {2, 4, 24});
  const auto compare = [&](bool apart, int pairs, int turned) {
    const Tensor& x = apart ? four : three;
    const std::int64_t half = (turned == 0 ? 8 : turned) / 2;
    const Tensor cosine = random_tensor(random, {2, 4, half}), sine = random_tensor(random, {2, 4, half});
    const auto run = [&](const Ints& declared) {
      GraphBuilder graph;
      graph.input("x", declared).initializer("cosine", cosine).initializer("sine", sine).output("y");
      auto node = graph.node("RotaryEmbedding", {"x", "cosine", "sine"}, {"y"});
      node.set("interleaved", pairs).set("num_heads", 3).set("rotary_embedding_dim", turned);
      return testing::on_cpu(parse(graph, 23), {{"x", x}})["y"].tensor().copy_to(CpuPlace{});
    };
    CHECK(same_bits(run(apart ? Ints{-1, -1, -1, -1} : Ints{-1, -1, -1}), run(apart ? Ints{2, 3, 4, 8} : Ints{2, 4, 24})));
  };
  for (const bool apart : {false, true})
    for (const int pairs : {0, 1})
      for (const int turned : {0, 4, 8}) compare(apart, pairs, turned);
  GraphBuilder odd;
  odd.input("x", {-1, -1, -1, -1}).initializer("cosine", ones({1, 1, 1})).initializer("sine", ones({1, 1, 1})).output("y");
  odd.node("RotaryEmbedding", {"x", "cosine", "sine"}, {"y"});
  CHECK_THROWS_AS(testing::on_cpu(parse(odd, 23), {{"x", ones({1, 1, 1, 3})}}), ShapeError);
}

TEST_CASE("RotaryEmbedding refuses heads that are odd, or of another size than their cosines and the attribute say") {
  const auto run = [](const Ints& x, const Ints& declared, const Ints& cosine, bool open_cosine, int pairs, int turned) {
    GraphBuilder graph;
    graph.input("x", declared).output("y");
    for (const char* name : {"cosine", "sine"}) {
      if (open_cosine)
        graph.input(name, {-1, -1, -1});
      else
        graph.initializer(name, ones(make_ddim(cosine)));
    }
    auto node = graph.node("RotaryEmbedding", {"x", "cosine", "sine"}, {"y"});
    node.set("interleaved", pairs).set("num_heads", 2).set("rotary_embedding_dim", turned);
    std::map<std::string, Value> feeds{{"x", ones(make_ddim(x))}};
    if (open_cosine) feeds = {{"x", ones(make_ddim(x))}, {"cosine", ones(make_ddim(cosine))}, {"sine", ones(make_ddim(cosine))}};
    return testing::on_cpu(parse(graph, 23), feeds)["y"].tensor().copy_to(CpuPlace{});
  };
  const Ints four{-1, -1, -1, -1}, three{-1, -1, -1};
  for (const bool open : {false, true}) {
    for (const int pairs : {0, 1}) {
      CHECK_THROWS_AS(run({1, 2, 5, 3}, four, {1, 5, 1}, open, pairs, 0), Error);
      CHECK_THROWS_AS(run({1, 2, 5, 3}, four, {1, 5, 2}, open, pairs, 0), Error);
      CHECK_THROWS_AS(run({1, 2, 5, 3}, four, {1, 5, 2}, open, pairs, 4), Error);
      CHECK_THROWS_AS(run({1, 3, 6}, three, {1, 3, 2}, open, pairs, 0), Error);
      CHECK_THROWS_AS(run({1, 2, 5, 2}, {-1, -1, -1, 2}, {1, 5, 2}, open, pairs, 0), Error);
      CHECK(run({1, 2, 5, 4}, four, {1, 5, 2}, open, pairs, 0).dims() == DDim{1, 2, 5, 4});
      CHECK(run({0, 2, 5, 4}, four, {1, 5, 2}, open, pairs, 0).dims() == DDim{0, 2, 5, 4});
      CHECK(run({1, 2, 5, 5}, four, {1, 5, 2}, open, pairs, 4).dims() == DDim{1, 2, 5, 5});
    }
  }
  CHECK_THROWS_WITH_AS(run({1, 2, 5, 4}, {1, 2, 5, 4}, {1, 5, 1}, false, 0, 0),
                       doctest::Contains("expected cosines and sines of 2 pairs, found f32[1, 5, 1, 1]"), ProgramError);
  CHECK_THROWS_WITH_AS(run({1, 2, 5, 4}, four, {1, 5, 1}, false, 0, -2),
                       doctest::Contains("expected an even number up to the size of a head, found -2"), ProgramError);
}

TEST_CASE("Col2Im sums windows that overlap along any number of axes, and MaxUnpool puts maxima back") {
  GraphBuilder one;
  one.input("x", {-1, -1, -1}).output("y").initializer("image", list({5})).initializer("block", list({3}));
  one.node("Col2Im", {"x", "image", "block"}, {"y"}).set("pads", Ints{1, 0}).set("strides", Ints{1}).set("dilations", Ints{2});
  // Windows begin at -1 and 0 and take every second place: columns are windows, rows are their elements.
  const Tensor x = Tensor::from(std::vector<float>{1, 2, 3, 4, 5, 6}, DDim{1, 3, 2});
  const Tensor y = testing::on_cpu(parse(one, 18), {{"x", x}})["y"].tensor().copy_to(CpuPlace{});
  CHECK(y.dims() == DDim{1, 1, 5});
  CHECK(y.to_vector<float>() == std::vector<float>{2, 3, 4, 5, 6});
  GraphBuilder two;
  two.input("x", {2, 4, 4}).output("y").initializer("image", list({3, 3})).initializer("block", list({2, 2}));
  two.node("Col2Im", {"x", "image", "block"}, {"y"});
  const Tensor counts = testing::on_cpu(parse(two, 18), {{"x", ones({2, 4, 4})}})["y"].tensor().copy_to(CpuPlace{});
  CHECK(counts.dims() == DDim{2, 1, 3, 3});
  CHECK(counts.rows(0, 1).to_vector<float>() == std::vector<float>{1, 2, 1, 2, 4, 2, 1, 2, 1});
  GraphBuilder odd;
  odd.input("x", {1, 3, 4}).output("y").initializer("image", list({3, 3})).initializer("block", list({2, 2}));
  odd.node("Col2Im", {"x", "image", "block"}, {"y"});
  CHECK_THROWS_WITH_AS(parse(odd, 18), doctest::Contains("expected an extent of axis 1 that 4 divides, found f32[1, 3, 4]"), ProgramError);

  for (const Ints& declared : {Ints{1, 1, 2, 2}, Ints{-1, -1, -1, -1}}) {
    GraphBuilder graph;
    graph.input("x", declared).input("places", declared, onnx::TensorProto::INT64).output("y").output("larger");
    graph.initializer("size", list({1, 1, 3, 5}));
    graph.node("MaxUnpool", {"x", "places"}, {"y"}).set("kernel_shape", Ints{1, 2}).set("strides", Ints{1, 2});
    graph.node("MaxUnpool", {"x", "places", "size"}, {"larger"}).set("kernel_shape", Ints{1, 2}).set("strides", Ints{1, 2});
    const RunResult result = testing::on_cpu(parse(graph), {{"x", Tensor::from(std::vector<float>{5, 6, 7, 8}, DDim{1, 1, 2, 2})},
                                                            {"places", Tensor::from(Ints{1, 2, 4, 7}, DDim{1, 1, 2, 2})}});
    CHECK(result["y"].tensor().dims() == DDim{1, 1, 2, 4});
    CHECK(result["y"].tensor().to_vector<float>() == std::vector<float>{0, 5, 6, 0, 7, 0, 0, 8});
    CHECK(result["larger"].tensor().to_vector<float>() == std::vector<float>{0, 5, 6, 0, 0, 7, 0, 0, 8, 0, 0, 0, 0, 0, 0});
  }
}

TEST_CASE("Col2Im refuses another number of places than windows, and blocks that are larger than the image") {
  const auto run = [](const Ints& x, bool open, std::int64_t image, std::int64_t block) {
    GraphBuilder graph;
    graph.input("x", open ? Ints{-1, -1, -1} : x).output("y").initializer("image", list({1, image})).initializer("block", list({1, block}));
    graph.node("Col2Im", {"x", "image", "block"}, {"y"});
    return testing::on_cpu(parse(graph, 18), {{"x", ones(make_ddim(x))}})["y"].tensor().dims();
  };
  CHECK(run({1, 3, 1}, true, 1, 1) == DDim{1, 3, 1, 1});
  CHECK(run({0, 3, 1}, true, 1, 1) == DDim{0, 3, 1, 1});
  CHECK_THROWS_AS(run({1, 3, 5}, true, 1, 1), ShapeError);
  CHECK_THROWS_AS(run({1, 5, 4}, true, 6, 2), ShapeError);  // as many elements as two channels of five windows
  CHECK_THROWS_AS(run({1, 5, 5}, true, 6, 2), ShapeError);
  CHECK_THROWS_WITH_AS(run({1, 3, 5}, false, 1, 1), doctest::Contains("expected [N, C, 1], a place for each window of the image"),
                       ProgramError);
  CHECK_THROWS_WITH_AS(run({1, 4, 1}, false, 3, 4),
                       doctest::Contains("expected an image that holds a block, of 4 places along axis 1 of it, found 3 with pads"),
                       ProgramError);
  CHECK_THROWS_WITH_AS(run({1, 4, 1}, false, 0, 4), doctest::Contains("expected extents of the image from 1 on, found 0"), ProgramError);
}

TEST_CASE("MaxUnpool of the places of a MaxPool in the graph puts maxima back where that found them, in the image of output_shape") {
  for (const bool known : {true, false}) {
    INFO("known ", known);
    GraphBuilder graph;
    graph.input("x", {1, 2, 5, 5}).output("y");
    if (known)
      graph.initializer("size", list({1, 2, 5, 5}));
    else
      graph.node("Shape", {"x"}, {"size"});
    graph.node("MaxPool", {"x"}, {"most", "places"}).set("kernel_shape", Ints{2, 2}).set("strides", Ints{2, 2});
    graph.node("MaxUnpool", {"most", "places", "size"}, {"y"}).set("kernel_shape", Ints{2, 2}).set("strides", Ints{2, 2});
    std::vector<float> x(50), expected(50, 0.0f);
    for (std::size_t i = 0; i < 50; ++i) x[i] = static_cast<float>((7 * i + 3) % 53 + 1);
    for (std::size_t plane = 0; plane < 50; plane += 25)
      for (std::size_t row = 0; row < 4; row += 2)
        for (std::size_t column = 0; column < 4; column += 2) {
          std::size_t at = plane + row * 5 + column;
          for (const std::size_t other : {at + 1, at + 5, at + 6}) at = x[other] > x[at] ? other : at;
          expected[at] = x[at];
        }
    const Tensor found = testing::on_cpu(parse(graph), {{"x", Tensor::from<float>(x, {1, 2, 5, 5})}})["y"].tensor().copy_to(CpuPlace{});
    CHECK(found.dims() == DDim{1, 2, 5, 5});
    CHECK(found.to_vector<float>() == expected);
  }
  GraphBuilder other;
  other.input("x", {1, 2, 5, 5}).output("y").initializer("size", list({2, 2, 5, 5}));
  other.node("MaxPool", {"x"}, {"most", "places"}).set("kernel_shape", Ints{2, 2}).set("strides", Ints{2, 2});
  other.node("MaxUnpool", {"most", "places", "size"}, {"y"}).set("kernel_shape", Ints{2, 2}).set("strides", Ints{2, 2});
  CHECK_THROWS_AS(testing::on_cpu(parse(other), {{"x", Tensor::from<float>(std::vector<float>(50), {1, 2, 5, 5})}}), Error);
}

TEST_CASE("MaxUnpool refuses places of other extents, an output of another batch or channels, and a smaller one") {
  // `open`: extents that only the run knows.
  const auto run = [](const Ints& places, const Ints& size, bool open, bool open_size) {
    GraphBuilder graph;
    const Ints four{-1, -1, -1, -1};
    const std::int64_t elements = std::accumulate(places.begin(), places.end(), std::int64_t{1}, std::multiplies<>());
    Ints counted(static_cast<std::size_t>(elements));
    std::iota(counted.begin(), counted.end(), 0);
    graph.input("x", open ? four : Ints{1, 2, 2, 2}).input("places", open ? four : places, onnx::TensorProto::INT64).output("y");
    if (open_size)
      graph.input("size", {4}, onnx::TensorProto::INT64);
    else
      graph.initializer("size", list(size));
    graph.node("MaxUnpool", {"x", "places", "size"}, {"y"}).set("kernel_shape", Ints{2, 2}).set("strides", Ints{2, 2});
    std::map<std::string, Value> feeds{{"x", ones({1, 2, 2, 2})}, {"places", Tensor::from(counted, make_ddim(places))}};
    if (open_size) feeds.emplace("size", list(size));
    return testing::on_cpu(parse(graph), feeds)["y"].tensor().dims();
  };
  const Ints same{1, 2, 2, 2}, all{1, 2, 4, 4};
  for (const bool open : {false, true}) {
    for (const bool open_size : {false, true}) {
      CHECK(run(same, {1, 2, 5, 4}, open, open_size) == DDim{1, 2, 5, 4});
      for (const Ints& size : {Ints{2, 2, 4, 4}, {2, 1, 4, 4}, {1, 1, 8, 4}, {1, 2, 3, 3}, {1, 2, 3, 6}, {1, 4, 4, 2}})
        CHECK_THROWS_AS(run(same, size, open, open_size), Error);
      for (const Ints& places : {Ints{1, 2, 1, 4}, {1, 1, 2, 4}, {1, 1, 2, 2}, {1, 2, 1, 2}})
        CHECK_THROWS_AS(run(places, all, open, open_size), Error);
    }
  }
  CHECK_THROWS_WITH_AS(run(same, {1, 2, 3, 4}, false, false), doctest::Contains("output_shape: expected at least 4 as extent 2, found 3"),
                       ProgramError);
  GraphBuilder pads;
  pads.input("x", {1, 1, 1}).input("places", {1, 1, 1}, onnx::TensorProto::INT64).output("y");
  pads.node("MaxUnpool", {"x", "places"}, {"y"}).set("kernel_shape", Ints{2}).set("strides", Ints{2}).set("pads", Ints{2, 2});
  CHECK_THROWS_WITH_AS(parse(pads), doctest::Contains("expected pads of at most 2 places along an axis, found 4"), ProgramError);
}

TEST_CASE("AffineGrid takes its number of axes from the size where theta does not say it") {
  Random random(5);
  const Tensor theta = random_tensor(random, {2, 2, 3});
  const auto made = [&](const Ints& declared) {
    GraphBuilder graph;
    graph.input("theta", declared).output("grid").initializer("size", list({2, 1, 3, 4}));
    graph.node("AffineGrid", {"theta", "size"}, {"grid"});
    return testing::on_cpu(parse(graph, 20), {{"theta", theta}})["grid"].tensor().copy_to(CpuPlace{});
  };
  CHECK(made({-1, -1, -1}).dims() == DDim{2, 3, 4, 2});
  CHECK(same_bits(made({-1, -1, -1}), made({2, 2, 3})));
}

TEST_CASE("ReduceMax and ReduceMin of no elements are the ends of the dtype, and of some what they were") {
  GraphBuilder graph;
  graph.input("x", {-1, 2}).input("i", {-1, 1}, onnx::TensorProto::INT64).initializer("axis", list({0}));
  graph.output("most").output("least").output("most_i").output("least_i");
  graph.node("ReduceMax", {"x", "axis"}, {"most"}).set("keepdims", 0);
  graph.node("ReduceMin", {"x", "axis"}, {"least"}).set("keepdims", 0);
  graph.node("ReduceMax", {"i", "axis"}, {"most_i"}).set("keepdims", 0);
  graph.node("ReduceMin", {"i", "axis"}, {"least_i"}).set("keepdims", 0);
  const Program program = parse(graph, 20);
  const RunResult none = testing::on_cpu(program, {{"x", Tensor(DType::f32, DDim{0, 2})}, {"i", Tensor(DType::i64, DDim{0, 1})}});
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(none["most"].tensor().to_vector<float>() == std::vector<float>{-infinity, -infinity});
  CHECK(none["least"].tensor().to_vector<float>() == std::vector<float>{infinity, infinity});
  CHECK(none["most_i"].tensor().to_vector<std::int64_t>() == Ints{std::numeric_limits<std::int64_t>::min()});
  CHECK(none["least_i"].tensor().to_vector<std::int64_t>() == Ints{std::numeric_limits<std::int64_t>::max()});
  const RunResult some = testing::on_cpu(
      program, {{"x", Tensor::from(std::vector<float>{1, 5, 3, 2}, DDim{2, 2})}, {"i", Tensor::from(Ints{4, -4}, DDim{2, 1})}});
  CHECK(some["most"].tensor().to_vector<float>() == std::vector<float>{3, 5});
  CHECK(some["least_i"].tensor().to_vector<std::int64_t>() == Ints{-4});
}

TEST_CASE("ReduceMean of no integers is 0, with axes that the file or the run says") {
  for (const bool known : {true, false}) {
    GraphBuilder graph;
    graph.input("x", {2, -1}, onnx::TensorProto::INT64).output("y");
    known ? graph.initializer("axis", list({1})) : graph.input("axis", {1}, onnx::TensorProto::INT64);
    graph.node("ReduceMean", {"x", "axis"}, {"y"});
    const Program program = parse(graph, 18);
    const auto mean = [&](const Tensor& x) {
      std::map<std::string, Value> feeds{{"x", x}};
      if (!known) feeds.emplace("axis", list({1}));
      return testing::on_cpu(program, feeds)["y"].tensor();
    };
    CHECK(mean(Tensor(DType::i64, DDim{2, 0})).to_vector<std::int64_t>() == Ints{0, 0});
    CHECK(mean(Tensor::from(Ints{1, 3, -4, -6}, DDim{2, 2})).to_vector<std::int64_t>() == Ints{2, -5});
  }
}

TEST_CASE("A mask of negative infinity stays one through bytes whose scale is infinite") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  GraphBuilder graph;
  graph.input("x", {-1}).initializer("scale", Tensor::scalar(infinity)).output("i8").output("u8").output("back");
  graph.initializer("zero_i8", Tensor::scalar<std::int8_t>(0)).initializer("zero_u8", Tensor::scalar<std::uint8_t>(3));
  graph.node("QuantizeLinear", {"x", "scale", "zero_i8"}, {"i8"});
  graph.node("QuantizeLinear", {"x", "scale", "zero_u8"}, {"u8"});
  graph.node("DequantizeLinear", {"i8", "scale", "zero_i8"}, {"back"});
  const RunResult run = testing::on_cpu(parse(graph), {{"x", Tensor::from<float>({-infinity, 0, -3, 2})}});
  CHECK(run["i8"].tensor().to_vector<std::int8_t>() == std::vector<std::int8_t>{-128, 0, 0, 0});
  CHECK(run["u8"].tensor().to_vector<std::uint8_t>() == std::vector<std::uint8_t>{0, 3, 3, 3});
  CHECK(run["back"].tensor().to_vector<float>()[0] == -infinity);
}

TEST_CASE("A normal distribution of a scale below 0 is refused") {
  for (const float scale : {-1.0f, std::numeric_limits<float>::quiet_NaN()}) {
    GraphBuilder graph;
    graph.output("y");
    graph.node("RandomNormal", {}, {"y"}).set("shape", Ints{2}).set("scale", scale);
    CHECK_THROWS_AS(parse(graph), ProgramError);
  }
}

/// The numbers of an equation, over all letters at once in f64. Extents by letter.
std::vector<double> summed(const std::vector<std::string>& terms, const std::string& output, const std::vector<Tensor>& inputs,
                           const std::function<std::int64_t(char)>& extent) {
  std::string letters = output;
  for (const std::string& term : terms)
    for (const char letter : term)
      if (letters.find(letter) == std::string::npos) letters += letter;
  std::int64_t all = 1, kept = 1;
  for (const char letter : letters) all *= extent(letter);
  for (const char letter : output) kept *= extent(letter);
  std::vector<double> sums(static_cast<std::size_t>(kept), 0);
  for (std::int64_t i = 0; i < all; ++i) {
    std::vector<std::int64_t> at(128, 0);
    std::int64_t rest = i;
    for (const char letter : letters) {
      at[static_cast<std::size_t>(letter)] = rest % extent(letter);
      rest /= extent(letter);
    }
    const auto place = [&](const std::string& term) {
      std::int64_t offset = 0;
      for (const char letter : term) offset = offset * extent(letter) + at[static_cast<std::size_t>(letter)];
      return offset;
    };
    double product = 1;
    for (std::size_t k = 0; k < terms.size(); ++k) product *= double{inputs[k].data<float>()[place(terms[k])]};
    sums[static_cast<std::size_t>(place(output))] += product;
  }
  return sums;
}

TEST_CASE("Einsum of any number of operands gives what its equation sums, in the order of the fewest products") {
  const auto extent = [](char letter) { return std::int64_t{letter == 'b' ? 7 : letter == 'z' ? 1 : 2 + letter % 3}; };
  const std::pair<std::vector<std::string>, std::string> equations[] = {
      {{"bi", "bj", "bk", "ijk"}, "b"},
      {{"bi", "bj", "ijk"}, "bk"},
      {{"i", "j", "k"}, "kij"},
      {{"bi", "bi"}, "bi"},
      {{"bi", "i"}, "ib"},
      {{"ij", "jk", "kl", "lm"}, "im"},
      {{"bz", "zi", "bij"}, "bj"},
      {{"ij", "kl"}, ""},
      {{"b", "bi", "i", "bij", "j"}, "b"},
      {{"i", "i", "i", "i", "i", "i", "i", "i", "ij"}, "j"},
  };
  for (const auto& [terms, output] : equations)
    for (const bool open : {false, true}) {
      Random random(5);
      GraphBuilder graph;
      Feeds feeds;
      std::vector<Tensor> inputs;
      std::vector<std::string> names;
      std::string equation;
      for (const std::string& term : terms) {
        Ints dims, declared;
        for (const char letter : term) dims.push_back(extent(letter));
        for (const char letter : term) declared.push_back(open && letter == 'b' ? -1 : extent(letter));
        names.push_back("x" + std::to_string(names.size()));
        inputs.push_back(random_tensor(random, DDim(dims)));
        graph.input(names.back(), declared);
        feeds.emplace(names.back(), inputs.back());
        equation += (equation.empty() ? "" : ",") + term;
      }
      equation += "->" + output;
      INFO(equation);
      graph.output("y").node("Einsum", names, {"y"}).set("equation", equation.c_str());
      const Program program = parse(graph);
      const Tensor found = testing::on_cpu(program, feeds)["y"].tensor().copy_to(CpuPlace{});
      const std::vector<double> wanted = summed(terms, output, inputs, extent);
      REQUIRE(found.elements() == std::ssize(wanted));
      for (std::int64_t i = 0; i < found.elements(); ++i)
        CHECK(double{found.data<float>()[i]} == doctest::Approx(wanted[static_cast<std::size_t>(i)]).epsilon(1e-4));
      if (terms.size() == 4 && output == "b")
        for (const Op& op : program.block(0).ops) CHECK(program.var(op.outputs[0]).type.rank() < 4);
    }
}

}  // namespace
}  // namespace millrace
