// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/join_gathers.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/program/straight_program.h>

#include "support/random_tensor.h"

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::build;

namespace {

using Words = std::vector<std::string>;

Var taken(Var x, std::vector<std::int64_t> places, std::int64_t axis) {
  const auto count = std::ssize(places);
  return call1("gather", {x, constant(Tensor::from(places, DDim{count}))}, {{"axis", axis}});
}

/// The ops of a program over x after the pass, which keeps the numbers.
template <class F>
Words joined(F body, void (*pass)(Program&) = join_gathers) {
  Program program;
  {
    const Guard guard(program);
    body(input("x", VarType(DType::f32, {DDim::unknown, 3, 4})));
  }
  Program made = program;
  pass(made);
  Random random(4);
  const Tensor x = random_tensor(random, DDim{2, 3, 4});
  const auto wanted = StraightProgram(program).run({x}), found = StraightProgram(made).run({x});
  REQUIRE(found.size() == wanted.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    CHECK(found[i].tensor().tensor().dims() == wanted[i].tensor().tensor().dims());
    CHECK(found[i].tensor().tensor().to_vector<float>() == wanted[i].tensor().tensor().to_vector<float>());
  }
  Words words;
  for (const Op& op : made.block(0).ops)
    if (op.type != "constant") words.push_back(op.type);
  return words;
}

}  // namespace

TEST_CASE("Gathers along the last two axes are one, in either order") {
  CHECK(joined([](Var x) { output("y", taken(taken(x, {0, 0, 1, 1, 3}, 2), {2, 2, 0}, 1)); }) == Words{"gather_planes"});
  CHECK(joined([](Var x) { output("y", taken(taken(x, {2, 2, 0, -1}, -2), {0, 0, 1, 1, 3}, -1)); }) == Words{"gather_planes"});
}

namespace {

/// A gather times weights along the axis.
Var weighted(Var x, const std::vector<std::int64_t>& places, std::int64_t axis, float weight) {
  DDim along{1, 1, 1};
  along[static_cast<int>(axis)] = std::ssize(places);
  std::vector<float> weights;
  for (std::size_t i = 0; i < places.size(); ++i) weights.push_back(weight + static_cast<float>(i));
  return taken(x, places, axis) * constant(Tensor::from(weights, along));
}
Words summed(const std::function<void(Var)>& body) { return joined(body, join_weighted_gathers); }

}  // namespace

TEST_CASE("A sum of gathers from one tensor along one axis, each times its own weights, is one op") {
  CHECK(summed([](Var x) { output("y", weighted(x, {0, 0, 1, 2}, 2, .5f) + weighted(x, {0, 1, 2, 3}, 2, .25f)); }) == Words{"gather_sum"});
  CHECK(summed([](Var x) {
          const std::vector<std::int64_t> places{2, 0};
          Var sum = weighted(x, places, 1, 1);
          for (const float weight : {2.0f, 3.0f, 4.0f}) sum = sum + weighted(x, places, 1, weight);
          output("y", sum);
        }) == Words{"gather_sum"});
  CHECK(summed([](Var x) {
          const Var wide = weighted(x, {0, 0, 1, 2}, 2, .5f) + weighted(x, {0, 1, 2, 3}, 2, .25f);
          output("y", weighted(wide, {0, 1, 2}, 1, .5f) + weighted(wide, {1, 1, 0}, 1, .25f));
        }) == Words{"gather_sum", "gather_sum"});
}

TEST_CASE("Gathers of two tensors, along two axes, with weights of another axis, or that something else reads stay") {
  const Words parts{"gather", "mul", "gather", "mul", "add"};
  CHECK(summed([](Var x) { output("y", weighted(x, {0, 1, 2, 3}, 2, 1) + weighted(x, {0, 1, 2}, 1, 2)); }) == parts);
  CHECK(summed([](Var x) {
          const Var across = constant(Tensor::from<float>({1, 2, 3}).reshape({3, 1}));
          output("y", taken(x, {0, 1}, 2) * across + weighted(x, {0, 1}, 2, 2));
        }) == parts);
  CHECK(summed([](Var x) {
          const Var read = weighted(x, {0, 1}, 2, 1);
          output("y", read + weighted(x, {2, 3}, 2, 2));
          output("read", read);
        }) == parts);
  CHECK(summed([](Var x) {
          const Var first = weighted(x, {0, 1}, 2, 1);  // the order of two operands is the compiler's
          output("y", first + weighted(exp(x), {2, 3}, 2, 2));
        }) == Words{"gather", "mul", "exp", "gather", "mul", "add"});
}

TEST_CASE("Gathers along one axis, along the first, by one number or whose elements something else reads stay") {
  const Words two{"gather", "gather"};
  CHECK(joined([](Var x) { output("y", taken(taken(x, {0, 0, 1}, 2), {2, 1}, 2)); }) == two);
  CHECK(joined([](Var x) { output("y", taken(taken(x, {0, 0, 1}, 2), {0, 0}, 0)); }) == two);
  CHECK(joined([](Var x) {
          const Var wide = taken(x, {0, 0, 1}, 2);
          output("y", taken(wide, {0, 0}, 1));
          output("wide", wide);
        }) == two);
  CHECK(joined([](Var x) {
          const Var one = call1("gather", {x, constant(Tensor::scalar(std::int64_t{1}))}, {{"axis", std::int64_t{2}}});
          output("y", taken(one, {0, 0}, 1));
        }) == two);
}
