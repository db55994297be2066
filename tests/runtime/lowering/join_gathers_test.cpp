// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/join_gathers.h>

#include <cstdint>
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
Words joined(F body) {
  Program program;
  {
    const Guard guard(program);
    body(input("x", VarType(DType::f32, {DDim::unknown, 3, 4})));
  }
  Program made = program;
  join_gathers(made);
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
