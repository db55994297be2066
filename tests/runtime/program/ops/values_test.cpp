// SPDX-License-Identifier: Apache-2.0
// Small known answers: that each op calls the arithmetic it is named for, with the attributes it was given. (The
// arithmetic itself is tested in tests/kernels.)
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "support/straight_line.h"

using namespace millrace;
using namespace millrace::testing;

namespace {

using Ints = std::vector<std::int64_t>;
using Floats = std::vector<float>;

Tensor f32(const Floats& values, const DDim& dims) { return Tensor::from(values, dims); }
Tensor f32(const Floats& values) { return Tensor::from(values, DDim{static_cast<std::int64_t>(values.size())}); }
Tensor i64(const Ints& values) { return Tensor::from(values, DDim{static_cast<std::int64_t>(values.size())}); }

Floats floats(const std::string& type, const std::vector<Tensor>& inputs, const Attributes& attributes = {}) {
  return run_op(type, inputs, attributes).at(0).to_vector<float>();
}
Ints ints(const std::string& type, const std::vector<Tensor>& inputs, const Attributes& attributes = {}) {
  return run_op(type, inputs, attributes).at(0).to_vector<std::int64_t>();
}
std::vector<bool> bools(const std::string& type, const std::vector<Tensor>& inputs) { return run_op(type, inputs).at(0).to_vector<bool>(); }
bool close(const Floats& found, const Floats& wanted) {
  if (found.size() != wanted.size()) return false;
  for (std::size_t i = 0; i < found.size(); ++i)
    if (!(std::abs(found[i] - wanted[i]) <= 1e-5f * std::max(1.0f, std::abs(wanted[i])))) return false;
  return true;
}

}  // namespace

TEST_CASE("binary ops compute what their names say") {
  const Tensor a = f32({1, 2, 3});
  const Tensor b = f32({3, 2, 1});
  CHECK(floats("add", {a, b}) == Floats{4, 4, 4});
  CHECK(floats("sub", {a, b}) == Floats{-2, 0, 2});
  CHECK(floats("mul", {a, b}) == Floats{3, 4, 3});
  CHECK(floats("div", {a, b}) == Floats{1.0f / 3, 1, 3});
  CHECK(floats("pow", {a, b}) == Floats{1, 4, 3});
  CHECK(floats("minimum", {a, b}) == Floats{1, 2, 1});
  CHECK(floats("maximum", {a, b}) == Floats{3, 2, 3});
  CHECK(bools("equal", {a, b}) == std::vector<bool>{false, true, false});
  CHECK(bools("not_equal", {a, b}) == std::vector<bool>{true, false, true});
  CHECK(bools("less", {a, b}) == std::vector<bool>{true, false, false});
  CHECK(bools("less_equal", {a, b}) == std::vector<bool>{true, true, false});
  CHECK(bools("greater", {a, b}) == std::vector<bool>{false, false, true});
  CHECK(bools("greater_equal", {a, b}) == std::vector<bool>{false, true, true});
  CHECK(ints("mod", {i64({-7}), i64({3})}) == Ints{2});
  CHECK(ints("mod", {i64({-7}), i64({3})}, {{"fmod", true}}) == Ints{-1});
  const Tensor t = Tensor::from({true, true, false});
  const Tensor u = Tensor::from({true, false, false});
  CHECK(bools("logical_and", {t, u}) == std::vector<bool>{true, false, false});
  CHECK(bools("logical_or", {t, u}) == std::vector<bool>{true, true, false});
  CHECK(bools("logical_xor", {t, u}) == std::vector<bool>{false, true, false});
  CHECK(bools("logical_not", {t}) == std::vector<bool>{false, false, true});
  CHECK(floats("where", {u, a, b}) == Floats{1, 2, 1});
}

TEST_CASE("clip takes either bound, both or none") {
  const Tensor x = f32({-2, 0, 2});
  CHECK(floats("clip", {x, Tensor::scalar(-1.0f), Tensor::scalar(1.0f)}) == Floats{-1, 0, 1});
  CHECK(floats("clip", {x, f32({-1})}) == Floats{-1, 0, 2});
  CHECK(floats("clip", {x}) == Floats{-2, 0, 2});
}

