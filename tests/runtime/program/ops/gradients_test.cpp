// SPDX-License-Identifier: Apache-2.0
// The gradient rule of each op, by append_backward, against central differences in f64.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string>

#include <millrace/kernels/cast.h>
#include <millrace/kernels/elementwise.h>
#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/op_registry.h>
#include <millrace/runtime/program/ops/internal/gradients.h>
#include <millrace/tensor/bfloat16.h>
#include <millrace/tensor/device.h>

#include "support/central_difference.h"
#include "support/random_lod.h"
#include "support/straight_gradient.h"

using namespace millrace;
using namespace millrace::testing;

namespace {

using Ints = std::vector<std::int64_t>;

/// An input of an op: fed, or (`fixed`) a weight.
struct In {
  LoDTensor value;
  bool fixed = false;
  bool absent = false;
};

struct Case {
  std::string type;
  std::vector<In> inputs;
  Attributes attributes;
};

/// Case by case, with all extents known and with none.
class Checks {
 public:
  explicit Checks(std::uint64_t seed) : random(seed) {}
  Random random;

  Tensor reals(const DDim& dims, double scale = 2) { return random_tensor(random, dims, scale, DType::f64); }
  In x(const DDim& dims, double scale = 2) { return {reals(dims, scale)}; }
  In positive(const DDim& dims) {
    Tensor made = reals(dims, 1);
    for (std::int64_t i = 0; i < made.elements(); ++i) made.mutable_data<double>()[i] += 1.5;
    return {made};
  }
  In bools(const DDim& dims) {
    Tensor made(DType::boolean, dims);
    for (std::int64_t i = 0; i < made.elements(); ++i) made.mutable_data<bool>()[i] = random.coin();
    if (made.elements() == 0) made.storage()->mark_written();
    return {made};
  }
  In index(const DDim& dims, std::int64_t least, std::int64_t most) {
    Tensor made(DType::i64, dims);
    for (std::int64_t i = 0; i < made.elements(); ++i) made.mutable_data<std::int64_t>()[i] = random.between(least, most);
    if (made.elements() == 0) made.storage()->mark_written();
    return {made};
  }
  In weight(const DDim& dims) { return {reals(dims), true}; }
  static In list(const Ints& values) { return {Tensor::from(values, DDim{static_cast<std::int64_t>(values.size())}), true}; }
  static In fed_list(const Ints& values) { return {Tensor::from(values, DDim{static_cast<std::int64_t>(values.size())})}; }
  static In none() { return {LoDTensor(), false, true}; }
  /// Rows of sequences.
  In rows(const LoD& lod, const DDim& of_row, double scale = 2) { return {LoDTensor(reals(of_row.inserted(0, lod.rows()), scale), lod)}; }

  void operator()(const std::string& type, const std::vector<In>& inputs, const Attributes& attributes = {}) {
    for (const bool known : {true, false}) check({type, inputs, attributes}, known);
  }
  /// With extents that are known alone: the op, or its gradient, asks for them.
  void known(const std::string& type, const std::vector<In>& inputs, const Attributes& attributes = {}) {
    check({type, inputs, attributes}, true);
  }

 private:
  void check(const Case& of, bool known) {
    Program program;
    Feeds feeds;
    Op op{of.type, {}, {}, of.attributes, {}};
    std::vector<std::string> names;
    std::string text = of.type;
    for (const In& input : of.inputs) {
      const std::string name = "x" + std::to_string(op.inputs.size());
      if (input.absent) {
        op.inputs.push_back(no_var);
        continue;
      }
      const Tensor& value = input.value.tensor();
      text += " " + value.to_string() + input.value.lod().to_string();
      if (is_floating(value.dtype())) names.push_back(name);
      if (input.fixed) {
        op.inputs.push_back(program.add_parameter(name, value));
        continue;
      }
      DDim declared = value.dims();
      for (int axis = 0; axis < declared.rank() && !known; ++axis) declared[axis] = DDim::unknown;
      if (known && input.value.lod().depth() > 0) declared[0] = DDim::unknown;
      op.inputs.push_back(program.add_input(name, VarType(value.dtype(), declared, input.value.lod().depth())));
      feeds.emplace(name, Value(input.value));
    }
    INFO(text, known ? " of known extents" : " of unknown extents");
    std::size_t count = 0;
    for (const VarId output : program.append(0, std::move(op))) program.add_output("y" + std::to_string(count++), output);
    try {
      DifferenceOptions options;
      options.seed = random.next();
      options.at_most = 8;  // of each tensor, others for each seed
      expect_gradients(with_gradients(program), with_seeds(program, feeds, random), names, options);
    } catch (const std::exception& error) {
      FAIL_CHECK(std::string(error.what()));
    }
  }
};

}  // namespace

