// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/loops/step_runner.h>

#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/program/straight_program.h>
#include <millrace/tensor/device.h>

#include "support/random.h"
#include "support/random_tensor.h"
#include "support/same_bits.h"

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::build;

namespace {

using Make = std::function<Var(const Var& a, const Var& b, const Var& wide, const Var& weights)>;

/// `make` of rows a, b [N, 6] and wide [N, 4, 6], and weights [6, 5], as one kernel and op by op.
void compare(const std::string& name, const Make& make) {
  INFO("op: ", name);
  for (const DType dtype : {DType::f32, DType::f64}) {
    Random random(3);
    Program program;
    {
      const Guard guard(program);
      const Var a = input("a", VarType(dtype, {DDim::unknown, 6}));
      const Var b = input("b", VarType(dtype, {DDim::unknown, 6}));
      const Var wide = input("wide", VarType(dtype, {DDim::unknown, 4, 6}));
      output("y", make(a, b, wide, parameter("w", random_tensor(random, {6, 5}, 3, dtype))));
    }
    for (const int threads : {1, 2}) {
      StepRunner runner(program, make_cpu_device(threads));
      INFO("reason: ", runner.reason());
      REQUIRE(runner.fused());
      const StraightProgram apart(program);
      for (const std::int64_t n : {1, 7, 70}) {
        const std::vector<Tensor> inputs{random_tensor(random, {n, 6}, 3, dtype), random_tensor(random, {n, 6}, 3, dtype),
                                         random_tensor(random, {n, 4, 6}, 3, dtype)};
        const std::vector<Value> values(inputs.begin(), inputs.end());
        const Tensor wanted = apart.run(values)[0].tensor().tensor().copy_to(CpuPlace{});
        const Tensor found = runner.run(inputs)[0];
        CHECK(same_bits(found, wanted));
      }
    }
  }
}

Var weights_of(const Var& like, const DDim& dims) {
  Random random(9);
  return parameter("v", random_tensor(random, dims, 3, like.type().dtype));
}
Var scalar_of(const Var& like, double value) { return cast(constant(value), like.type().dtype); }

TEST_CASE("functions of one element have the bits of their kernels") {
  for (const char* name : {"neg",        "abs",
                           "exp",        "erf",
                           "floor",      "ceil",
                           "round",      "sign",
                           "sin",        "cos",
                           "atan",       "sigmoid",
                           "tanh",       "relu",
                           "hard_swish", "mish",
                           "softplus",   "softsign",
                           "leaky_relu", "elu",
                           "celu",       "thresholded_relu",
                           "selu",       "hard_sigmoid",
                           "affine",     "scaled_tanh",
                           "gelu"})
    compare(name, [name](const Var& a, const Var&, const Var&, const Var&) { return call1(name, {a}); });
  compare("sqrt, log, reciprocal",
          [](const Var& a, const Var&, const Var&, const Var&) { return sqrt(abs(a)) + log(abs(a)) + call1("reciprocal", {a}); });
}

TEST_CASE("functions of two elements stretch as numpy does") {
  for (const char* name : {"add", "sub", "mul", "div", "minimum", "maximum"}) {
    compare(name, [name](const Var& a, const Var& b, const Var&, const Var&) { return call1(name, {a, b}); });
    compare(std::string(name) + " of weights", [name](const Var& a, const Var&, const Var&, const Var&) {
      return call1(name, {weights_of(a, {6}), call1(name, {a, weights_of(a, {1})})});
    });
    compare(std::string(name) + " across",
            [name](const Var& a, const Var&, const Var& wide, const Var&) { return call1(name, {wide, reshape(a, {-1, 1, 6})}); });
    compare(std::string(name) + " of columns", [name](const Var&, const Var&, const Var& wide, const Var&) {
      return call1(name, {slice(wide, 2, 1, 2), call1(name, {weights_of(wide, {4, 1}), wide})});
    });
    compare(std::string(name) + " turned", [name](const Var&, const Var&, const Var& wide, const Var&) {
      return call1(name, {transpose(wide, {0, 2, 1}), transpose(slice(wide, 1, 2, 3), {0, 2, 1})});
    });
  }
  compare("square", [](const Var& a, const Var&, const Var&, const Var&) { return pow(a, scalar_of(a, 2)); });
}

TEST_CASE("truth chooses") {
  for (const char* name : {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"})
    compare(name, [name](const Var& a, const Var& b, const Var&, const Var&) { return where(call1(name, {a, b}), a, b * b); });
  compare("logic", [](const Var& a, const Var& b, const Var&, const Var&) {
    const Var high = logical_and(greater(a, b), logical_not(less(b, scalar_of(b, 0))));
    return cast(logical_or(high, call1("logical_xor", {high, equal(a, a)})), a.type().dtype) + a;
  });
  compare("clip", [](const Var& a, const Var&, const Var&, const Var&) { return call1("clip", {a, scalar_of(a, -0.5), scalar_of(a, 1)}); });
}

TEST_CASE("products take rows of any rank, transposed weights and a bias") {
  compare("matmul", [](const Var& a, const Var&, const Var&, const Var& w) { return matmul(a, w); });
  compare("of three axes", [](const Var&, const Var&, const Var& wide, const Var& w) { return matmul(wide, w); });
  compare("of a part", [](const Var&, const Var&, const Var& wide, const Var& w) {
    return matmul(transpose(slice(transpose(wide, {0, 2, 1}), 1, 0, 6), {0, 2, 1}), w);
  });
  compare("gemm", [](const Var& a, const Var&, const Var&, const Var&) {
    return call1("gemm", {a, weights_of(a, {7, 6}), weights_of(a, {7})}, {{"trans_b", true}});
  });
  compare("merged", [](const Var& a, const Var& b, const Var&, const Var& w) {
    return concat({matmul(a, w), matmul(a, weights_of(a, {6, 3})), matmul(b, w)}, 1);
  });
  compare("merged with a literal", [](const Var& a, const Var&, const Var&, const Var& w) {
    Random random(4);
    const Var first = matmul(a, w);
    return first + matmul(a, constant(random_tensor(random, {6, 5}, 3, a.type().dtype)));
  });
}

TEST_CASE("folds and norms go over the last axes") {
  for (const char* kind : {"sum", "mean", "max", "min", "l1", "l2"}) {
    compare(kind, [kind](const Var&, const Var&, const Var& wide, const Var&) { return reduce(wide, kind, {-1}); });
    compare(std::string(kind) + " of all",
            [kind](const Var&, const Var&, const Var& wide, const Var&) { return reduce(wide, kind, {1, 2}, true); });
  }
  compare("softmax", [](const Var&, const Var&, const Var& wide, const Var&) { return softmax(wide); });
  compare("log_softmax", [](const Var& a, const Var&, const Var&, const Var&) { return call1("log_softmax", {a}); });
  compare("layer_norm", [](const Var&, const Var&, const Var& wide, const Var&) {
    return layer_norm(transpose(wide, {0, 2, 1}), weights_of(wide, {4}), weights_of(wide, {4}));
  });
}

TEST_CASE("shapes cost nothing and lose nothing") {
  compare("concat and split", [](const Var& a, const Var& b, const Var& wide, const Var&) {
    const std::vector<Var> parts = split(wide, 1, {1, 3});
    return concat({parts[1], reshape(a, {-1, 1, 6}), reshape(b, {-1, 1, 6}), parts[0]}, 1);
  });
  compare("slice with a step", [](const Var&, const Var&, const Var& wide, const Var&) {
    return call1("slice", {wide},
                 {{"starts", std::vector<std::int64_t>{1, -6}},
                  {"ends", std::vector<std::int64_t>{4, 100}},
                  {"axes", std::vector<std::int64_t>{1, 2}},
                  {"steps", std::vector<std::int64_t>{2, 3}}});
  });
  compare("squeeze", [](const Var&, const Var&, const Var& wide, const Var&) {
    return call1("squeeze", {slice(wide, 1, 1, 2)}, {{"axes", std::vector<std::int64_t>{1}}});
  });
  for (const std::vector<std::int64_t>& places : {std::vector<std::int64_t>{2}, {0, 2}, {3, 2, 1}, {-1, -4}})
    compare("gather", [&](const Var&, const Var&, const Var& wide, const Var&) {
      return tanh(gather(wide, constant(Tensor::from(places, {static_cast<std::int64_t>(places.size())})), 1));
    });
  compare("gather one", [](const Var& a, const Var&, const Var& wide, const Var&) { return gather(wide, constant(-2), 1) + a; });
  compare("axes of one", [](const Var&, const Var&, const Var& wide, const Var&) {
    const Var turned = transpose(wide, {0, 2, 1});
    return tanh(reshape(reshape(turned, {-1, 1, 6, 1, 4}), {-1, 6, 4})) + reshape(turned, {-1, 6, 4});
  });
  compare("as it came", [](const Var& a, const Var&, const Var&, const Var&) { return identity(a); });
}

TEST_CASE("convolutions see what their kernel sees, and pads are zeros, numbers or reflections") {
  for (const std::int64_t stride : {1, 2})
    for (const std::int64_t dilation : {1, 2})
      for (const bool one_channel : {true, false}) {
        const Attributes attributes{{"stride", stride}, {"dilation", dilation}, {"pads", std::vector<std::int64_t>{1, 2}}};
        compare("conv1d", [&](const Var& a, const Var&, const Var& wide, const Var&) {
          const Var x = one_channel ? reshape(a, {-1, 1, 6}) : wide;
          const Var y = call1("conv1d", {x, weights_of(a, {3, one_channel ? 1 : 4, 2}), weights_of(a, {3})}, attributes);
          return concat({relu(y) * y, call1("conv1d", {tanh(y), weights_of(a, {2, 3, 1})})}, 1);
        });
      }
  for (const char* mode : {"constant", "reflect"})
    compare(mode, [mode](const Var& a, const Var&, const Var& wide, const Var&) {
      const Attributes attributes{{"pads", std::vector<std::int64_t>{0, 0, 2, 0, 0, 3}}, {"mode", std::string(mode)}, {"value", 1.5}};
      return call1("pad", {transpose(wide, {0, 2, 1}) + reshape(a, {-1, 6, 1})}, attributes);
    });
  compare("turned and added", [](const Var& a, const Var&, const Var& wide, const Var&) {
    const Var turned = call1("conv1d", {wide, weights_of(a, {4, 4, 1})});
    return concat({turned * wide, wide - turned, sigmoid(turned) + turned}, 1);
  });
}

TEST_CASE("what does not keep rows apart is refused by name and runs op by op") {
  Program program;
  {
    const Guard guard(program);
    const Var a = input("a", VarType(DType::f32, {DDim::unknown, 2}));
    output("y", call1("cumsum", {a}, {{"axis", std::int64_t{0}}}));
  }
  StepRunner runner(program, make_cpu_device());
  CHECK_FALSE(runner.fused());
  CHECK(runner.reason().find("cumsum") != std::string::npos);
  CHECK(runner.run({Tensor::from<float>({1, 2, 3, 4}, {2, 2})})[0].to_vector<float>() == std::vector<float>{1, 2, 4, 6});
}

TEST_CASE("inputs that are not what the step takes are refused") {
  Program program;
  {
    const Guard guard(program);
    output("y", sigmoid(input("a", VarType(DType::f32, {DDim::unknown, 2}))));
  }
  StepRunner runner(program, make_cpu_device());
  CHECK_THROWS_AS(runner.run({Tensor::from<float>({1, 2, 3}, {1, 3})}), ShapeError);
}

TEST_CASE("what is no number is compared and chosen as the kernels do it") {
  compare("NaN", [](const Var& a, const Var& b, const Var&, const Var&) {
    const Var odd = log(a);  // of numbers below 0
    return concat({minimum(odd, b), minimum(b, odd), maximum(odd, b), maximum(b, odd), where(not_equal(odd, odd), a, b),
                   where(not_equal(odd, b), a, b), where(equal(odd, odd), a, b)},
                  1);
  });
}

}  // namespace