TEST_CASE("unary ops compute what their names say") {
  const Tensor x = f32({-1.5f, 0.25f});
  CHECK(floats("neg", {x}) == Floats{1.5f, -0.25f});
  CHECK(floats("abs", {x}) == Floats{1.5f, 0.25f});
  CHECK(floats("sign", {x}) == Floats{-1, 1});
  CHECK(floats("floor", {x}) == Floats{-2, 0});
  CHECK(floats("ceil", {x}) == Floats{-1, 1});
  CHECK(floats("round", {f32({0.5f, 1.5f, -2.5f})}) == Floats{0, 2, -2});
  CHECK(floats("sqrt", {f32({4, 9})}) == Floats{2, 3});
  CHECK(floats("reciprocal", {f32({4, -2})}) == Floats{0.25f, -0.5f});
  CHECK(close(floats("exp", {x}), {std::exp(-1.5f), std::exp(0.25f)}));
  CHECK(close(floats("log", {f32({1, 2})}), {0, std::log(2.0f)}));
  CHECK(close(floats("sin", {x}), {std::sin(-1.5f), std::sin(0.25f)}));
  CHECK(close(floats("cos", {x}), {std::cos(-1.5f), std::cos(0.25f)}));
  CHECK(close(floats("atan", {x}), {std::atan(-1.5f), std::atan(0.25f)}));
  CHECK(close(floats("erf", {x}), {std::erf(-1.5f), std::erf(0.25f)}));
  CHECK(bools("is_nan", {f32({NAN, 1})}) == std::vector<bool>{true, false});
  CHECK(bools("is_inf", {f32({-INFINITY, 1})}) == std::vector<bool>{true, false});
}

TEST_CASE("activations take their numbers from attributes, else those of ONNX") {
  const Tensor x = f32({-1, 2});
  CHECK(close(floats("sigmoid", {x}), {1 / (1 + std::exp(1.0f)), 1 / (1 + std::exp(-2.0f))}));
  CHECK(close(floats("tanh", {x}), {std::tanh(-1.0f), std::tanh(2.0f)}));
  CHECK(floats("relu", {x}) == Floats{0, 2});
  CHECK(close(floats("leaky_relu", {x}), {-0.01f, 2}));
  CHECK(close(floats("leaky_relu", {x}, {{"alpha", 0.5}}), {-0.5f, 2}));
  CHECK(close(floats("elu", {x}, {{"alpha", 2.0}}), {2 * (std::exp(-1.0f) - 1), 2}));
  CHECK(close(floats("celu", {x}, {{"alpha", 2.0}}), {2 * (std::exp(-0.5f) - 1), 2}));
  CHECK(close(floats("selu", {x}, {{"alpha", 2.0}, {"gamma", 3.0}}), {6 * (std::exp(-1.0f) - 1), 6}));
  CHECK(close(floats("hard_sigmoid", {x}), {0.3f, 0.9f}));
  CHECK(close(floats("hard_sigmoid", {x}, {{"alpha", 0.25}, {"beta", 0.25}}), {0, 0.75f}));
  CHECK(close(floats("hard_swish", {x}), {-1.0f / 3, 2 * (1.0f / 3 + 0.5f)}));
  CHECK(close(floats("softplus", {x}), {std::log1p(std::exp(-1.0f)), std::log1p(std::exp(2.0f))}));
  CHECK(close(floats("softsign", {x}), {-0.5f, 2.0f / 3}));
  CHECK(close(floats("mish", {x}), {-std::tanh(std::log1p(std::exp(-1.0f))), 2 * std::tanh(std::log1p(std::exp(2.0f)))}));
  CHECK(floats("thresholded_relu", {f32({0.5f, 2})}) == Floats{0, 2});
  CHECK(floats("thresholded_relu", {f32({0.5f, 2})}, {{"alpha", 3.0}}) == Floats{0, 0});
  CHECK(close(floats("affine", {x}, {{"alpha", 2.0}, {"beta", 0.5}}), {-1.5f, 4.5f}));
  CHECK(close(floats("scaled_tanh", {x}, {{"alpha", 2.0}, {"beta", 0.5}}), {2 * std::tanh(-0.5f), 2 * std::tanh(1.0f)}));
  CHECK(close(floats("gelu", {x}), {-0.5f * (1 + std::erf(-std::sqrt(0.5f))), 1 + std::erf(std::sqrt(2.0f))}));
  CHECK(floats("gelu", {x}) != floats("gelu", {x}, {{"approximate", std::string("tanh")}}));
  CHECK(floats("prelu", {x, f32({0.5f})}) == Floats{-0.5f, 2});
  CHECK(floats("sigmoid_gradient", {x, f32({0.5f, 0.25f})}) == Floats{-0.25f, 0.375f});
  CHECK(floats("tanh_gradient", {x, f32({0.5f, -1})}) == Floats{-0.75f, 0});
}