TEST_CASE("the gradients of ops on two operands are summed to the extents of each") {
  for (const std::uint64_t seed : seeds(3)) {
    INFO("seed ", seed);
    Checks check(seed);
    for (const char* op : {"add", "sub", "mul", "minimum", "maximum"}) {
      check(op, {check.x({3, 4}), check.x({3, 4})});
      check(op, {check.x({3, 4}), check.weight({4})});
      check(op, {check.x({2, 3, 4}), check.x({3, 1})});
      check(op, {check.x({}), check.x({3, 2})});
      check(op, {check.x({1, 3}), check.x({4, 1})});
      check(op, {check.x({0, 3}), check.x({3})});
      check(op, {check.x({1, 3}), check.x({0, 3})});
    }
    check("div", {check.x({3, 4}), check.positive({4})});
    check("div", {check.x({4}), check.positive({2, 1})});
    check("pow", {check.positive({3, 4}), check.x({4})});
    check("pow", {check.positive({3, 4}), {Tensor::scalar(2.0), true}});
    check("pow", {check.positive({3}), {Tensor::scalar(-1.5), true}});
    check("mod", {check.x({3, 4}, 5), check.positive({4})});
    check("mod", {check.x({3, 4}, 5), check.positive({3, 1})}, {{"fmod", true}});
    check("where", {check.bools({2, 1, 4}), check.x({3, 4}), check.x({})});
    check("clip", {check.x({3, 4}), check.x({}, 0.5), {Tensor::scalar(0.75), true}});
    check("clip", {check.x({3, 4}), Checks::none(), check.x({1}, 0.5)});
    check("clip", {check.x({}), check.x({1}), Checks::none()});
    check("prelu", {check.x({3, 4}), check.x({4})});
    for (const char* op : {"sigmoid_gradient", "tanh_gradient"}) {
      check(op, {check.x({3, 4}), check.x({3, 4})});
      check(op, {check.x({4}), check.x({3, 4})});
      check(op, {check.x({3, 4}), check.x({})});
    }
  }
}

TEST_CASE("the gradients of functions of one element are their derivatives") {
  for (const std::uint64_t seed : seeds(2)) {
    INFO("seed ", seed);
    Checks check(seed);
    for (const char* op : {"neg",      "abs",     "exp",          "erf",        "sin",      "cos",      "atan",
                           "sigmoid",  "tanh",    "relu",         "leaky_relu", "elu",      "selu",     "celu",
                           "mish",     "gelu",    "hard_sigmoid", "hard_swish", "softplus", "softsign", "thresholded_relu",
                           "identity", "drop_lod"})
      check(op, {check.x({5, 4}, 4)});
    for (const char* op : {"sqrt", "reciprocal", "log"}) check(op, {check.positive({3, 4})});
    check("gelu", {check.x({5, 4}, 3)}, {{"approximate", std::string("tanh")}});
    for (const char* op : {"affine", "scaled_tanh", "hard_sigmoid"}) check(op, {check.x({4, 3})}, {{"alpha", 0.4}, {"beta", 0.3}});
    for (const char* op : {"elu", "celu", "thresholded_relu", "leaky_relu"}) check(op, {check.x({4, 3})}, {{"alpha", 0.6}});
    check("selu", {check.x({4, 3})}, {{"alpha", 0.6}, {"gamma", 1.3}});
    check("cast", {check.x({2, 3})}, {{"to", DType::f64}});
    check("tanh", {check.x({0, 3})});
  }
}

TEST_CASE("the gradients of products are products") {
  for (const std::uint64_t seed : seeds(2)) {
    INFO("seed ", seed);
    Checks check(seed);
    check("matmul", {check.x({3, 5}), check.weight({5, 2})});
    check("matmul", {check.x({3, 5}), check.x({5, 2})});
    check("matmul", {check.x({0, 5}), check.x({5, 2})});
    check("matmul", {check.x({2, 3, 5}), check.weight({5, 2})});
    check("matmul", {check.x({2, 0, 5}), check.weight({5, 2})});
    check("matmul", {check.x({5}), check.x({5, 2})});
    check("matmul", {check.x({3, 5}), check.x({5})});
    check("matmul", {check.x({2, 3, 5}), check.x({5})});
    check("matmul", {check.x({5}), check.x({5})});
    check("matmul", {check.x({5}), check.x({2, 5, 3})});
    check("matmul", {check.x({2, 3, 5}), check.x({2, 5, 4})});
    check("matmul", {check.x({4, 1, 3, 5}), check.x({2, 5, 2})});
    check("matmul", {check.x({3, 5}), check.x({2, 5, 2})});
    for (const bool trans_a : {false, true})
      for (const bool trans_b : {false, true}) {
        const Attributes form{{"trans_a", trans_a}, {"trans_b", trans_b}, {"alpha", 0.5}, {"beta", 2.0}};
        const DDim a = trans_a ? DDim{5, 3} : DDim{3, 5}, b = trans_b ? DDim{2, 5} : DDim{5, 2};
        check("gemm", {check.x(a), check.x(b), check.x({2})}, form);
        check("gemm", {check.x(a), check.weight(b), check.x({3, 1})}, form);
        check("gemm", {check.x(a), check.x(b), Checks::none()}, form);
      }
    check("gemm", {check.x({3, 5}), check.x({5, 2}), check.x({})}, {{"beta", 0.0}});
  }
}