TEST_CASE("constants, casts, ranges and one-hots") {
  CHECK(floats("constant", {}, {{"value", f32({1, 2})}}) == Floats{1, 2});
  CHECK(ints("cast", {f32({1.75f, -1.75f})}, {{"to", DType::i64}}) == Ints{1, -1});
  CHECK(ints("constant_of_shape", {i64({2, 2})}, {{"value", i64({7})}}) == Ints{7, 7, 7, 7});
  CHECK(floats("constant_of_shape", {i64({2})}) == Floats{0, 0});
  CHECK(ints("range", {Tensor::scalar(std::int64_t{5}), Tensor::scalar(std::int64_t{0}), Tensor::scalar(std::int64_t{-2})}) ==
        Ints{5, 3, 1});
  CHECK(floats("one_hot", {i64({1, -1}), Tensor::scalar(std::int64_t{3}), f32({-1, 1})}) == Floats{-1, 1, -1, -1, -1, 1});
}

TEST_CASE("products with weights that never change are those with weights that are fed") {
  const Tensor x = f32({1, 2, 3, 4}, {2, 2});
  const Tensor w = f32({1, 0, -1, 2, 1, 0}, {2, 3});
  const Tensor bias = f32({1, 1, 1});
  const Attributes factors{{"alpha", 0.5}, {"beta", 2.0}};
  CHECK(floats("matmul", {x, w}) == Floats{5, 2, -1, 11, 4, -3});
  CHECK(floats("gemm", {x, w, bias}, factors) == Floats{4.5f, 3, 1.5f, 7.5f, 4, 0.5f});
  CHECK(floats("gemm", {x, w}, {{"trans_a", true}}) == Floats{7, 3, -1, 10, 4, -2});
  CHECK(floats("gemm", {x, f32({1, 2, 0, 1, -1, 0}, {3, 2}), bias}, {{"trans_b", true}}) == Floats{6, 3, 0, 12, 5, -2});
  for (const Attributes& attributes : {Attributes{}, factors}) {
    Program program;
    const VarId in = program.add_input("x", VarType(DType::f32, {DDim::unknown, 2}));
    Op op{"gemm", {in, program.add_parameter("w", w), program.add_parameter("b", bias)}, {}, attributes, {}};
    program.add_output("y", program.append(0, std::move(op))[0]);
    CHECK(same_bits(StraightLine(std::move(program))({x})[0], run_op("gemm", {x, w, bias}, attributes)[0]));
  }
}

TEST_CASE("reductions, sums and norms") {
  const Tensor x = f32({1, 2, 3, 4}, {2, 2});
  const auto reduced = [&](const char* kind) { return floats("reduce", {x}, {{"kind", std::string(kind)}, {"axes", Ints{1}}}); };
  CHECK(reduced("sum") == Floats{3, 7});
  CHECK(reduced("mean") == Floats{1.5f, 3.5f});
  CHECK(reduced("max") == Floats{2, 4});
  CHECK(reduced("min") == Floats{1, 3});
  CHECK(reduced("prod") == Floats{2, 12});
  CHECK(reduced("l1") == Floats{3, 7});
  CHECK(reduced("l2") == Floats{std::sqrt(5.0f), 5});
  CHECK(reduced("sum_square") == Floats{5, 25});
  CHECK(close(reduced("log_sum"), {std::log(3.0f), std::log(7.0f)}));
  CHECK(close(reduced("log_sum_exp"), {2 + std::log1p(std::exp(-1.0f)), 4 + std::log1p(std::exp(-1.0f))}));
  CHECK(ints("argmax", {f32({1, 3, 3})}) == Ints{1});
  CHECK(ints("argmax", {f32({1, 3, 3})}, {{"select_last", true}}) == Ints{2});
  CHECK(ints("argmin", {f32({1, 3, 3})}) == Ints{0});
  CHECK(close(floats("softmax", {f32({0, 0})}), {0.5f, 0.5f}));
  CHECK(close(floats("log_softmax", {f32({0, 0})}), {-std::log(2.0f), -std::log(2.0f)}));
  CHECK(close(floats("layer_norm", {f32({1, 3}, {1, 2}), f32({2, 2}), f32({1, 1})}, {{"epsilon", 0.0}}), {-1, 3}));
  CHECK(floats("cumsum", {f32({1, 2, 3})}, {{"axis", std::int64_t{0}}, {"exclusive", true}, {"reverse", true}}) == Floats{5, 3, 0});
}