TEST_CASE("the gradients of folds and norms") {
  for (const std::uint64_t seed : seeds(2)) {
    INFO("seed ", seed);
    Checks check(seed);
    for (const char* kind : {"sum", "mean", "max", "min", "prod", "l1", "l2", "sum_square", "log_sum_exp"})
      for (const bool keep : {false, true}) {
        const auto form = [&](const Ints& axes) { return Attributes{{"kind", std::string(kind)}, {"axes", axes}, {"keepdims", keep}}; };
        check("reduce", {check.x({3, 2, 4})}, form({1}));
        check("reduce", {check.x({3, 2, 4})}, form({-1, 0}));
        check("reduce", {check.x({3, 4})}, form({}));
        check("reduce", {check.x({})}, form({}));
        check("reduce", {check.x({0, 3})}, form({-1}));
      }
    check("reduce", {check.x({0, 3})}, {{"kind", std::string("mean")}, {"axes", Ints{0}}, {"keepdims", true}});
    check("reduce", {check.positive({3, 4})}, {{"kind", std::string("log_sum")}, {"axes", Ints{0}}, {"keepdims", false}});
    check("softmax", {check.x({3, 4})});
    check("softmax", {check.x({3, 4, 2})}, {{"axis", std::int64_t{1}}});
    check("log_softmax", {check.x({3, 4})});
    check("log_softmax", {check.x({3, 4, 2})}, {{"axis", std::int64_t{0}}});
    check("softmax", {check.x({0, 4})});
    check("layer_norm", {check.x({3, 4}), check.weight({4}), check.weight({4})});
    check("layer_norm", {check.x({3, 2, 4}), check.x({2, 4}), check.x({4})}, {{"axis", std::int64_t{1}}, {"epsilon", 1e-3}});
    check("layer_norm", {check.x({3, 4}), check.x({1}), Checks::none()});
    check("layer_norm", {check.x({0, 4}), check.x({4}), check.x({4})});
    check("layer_norm_gradient", {check.x({3, 4}), check.weight({4}), check.x({3, 4})});
    check("layer_norm_gradient", {check.x({3, 2, 4}), check.x({4}), check.x({3, 2, 4})}, {{"axis", std::int64_t{1}}, {"epsilon", 1e-3}});
    for (const bool exclusive : {false, true})
      for (const bool reverse : {false, true})
        check("cumsum", {check.x({3, 4})}, {{"axis", std::int64_t{1}}, {"exclusive", exclusive}, {"reverse", reverse}});
  }
}

namespace {

/// The gradient of the sum of an op's result by one of its inputs, in f64.
std::vector<double> gradient_of(const std::string& type, const std::vector<Tensor>& inputs, const Attributes& attributes,
                                const std::string& of = "d_x0") {
  Program program;
  Op op{type, {}, {}, attributes, {}};
  Feeds feeds;
  for (const Tensor& input : inputs) {
    const std::string name = "x" + std::to_string(op.inputs.size());
    op.inputs.push_back(program.add_input(name, VarType(input.dtype(), input.dims())));
    feeds.emplace(name, input);
  }
  const VarId out = program.append(0, std::move(op)).at(0);
  program.add_output("y", out);
  const DDim dims = *program.var(out).type.shape;
  Tensor seed(DType::f64, dims);
  for (std::int64_t i = 0; i < seed.elements(); ++i) seed.mutable_data<double>()[i] = 1;
  feeds.emplace("seed_0", seed);
  return on_cpu(with_gradients(program), feeds)[of].tensor().to_vector<double>();
}

}  // namespace

TEST_CASE(
    "equal extremes share the gradient equally, a product with zeros has the gradient of the others, a negative base none by its "
    "exponent, and what is summed by logarithms beside infinity none") {
  const auto kind = [](const char* name) { return Attributes{{"kind", std::string(name)}, {"axes", Ints{0}}, {"keepdims", false}}; };
  CHECK(gradient_of("reduce", {Tensor::from({1.0, 3.0, 3.0, 2.0})}, kind("max")) == std::vector<double>{0, 0.5, 0.5, 0});
  CHECK(gradient_of("reduce", {Tensor::from({2.0, 0.0, 3.0})}, kind("prod")) == std::vector<double>{0, 6, 0});
  CHECK(gradient_of("reduce", {Tensor::from({2.0, 0.0, 0.0})}, kind("prod")) == std::vector<double>{0, 0, 0});
  CHECK(gradient_of("reduce", {Tensor::from({0.0, 0.0})}, kind("l2")) == std::vector<double>{0, 0});
  CHECK(gradient_of("maximum", {Tensor::from({1.0, 2.0}), Tensor::from({1.0, 1.0})}, {}) == std::vector<double>{0.5, 1});
  CHECK(gradient_of("relu", {Tensor::from({0.0, 2.0, -1.0})}, {}) == std::vector<double>{0, 1, 0});
  CHECK(gradient_of("leaky_relu", {Tensor::from({0.0, 2.0, -1.0})}, {{"alpha", 0.25}}) == std::vector<double>{0.25, 1, 0.25});
  CHECK(gradient_of("prelu", {Tensor::from({0.0, 2.0, -1.0}), Tensor::from({0.25})}, {}) == std::vector<double>{0.25, 1, 0.25});
  CHECK(gradient_of("abs", {Tensor::from({0.0, 2.0, -1.0})}, {}) == std::vector<double>{0, 1, -1});
  CHECK(gradient_of("pow", {Tensor::from({0.0, 2.0}), Tensor::from({0.0, 0.0})}, {}) == std::vector<double>{0, 0});
  const std::vector<double> of_exponent =
      gradient_of("pow", {Tensor::from({0.0, 0.0, -2.0, 1.0}), Tensor::from({0.0, 2.0, 2.0, 3.0})}, {}, "d_x1");
  CHECK(of_exponent[0] == 0);
  CHECK(of_exponent[1] == 0);
  CHECK(std::isnan(of_exponent[2]));
  CHECK(of_exponent[3] == 0);

  constexpr double infinity = std::numeric_limits<double>::infinity();
  const std::vector<double> beside = gradient_of("reduce", {Tensor::from({infinity, 1.0, 2.0})}, kind("log_sum_exp"));
  CHECK(std::isnan(beside[0]));
  CHECK(beside[1] == 0);
  CHECK(beside[2] == 0);
  CHECK(gradient_of("reduce", {Tensor::from({-infinity, -infinity})}, kind("log_sum_exp")) == std::vector<double>{0, 0});
}

TEST_CASE("the gradients of elu, selu and celu are as exact as the exponential, where the result is next to its bound") {
  for (const double x : {-2.0, -20.0, -50.0, -700.0}) {
    INFO("x ", x);
    const Tensor at = Tensor::from({x});
    CHECK(gradient_of("elu", {at}, {{"alpha", 1.5}})[0] / (1.5 * std::exp(x)) == doctest::Approx(1).epsilon(1e-13));
    CHECK(gradient_of("selu", {at}, {{"alpha", 1.5}, {"gamma", 2.0}})[0] / (3 * std::exp(x)) == doctest::Approx(1).epsilon(1e-13));
    CHECK(gradient_of("celu", {at}, {{"alpha", 2.0}})[0] / std::exp(x / 2) == doctest::Approx(1).epsilon(1e-13));
  }
  for (const char* op : {"elu", "selu", "celu"}) CHECK(gradient_of(op, {Tensor::from({1e4})}, {{"alpha", 1.0}})[0] >= 1);
}

TEST_CASE("the gradients of ops that move elements come from where they went") {
  for (const std::uint64_t seed : seeds(2)) {
    INFO("seed ", seed);
    Checks check(seed);
    check("transpose", {check.x({2, 3, 4})}, {{"perm", Ints{2, 0, 1}}});
    check("transpose", {check.x({2, 3})});
    check("transpose_by", {check.x({2, 3, 4}), Checks::list({1, -1, 0})});
    check("transpose_by", {check.x({2, 3, 4}), Checks::fed_list({2, 0, -2})});
    check("squeeze", {check.x({2, 1, 3, 1})}, {{"axes", Ints{1, -1}}});
    check("squeeze", {check.x({2, 1, 3, 1})});
    check("unsqueeze", {check.x({2, 3})}, {{"axes", Ints{-1, 0}}});
    check("reshape", {check.x({2, 3, 4})}, {{"shape", Ints{0, -1}}});
    check("reshape", {check.x({2, 3, 4})}, {{"shape", Ints{4, 6}}});
    check("reshape", {check.x({0, 4})}, {{"shape", Ints{-1, 2}}});
    check("reshape_to", {check.x({2, 3, 4}), Checks::list({-1, 4})});
    check("reshape_to", {check.x({2, 3, 4}), Checks::fed_list({3, -1})});
    for (const std::int64_t axis : {0, 1, 2}) check("flatten", {check.x({2, 3, 4})}, {{"axis", axis}});
    check("concat", {check.x({2, 3}), check.weight({2, 2}), check.x({2, 0})}, {{"axis", std::int64_t{-1}}});
    check("concat", {check.x({2, 3}), check.x({1, 3})}, {{"axis", std::int64_t{0}}});
    check("split", {check.x({3, 6})}, {{"axis", std::int64_t{-1}}, {"sizes", Ints{1, 3, 2}}});
    const auto cut = [](const Ints& starts, const Ints& ends, const Ints& axes, const Ints& steps) {
      return Attributes{{"starts", starts}, {"ends", ends}, {"axes", axes}, {"steps", steps}};
    };
    check("slice", {check.x({3, 6})}, cut({1}, {4}, {1}, {1}));
    check("slice", {check.x({3, 6})}, cut({-3}, {100}, {-1}, {1}));
    check("slice", {check.x({3, 6})}, cut({1, -1}, {100, -100}, {-1, 0}, {2, -1}));
    check("slice", {check.x({3, 6})}, cut({4}, {2}, {1}, {1}));
    check("slice_by", {check.x({3, 6}), Checks::list({0, 1}), Checks::list({2, 5})});
    check("slice_by", {check.x({3, 6}), Checks::fed_list({5}), Checks::fed_list({0}), Checks::list({1}), Checks::list({-2})});
    check("reverse", {check.x({2, 3, 2})}, {{"axis", std::int64_t{1}}});
    check("pad", {check.x({2, 3})}, {{"pads", Ints{0, 2, 1, 0}}, {"value", 0.5}});
    check("pad", {check.x({3, 5})}, {{"pads", Ints{-1, 2, 1, -2}}});
    for (const char* mode : {"reflect", "edge", "wrap"})
      check("pad", {check.x({3, 4})}, {{"pads", Ints{1, 2, 0, 3}}, {"mode", std::string(mode)}});
    check("pad", {check.x({2, 5, 3})}, {{"pads", Ints{0, 2, 0, 0, -1, 2}}, {"mode", std::string("reflect")}});
    check("pad_by", {check.x({2, 3}), Checks::list({0, 1, 0, 2}), check.x({})});
    check("pad_by", {check.x({2, 3}), Checks::fed_list({1, 0, 0, 2}), check.x({})});
    check("expand", {check.x({3, 1}), Checks::list({2, 1, 4})});
    check("expand", {check.x({3, 1}), Checks::fed_list({3, 4})});
    check("tile", {check.x({2, 3}), Checks::list({1, 3})});
    check("tile", {check.x({2, 3}), Checks::fed_list({2, 3})});
    check("tile", {check.x({2, 3}), Checks::list({0, 2})});
  }
}