TEST_CASE("shapes") {
  const Tensor x = f32({1, 2, 3, 4, 5, 6}, {2, 3});
  CHECK(ints("shape", {x}) == Ints{2, 3});
  CHECK(ints("shape", {x}, {{"start", std::int64_t{-1}}}) == Ints{3});
  CHECK(ints("size", {x}) == Ints{6});
  CHECK(floats("transpose", {x}) == Floats{1, 4, 2, 5, 3, 6});
  CHECK(floats("transpose_by", {x, i64({1, 0})}) == Floats{1, 4, 2, 5, 3, 6});
  CHECK(run_op("reshape", {x}, {{"shape", Ints{3, -1}}})[0].dims() == DDim{3, 2});
  CHECK(run_op("reshape_to", {x, i64({0, 1, -1})})[0].dims() == DDim{2, 1, 3});
  CHECK(run_op("squeeze", {f32({1, 2}, {1, 2, 1})})[0].dims() == DDim{2});
  CHECK(run_op("unsqueeze", {x}, {{"axes", Ints{0, -1}}})[0].dims() == DDim{1, 2, 3, 1});
  CHECK(run_op("flatten", {x}, {{"axis", std::int64_t{0}}})[0].dims() == DDim{1, 6});
  CHECK(floats("concat", {x, x}, {{"axis", std::int64_t{1}}}) == Floats{1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6});
  const std::vector<Tensor> parts = run_op("split", {x}, {{"axis", std::int64_t{1}}, {"sizes", Ints{1, 2}}});
  CHECK(parts[0].to_vector<float>() == Floats{1, 4});
  CHECK(parts[1].to_vector<float>() == Floats{2, 3, 5, 6});
  CHECK(floats("slice", {x}, {{"starts", Ints{-1}}, {"ends", Ints{-9}}, {"axes", Ints{1}}, {"steps", Ints{-2}}}) == Floats{3, 1, 6, 4});
  CHECK(floats("slice_by", {x, i64({1}), i64({9})}) == Floats{4, 5, 6});
  CHECK(floats("reverse", {x}, {{"axis", std::int64_t{1}}}) == Floats{3, 2, 1, 6, 5, 4});
  CHECK(floats("pad", {f32({1, 2, 3})}, {{"pads", Ints{1, 2}}, {"value", 9.0}}) == Floats{9, 1, 2, 3, 9, 9});
  CHECK(floats("pad", {f32({1, 2, 3})}, {{"pads", Ints{1, 2}}, {"mode", std::string("reflect")}}) == Floats{2, 1, 2, 3, 2, 1});
  CHECK(floats("pad_by", {f32({1, 2}), i64({1, 0}), Tensor::scalar(5.0f)}) == Floats{5, 1, 2});
  CHECK(floats("expand", {f32({1, 2}, {2, 1}), i64({1, 2})}) == Floats{1, 1, 2, 2});
  CHECK(floats("tile", {f32({1, 2}), i64({2})}) == Floats{1, 2, 1, 2});
  CHECK(floats("gather", {x, i64({-1, 0})}, {{"axis", std::int64_t{1}}}) == Floats{3, 1, 6, 4});
  CHECK(floats("embedding", {x, i64({1})}) == Floats{4, 5, 6});
  CHECK(floats("gather_elements", {x, Tensor::from(Ints{2, 0}, DDim{2, 1})}, {{"axis", std::int64_t{1}}}) == Floats{3, 4});
}

TEST_CASE("what picks by place or value takes its attributes") {
  const Tensor x = f32({1, 5, 0, 3, 0, 2}, {2, 3});
  const std::vector<Tensor> best = run_op("top_k", {x, Tensor::scalar(std::int64_t{2})}, {{"axis", std::int64_t{1}}, {"largest", false}});
  CHECK(best[0].to_vector<float>() == Floats{0, 1, 0, 2});
  CHECK(best[1].to_vector<std::int64_t>() == Ints{2, 0, 1, 2});
  CHECK(ints("non_zero", {x}) == Ints{0, 0, 1, 1, 0, 1, 0, 2});
  CHECK(run_op("non_zero", {f32({0, 0})})[0].dims() == DDim{1, 0});
  const Tensor index = Tensor::from(Ints{1, 0}, DDim{2, 1});
  CHECK(floats("gather_nd", {x, index}) == Floats{3, 0, 2, 1, 5, 0});
  CHECK(floats("gather_nd", {x, index}, {{"batch_dims", std::int64_t{1}}}) == Floats{5, 3});
  CHECK(floats("scatter_nd", {x, Tensor::from(Ints{1}, DDim{1, 1}), f32({7, 8, 9}, {1, 3})}) == Floats{1, 5, 0, 7, 8, 9});
  CHECK(floats("scatter_elements", {x, index, f32({7, 8}, {2, 1})}, {{"axis", std::int64_t{1}}, {"reduction", std::string("add")}}) ==
        Floats{1, 12, 0, 11, 0, 2});
}