TEST_CASE("the gradients of what is picked by place are added in order") {
  for (const std::uint64_t seed : seeds(2)) {
    INFO("seed ", seed);
    Checks check(seed);
    check("gather", {check.x({3, 4}), check.index({5}, -3, 2)});
    check("gather", {check.x({2, 3, 4}), check.index({2, 2}, 0, 2)}, {{"axis", std::int64_t{1}}});
    check("gather", {check.x({2, 3}), check.index({}, 0, 2)}, {{"axis", std::int64_t{-1}}});
    check("gather", {check.x({4}), check.index({3}, 0, 3)});
    check("embedding", {check.weight({5, 3}), check.index({4, 2}, 0, 4)});
    check("embedding", {check.weight({5, 3}), check.index({0}, 0, 4)});
    check("gather_elements", {check.x({3, 4}), check.index({3, 6}, -4, 3)}, {{"axis", std::int64_t{1}}});
    check("gather_nd", {check.x({3, 4, 2}), check.index({5, 2}, 0, 2)});
    check("gather_nd", {check.x({2, 3, 4}), check.index({2, 5, 1}, 0, 2)}, {{"batch_dims", std::int64_t{1}}});
    check("gather_nd", {check.x({2, 3, 4, 2}), check.index({2, 3, 2, 1}, 0, 3)}, {{"batch_dims", std::int64_t{2}}});
    for (const char* reduction : {"none", "add", "mul", "min", "max"}) {
      const Attributes form{{"reduction", std::string(reduction)}};
      check("scatter_nd", {check.x({3, 2}), check.index({4, 1}, 0, 2), check.x({4, 2})}, form);
      check("scatter_nd", {check.x({3, 2}), check.index({2, 2}, 0, 1), check.x({2})}, form);
      Attributes along = form;
      along.set("axis", std::int64_t{1});
      check("scatter_elements", {check.x({3, 4}), check.index({3, 3}, -4, 3), check.x({3, 3})}, along);
    }
    check("top_k", {check.x({3, 5}), {Tensor::scalar(std::int64_t{2}), true}});
    check("top_k", {check.x({4, 3}), {Tensor::scalar(std::int64_t{3}), true}}, {{"axis", std::int64_t{0}}, {"largest", false}});
  }
}

TEST_CASE("the gradient of a softmax cross entropy is the difference of probabilities, and 0 in ignored rows") {
  for (const std::uint64_t seed : seeds(2)) {
    Checks check(seed);
    const LoD lod = LoD::from_lengths({{2, 0, 3}});
    check("softmax_cross_entropy", {check.x({4, 3}), check.index({4}, 0, 2)});
    check("softmax_cross_entropy", {check.x({4, 3}), check.index({4, 1}, -1, 2)}, {{"ignore_index", std::int64_t{-1}}});
    check("softmax_cross_entropy", {check.rows(lod, {3}), {LoDTensor(check.index({5, 1}, 0, 2).value.tensor(), lod)}});
    check("softmax_cross_entropy", {check.x({0, 3}), check.index({0}, 0, 2)});
    check("softmax_cross_entropy_gradient", {check.x({4, 1}), check.x({4, 3}), check.index({4}, 0, 2)});
    check("softmax_cross_entropy_gradient", {check.x({4, 1}), check.x({4, 3}), check.index({4, 1}, -1, 2)},
          {{"ignore_index", std::int64_t{-1}}});
  }
}

TEST_CASE("the gradients of rows that ops on sequences move go back to the rows") {
  for (const std::uint64_t seed : seeds(3)) {
    INFO("seed ", seed);
    Checks check(seed);
    const LoD flat = LoD::from_lengths({{2, 0, 3, 1}});
    const LoD deep = LoD::from_lengths({{2, 0, 1}, {3, 0, 2}});
    const LoD none = LoD::from_lengths({{}});
    const LoD drawn = random_lod(check.random, 2);
    for (const LoD& lod : {flat, deep, none, drawn}) {
      check("drop_lod", {check.rows(lod, {2})});
      for (std::int64_t level = 0; level < lod.depth(); ++level) {
        check("sequence_reverse", {check.rows(lod, {2})}, {{"level", level}});
        check("sequence_softmax", {check.rows(lod, {2})}, {{"level", level}});
        for (const char* kind : {"average", "sum", "sqrt", "max", "first", "last"})
          check("sequence_pool", {check.rows(lod, {2})}, {{"kind", std::string(kind)}, {"level", level}, {"empty", 0.5}});
        check("sequence_pool", {check.rows(lod, {})}, {{"kind", std::string("max")}, {"level", level}});
        check("sequence_concat", {check.rows(lod, {2}), check.rows(lod, {2})}, {{"level", level}});
        check("sequence_expand_as", {check.x({lod.sequences(static_cast<int>(level)), 2}), check.rows(lod, {1})}, {{"level", level}});
        check("sequence_expand", {check.x({lod.sequences(static_cast<int>(level)), 2}), check.rows(lod, {1})}, {{"ref_level", level}});
      }
      const LoD longer = LoD::from_lengths({Ints(static_cast<std::size_t>(lod.sequences(0)), 2)});
      check("sequence_expand", {check.rows(lod, {2}), check.rows(longer, {})});
      check("sequence_pad", {check.rows(lod, {2}), Checks::none()});
      check("sequence_pad", {check.rows(lod, {2}), check.x({2})}, {{"padded_length", std::int64_t{7}}});
      check("sequence_pad", {check.rows(lod, {}), check.x({})}, {{"padded_length", std::int64_t{7}}});
      check("sequence_reshape", {check.rows(lod, {4})}, {{"new_dim", std::int64_t{2}}});
      const Ints lengths = lod.lengths(lod.depth() - 1);
      check("lod_reset", {check.x({lod.rows(), 2}), Checks::none(), check.rows(lod, {})});
      check("sequence_conv", {check.rows(lod, {2}), check.weight({6, 3}), Checks::none()},
            {{"context_start", std::int64_t{-1}}, {"context_length", std::int64_t{3}}});
      check("sequence_conv", {check.rows(lod, {2}), check.x({4, 3}), check.x({4, 2})},
            {{"context_start", std::int64_t{-4}}, {"context_length", std::int64_t{2}}});
      check("sequence_conv", {check.rows(lod, {2}), check.x({2, 3}), Checks::none()}, {{"context_length", std::int64_t{1}}});
      check.known("row_conv", {check.rows(lod, {2}), check.weight({3, 2})});
      check("sequence_top_k", {check.rows(lod, {2})}, {{"k", std::int64_t{2}}});
    }
    check("sequence_slice", {check.rows(flat, {2}), Checks::fed_list({1, 0, 0, 0}), Checks::fed_list({1, 0, 2, 0})});
    check("sequence_trim", {check.rows(flat, {2}), Checks::fed_list({1, 0, 2, 1})});
    check("sequence_unpad", {check.x({3, 4, 2}), Checks::fed_list({2, 0, 4})});
    check("lod_append", {check.rows(LoD::from_lengths({{2, 1}}), {2})}, {{"lengths", Ints{1, 1, 1}}});
    check("sequence_scatter", {check.x({4, 5}), {LoDTensor(check.index({6}, 0, 4).value.tensor(), flat)}, check.rows(flat, {})});
    const In mask{Tensor(check.bools({4}).value.tensor())};
    check("split_by_mask", {check.rows(flat, {2}), mask});
    Ints lengths[2];
    for (std::size_t i = 0; i < 4; ++i) lengths[mask.value.tensor().data<bool>()[i] ? 0 : 1].push_back(static_cast<std::int64_t>(i));
    check("merge_by_mask", {check.rows(LoD::from_lengths({lengths[0]}), {2}), check.rows(LoD::from_lengths({lengths[1]}), {2}), mask});
  }
}