TEST_CASE("a convolution and a cell take their attributes") {
  const Tensor x = f32({1, 2, 3, 4}, {1, 1, 4});
  CHECK(floats("conv1d", {x, f32({1, 10}, {1, 1, 2}), f32({100})}, {{"pads", Ints{1, 0}}}) == Floats{110, 121, 132, 143});
  CHECK(floats("conv1d", {x, f32({1, 10}, {1, 1, 2})}, {{"dilation", std::int64_t{2}}}) == Floats{31, 42});
  CHECK(floats("conv1d", {x, f32({1, 10}, {1, 1, 2})}, {{"stride", std::int64_t{2}}}) == Floats{21, 43});
  const Tensor zero = f32({0}, {1, 1});
  const Tensor w = f32({0, 0, 1, 0}, {1, 4});
  const std::vector<Tensor> plain = run_op("lstm_cell", {f32({1}, {1, 1}), zero, f32({2}, {1, 1}), w, w});
  CHECK(close(plain[1].to_vector<float>(), {0.5f * 2 + 0.5f * std::tanh(1.0f)}));
  CHECK(close(plain[0].to_vector<float>(), {0.5f * std::tanh(1 + 0.5f * std::tanh(1.0f))}));
  const Attributes other{{"activations", std::vector<std::string>{"sigmoid", "affine", "relu"}},
                         {"alphas", std::vector<double>{0, 3, 0}},
                         {"betas", std::vector<double>{0, 1, 0}},
                         {"clip", 0.5}};
  const std::vector<Tensor> clipped = run_op("lstm_cell", {f32({1}, {1, 1}), zero, f32({2}, {1, 1}), w, w}, other);
  CHECK(close(clipped[1].to_vector<float>(), {0.5f * 2 + 0.5f * 2.5f}));
  CHECK(close(clipped[0].to_vector<float>(), {0.5f * 2.25f}));
}

TEST_CASE("empty axes run") {
  CHECK(run_op("add", {f32({}, {0, 3}), f32({1, 2, 3})})[0].dims() == DDim{0, 3});
  CHECK(run_op("matmul", {f32({}, {0, 2}), f32({1, 2}, {2, 1})})[0].dims() == DDim{0, 1});
  CHECK(run_op("reshape", {f32({}, {0, 6})}, {{"shape", Ints{0, 2, -1}}})[0].dims() == DDim{0, 2, 3});
  CHECK(run_op("reshape", {f32({}, {0, 0, 3})}, {{"shape", Ints{0, 3}}})[0].dims() == DDim{0, 3});
  CHECK(run_op("concat", {f32({}, {0, 2}), f32({1, 2}, {1, 2})}, {{"axis", std::int64_t{0}}})[0].dims() == DDim{1, 2});
}

TEST_CASE("integers that f64 cannot hold keep all their bits") {
  const std::int64_t big = (std::int64_t{1} << 62) + 1;
  const auto one = [](std::int64_t value) { return Tensor::scalar(value); };
  CHECK(ints("range", {one(big), one(big + 7), one(3)}) == Ints{big, big + 3, big + 6});
  CHECK(ints("range", {one(-big), one(-big - 5), one(-2)}) == Ints{-big, -big - 2, -big - 4});
  CHECK(ints("range", {one(big), one(big), one(1)}).empty());
  const std::int64_t least = std::numeric_limits<std::int64_t>::min();
  const std::int64_t greatest = std::numeric_limits<std::int64_t>::max();
  CHECK(ints("range", {one(least), one(greatest), one(greatest)}) == Ints{least, -1, greatest - 1});
  CHECK_THROWS_AS(ints("range", {one(0), one(5), one(0)}), ArgumentError);
  CHECK(ints("one_hot", {i64({1, 0}), one(2), i64({-big, big})}) == Ints{-big, big, big, -big});
  CHECK(ints("constant_of_shape", {i64({2})}, {{"value", i64({big})}}) == Ints{big, big});
  CHECK(ints("constant_of_shape", {i64({1})}, {{"value", i64({least})}}) == Ints{least});
  CHECK(ints("pad_by", {i64({5}), i64({1, 2}), one(big)}, {{"mode", std::string("constant")}}) == Ints{big, 5, big, big});
}