TEST_CASE("the gradients of cells are those of the ops that they stand for") {
  for (const std::uint64_t seed : seeds(2)) {
    INFO("seed ", seed);
    Checks check(seed);
    using Names = std::vector<std::string>;
    using Numbers = std::vector<double>;
    const Attributes forms[] = {
        {},
        {{"clip", 0.9}},
        {{"input_forget", true}},
        {{"activations", Names{"hard_sigmoid", "affine", "relu"}}, {"alphas", Numbers{0.3, 0.5, 0}}, {"betas", Numbers{0.5, 0.1, 0}}},
        {{"activations", Names{"sigmoid", "softsign", "elu"}}}};
    const std::int64_t n = check.random.between(0, 3), in = 3, h = 2;
    for (const Attributes& form : forms)
      for (const bool bias : {false, true})
        for (const bool peephole : {false, true}) {
          const In b = bias ? check.x({4 * h}) : Checks::none(), p = peephole ? check.x({3 * h}) : Checks::none();
          check.known("lstm_cell",
                      {check.x({n, in}), check.x({n, h}), check.x({n, h}), check.weight({in, 4 * h}), check.x({h, 4 * h}), b, p}, form);
          check.known("lstm_cell_projected", {check.x({n, 4 * h}), check.x({n, h}), check.x({n, h}), check.weight({h, 4 * h}), b, p}, form);
          check.known("lstm_gates", {check.x({n, 4 * h}), check.x({n, 4 * h}), check.x({n, h}), b, p}, form);
        }
  }
}

TEST_CASE("the gradients of convolutions along one axis") {
  for (const std::uint64_t seed : seeds(2)) {
    INFO("seed ", seed);
    Checks check(seed);
    for (const std::int64_t stride : {1, 2})
      for (const std::int64_t dilation : {1, 2})
        for (const std::int64_t group : {1, 2}) {
          const Attributes form{{"stride", stride}, {"dilation", dilation}, {"group", group}, {"pads", Ints{2, 1}}};
          check("conv1d", {check.x({2, 4, 7}), {check.weight({6, 4 / group, 3})}, check.x({6})}, form);
          check("conv1d", {check.x({0, 4, 7}), {check.weight({6, 4 / group, 3})}, Checks::none()}, form);
          check("conv1d", {check.x({2, 4, 1}), {check.weight({6, 4 / group, 3})}, Checks::none()}, form);
        }
    check("conv1d", {check.x({2, 3, 5}), check.weight({4, 3, 1}), check.weight({4})});
  }
}

TEST_CASE("the gradients of CRF and CTC losses are those of all paths and alignments") {
  for (const std::uint64_t seed : seeds(3)) {
    INFO("seed ", seed);
    Checks check(seed);
    const LoD flat = LoD::from_lengths({{3, 0, 1, 4}}), deep = LoD::from_lengths({{2, 0, 1}, {3, 0, 4}}), none = LoD::from_lengths({{}});
    for (const LoD& lod : {flat, deep, none, random_lod(check.random, 2)}) {
      const auto labels = [&](const LoD& of, std::int64_t least) {
        return In{LoDTensor(check.index({of.rows()}, least, 2).value.tensor(), of)};
      };
      check("linear_chain_crf", {check.rows(lod, {3}), check.weight({5, 3}), labels(lod, 0)});
      check("linear_chain_crf", {check.rows(lod, {3}), check.x({5, 3}), check.index({lod.rows(), 1}, 0, 2)});
      // Labels that the frames can say: half as many, rounded down.
      Ints half;
      for (const std::int64_t length : lod.lengths(lod.depth() - 1)) half.push_back(length / 2);
      check("ctc_loss", {check.rows(lod, {3}), labels(LoD::from_lengths({half}), 1)});
      check("ctc_loss", {check.rows(lod, {4}), labels(LoD::from_lengths({half}), 0)}, {{"blank", std::int64_t{3}}});
    }
    const LoD short_frames = LoD::from_lengths({{1, 3}}), long_labels = LoD::from_lengths({{2, 1}});
    check("ctc_loss", {check.rows(short_frames, {3}), {LoDTensor(check.index({3}, 1, 2).value.tensor(), long_labels)}},
          {{"zero_infinity", true}});
  }
}

TEST_CASE("the gradient of dropout drops what the values dropped") {
  for (const std::uint64_t seed : seeds(2)) {
    INFO("seed ", seed);
    Checks check(seed);
    const Attributes form{{"rate", 0.4}, {"seed", static_cast<std::int64_t>(seed)}, {"number", std::int64_t{3}}};
    check("dropout", {check.x({5, 4}), check.index({5}, 0, 9), check.index({5}, 0, 9), check.index({}, 0, 3)}, form);
    check("dropout", {check.x({5, 2, 3}), check.index({5, 1}, 0, 9), check.index({}, 0, 9)}, form);
    check("dropout", {check.x({5}), check.index({5}, 0, 9)}, form);
    check("dropout", {check.x({0, 3}), check.index({0}, 0, 9)}, form);
    check("dropout", {check.x({5, 4}), check.index({5}, 0, 9)}, {{"training", false}});
  }
}

/// The ops in the second cells of the table of docs/ops.md that is headed so.
static std::set<std::string> listed_on_page() {
  const char* named = std::getenv("MILLRACE_SOURCE");
  const std::filesystem::path source =
      named != nullptr ? std::filesystem::path(named) : std::filesystem::path(__FILE__).parent_path() / "../../../..";
  std::ifstream page(source / "docs/ops.md");
  REQUIRE(page.good());
  std::string line;
  while (std::getline(page, line) && !line.ends_with("| ops without a gradient rule |")) {
  }
  std::set<std::string> names;
  while (std::getline(page, line) && line.starts_with("|")) {
    const std::string cell = line.substr(line.find('|', 1));
    for (std::size_t at = cell.find('`'); at != cell.npos; at = cell.find('`', at)) {
      const std::size_t end = cell.find('`', at + 1);
      names.insert(cell.substr(at + 1, end - at - 1));
      at = end + 1;
    }
  }
  return names;
}

TEST_CASE("every op has a gradient rule, or cuts gradients, or stands here and on the page of ops with the reason why it has none") {
  const std::pair<const char*, std::vector<const char*>> without[] = {
      {"it serves with weights of i8, which nothing trains",
       {"quantize_rows", "matmul_int8", "round_to_bytes", "matmul_bytes", "quantize_bytes", "matmul_integer"}},
      {"it picks the best of many, for a program that is trained already",
       {"crf_decoding", "ctc_greedy", "ctc_beam_search", "beam_search_start", "beam_search_step", "beam_search_decode", "sample_tokens"}},
      {"its result is a gradient, from sums over all paths", {"linear_chain_crf_gradient", "ctc_loss_gradient"}},
      {"a pass makes them of ops that have gradients, when a program with its gradients is compiled",
       {"conv", "pool", "matmul_bias", "arithmetic", "attention", "integer_arithmetic", "conv_integer", "conv_arithmetic",
        "conv1d_arithmetic", "causal_filter", "matrix_recurrence", "byte_map", "gather_planes", "gather_sum", "byte_sums"}},
      {"its matrices differ from sequence to sequence", {"sequence_topk_avg_pooling"}},
      {"append_backward goes back through it itself, by blocks, arrays and orders",
       {"while",
        "if",
        "break_if",
        "unpack",
        "split_lod_tensor_to_timesteps",
        "pack",
        "restore_lod_tensor_from_timesteps",
        "shrink",
        "reorder",
        "last_rows",
        "reorder_steps",
        "tensor_array",
        "tensor_array_size",
        "tensor_array_has",
        "tensor_array_write",
        "tensor_array_written",
        "tensor_array_read",
        "tensor_array_stack",
        "tensor_array_concat",
        "tensor_array_unstack",
        "tensor_array_split"}},
      {"append_backward refuses it by name: other ops read and write slots one by one",
       {"tensor_array_append", "tensor_array_gather", "tensor_array_scatter"}},
      {"it is a part of a loop's backward",
       {"add_slot_gradient",       "boot_gradient",      "concat_gradient",    "last_rows_gradient", "last_rows_of",
        "no_slot_gradients",       "reorder_gradient",   "shrink_gradient",    "slot_gradient",      "slot_gradients_of",
        "slot_gradients_to_array", "sum_slot_gradients", "unpack_as",          "unstack_gradient",   "sequence_run",
        "sequence_run_gradient",   "join_runs",          "join_runs_gradient", "whole_blocks",       "add_row_products"}},
      {"values of lists and optionals have no gradient",
       {"list_of", "list_insert", "list_erase", "list_at", "list_length", "list_split", "list_concat", "list_stack", "optional_of",
        "optional_get", "optional_has"}}};
  std::set<std::string> listed;
  for (const auto& [reason, names] : without) listed.insert(names.begin(), names.end());
  const auto registry = standard_ops();
  for (const std::string& name : registry->names()) {
    INFO("op ", name);
    const OpDef& def = registry->at(name);
    CHECK((def.gradient ? 1 : 0) + (def.cuts_gradient ? 1 : 0) + (listed.contains(name) ? 1 : 0) == 1);
  }
  for (const std::string& name : listed) CHECK(registry->find(name) != nullptr);
  CHECK(listed_on_page() == listed);
}

TEST_CASE("an op from outside the tree has a gradient rule of its own") {
  auto ops = std::make_shared<OpRegistry>(*standard_ops());
  OpDef cube;
  cube.name = "cube";
  cube.inputs = {"X"};
  cube.outputs = {"Out"};
  cube.infer = [](InferContext& context) { context.result(context.tensor(0)); };
  cube.prepare = [](const PrepareContext&) -> OpKernel {
    return [](OpContext& run) {
      const Tensor x = run.tensor(0);
      run.set(0, mul(mul(x, x, run.stream()), x, run.stream()));
    };
  };
  cube.gradient = [](GradientContext& c) {
    const VarId x = c.input(0);
    const VarId three = c.append1("constant", {}, {{"value", Tensor::scalar(3.0)}});
    c.set(0, c.append1("mul", {c.gradient(0), c.append1("mul", {three, c.append1("mul", {x, x})})}));
  };
  ops->add(cube);
  CHECK_THROWS_WITH_AS(ops->set_gradient("cube", cube.gradient), "op registry: the gradient of op 'cube' is defined already", ProgramError);
  CHECK_THROWS_WITH_AS(ops->cut_gradients({"nothing"}), "op registry: expected a registered op, found 'nothing'", ProgramError);
  Program program(ops);
  const VarId x = program.add_input("x", VarType(DType::f64, DDim{DDim::unknown}));
  program.add_output("y", program.append(0, Op{"cube", {x}, {}, {}, {}}).at(0));
  Random random(1);
  const Feeds feeds{{"x", random_tensor(random, DDim{5}, 2, DType::f64)}};
  expect_gradients(with_gradients(program), with_seeds(program, feeds, random), {"x"});
}

TEST_CASE("gradients of elementwise ops on rows of one origin are not summed") {
  Program program;
  const VarId x = program.add_input("x", VarType(DType::f64, DDim{DDim::unknown, 3}, 1));
  const VarId w = program.add_parameter("w", Tensor::from(std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8, 9}, DDim{3, 3}));
  const VarId product = program.append(0, Op{"matmul", {x, w}, {}, {}, {}}).at(0);
  const VarId y = program.append(0, Op{"mul", {program.append(0, Op{"tanh", {product}, {}, {}, {}}).at(0), x}, {}, {}, {}}).at(0);
  program.add_output("y", y);
  // The weight of the loss is an input, with rows of its own.
  const Program gradients = with_gradients(program);
  const std::vector<Op>& made = gradients.block(0).ops;
  CHECK(std::count_if(made.begin(), made.end(), [](const Op& op) { return op.type == "sum_to"; }) == 1);
  CHECK(ops::same_extents(program, y, 0, x, 0));
  CHECK_FALSE(ops::same_extents(program, y, 0, program.add_input("z", VarType(DType::f64, DDim{DDim::unknown})), 0));
}

TEST_CASE("the gradient of narrow weights is a product in f32, narrowed once") {
  Random random(5);
  CpuDevice device;
  const Tensor x = random_tensor(random, DDim{7, 3}), wide = random_tensor(random, DDim{3, 8}), h = random_tensor(random, DDim{7, 2}),
               c = random_tensor(random, DDim{7, 2}), recurrent = random_tensor(random, DDim{2, 8});
  const auto narrow = [&](const Tensor& of) { return cast(of, DType::bf16, device.stream(0)).copy_to(CpuPlace{}); };
  const auto widened = [&](const Tensor& of) { return cast(narrow(of), DType::f32, device.stream(0)).copy_to(CpuPlace{}); };
  const auto gradients = [&](const std::string& type, const std::vector<Tensor>& fed, const std::vector<Tensor>& weights) {
    Program program;
    Feeds feeds;
    Op op{type, {}, {}, {}, {}};
    for (const Tensor& each : fed) {
      const std::string name = "x" + std::to_string(op.inputs.size());
      op.inputs.push_back(program.add_input(name, VarType(each.dtype(), DDim{DDim::unknown, each.dim(1)})));
      feeds.emplace(name, each);
    }
    for (const Tensor& each : weights) op.inputs.push_back(program.add_parameter("w" + std::to_string(op.inputs.size()), each));
    std::size_t count = 0;
    for (const VarId output : program.append(0, std::move(op))) program.add_output("y" + std::to_string(count++), output);
    Random seeds(6);
    return on_cpu(with_gradients(program), with_seeds(program, feeds, seeds));
  };
  for (const char* type : {"matmul", "gemm"}) {
    const RunResult found = gradients(type, {x}, {narrow(wide)}), wanted = gradients(type, {x}, {widened(wide)});
    CHECK(found["d_w1"].dtype() == DType::bf16);
    CHECK(found["d_w1"].tensor().to_vector<bfloat16>() == narrow(wanted["d_w1"].tensor()).to_vector<bfloat16>());
    CHECK(found["d_x0"].tensor().to_vector<float>() == wanted["d_x0"].tensor().to_vector<float>());
  }
  const RunResult found = gradients("lstm_cell", {x, h, c}, {narrow(wide), narrow(recurrent)}),
                  wanted = gradients("lstm_cell", {x, h, c}, {widened(wide), widened(recurrent)});
  for (const char* name : {"d_w3", "d_w4"})
    CHECK(found[name].tensor().to_vector<bfloat16>() == narrow(wanted[name].tensor()).to_vector<bfloat16>());
  for (const char* name : {"d_x0", "d_x1", "d_x2"})
    CHECK(found[name].tensor().to_vector<float>() == wanted[name].tensor().to_vector<float>());
}
