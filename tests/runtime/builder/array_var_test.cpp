// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/builder/array_var.h>

#include <doctest/doctest.h>

#include <millrace/runtime/array/errors.h>
#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/task/errors.h>

#include "support/built.h"

using namespace millrace::build;
using millrace::DDim, millrace::DType, millrace::LoD, millrace::LoDTensor, millrace::Program, millrace::Tensor, millrace::VarType;
using namespace millrace::testing;

namespace {

using Ints = std::vector<std::int64_t>;

Var six() { return constant(Tensor::from<std::int64_t>({1, 2, 3, 4, 5, 6})); }

/// `iteration(step)` for every step below n.
void count_to(const Var& n, const std::function<void(const Var&)>& iteration) {
  Var step = 0;
  WhileLoop loop = while_loop({step});
  const auto frame = loop.frame();
  loop.break_if(equal(step, n));
  iteration(step);
  step.update(step + 1);
}

}  // namespace

TEST_CASE("states[i] = v writes, and states[i] reads wherever a variable may stand") {
  CHECK(built_values<std::int64_t>([] {
          const TensorArray states(constant(4));
          states[0] = 10;
          count_to(3, [&](const Var& step) { states[step + 1] = states[step] + step; });
          const Var last = states[3];
          return concat({states.stack(), reshape(last, {1})}, 0);
        }) == Ints{10, 10, 11, 13, 13});
}

TEST_CASE("an element is written with an element: both arrays, or twice the same") {
  CHECK(built_values<std::int64_t>([] {
          const TensorArray from = TensorArray::unstack(six());
          const TensorArray to(constant(3));
          count_to(3, [&](const Var& step) { to[2 - step] = from[step]; });
          return to.stack();
        }) == Ints{3, 2, 1});
  CHECK(says(run_failure<millrace::Error>([] {
               const TensorArray states(constant(1));
               states[0] = 1;
               states[0] = states[0];
               return states.stack();
             }),
             {"slot 0", "written once"}));
}

TEST_CASE("arrays of a size, growable, of a window, and unstacked along an axis") {
  CHECK(built_values<std::int64_t>([] {
          const TensorArray array(constant(2) + 1);
          count_to(3, [&](const Var& step) { array.write(step, step * step); });
          return concat({array.stack(), reshape(array.size(), {1})}, 0);
        }) == Ints{0, 1, 4, 3});
  CHECK(built_values<std::int64_t>([] {
          const TensorArray array = TensorArray::growable("grown");
          count_to(5, [&](const Var& step) { array.append(step); });
          return array.stack();
        }) == Ints{0, 1, 2, 3, 4});
  CHECK(built_values<std::int64_t>([] {
          const TensorArray window = TensorArray::window(2);
          const TensorArray out(constant(100));
          count_to(100, [&](const Var& step) { window.append(step); });
          count_to(100, [&](const Var& step) { out.write(step, window.read(step) + 1); });
          return sum(out.stack(), {0}, false);
        }) == Ints{5050});
  CHECK(built([] { return TensorArray::unstack(reshape(six(), {2, 3}), 1).stack(); }).dims() == DDim{3, 2});
}

TEST_CASE("slots are stacked along an axis, joined, and gathered") {
  const auto array = [] { return TensorArray::unstack(reshape(six(), {3, 2})); };
  CHECK(built([&] { return array().stack(1); }).tensor().to_vector<std::int64_t>() == Ints{1, 3, 5, 2, 4, 6});
  CHECK(built_values<std::int64_t>([&] { return array().concat(); }) == Ints{1, 2, 3, 4, 5, 6});
  CHECK(built_values<std::int64_t>([&] { return array().gather(constant(Tensor::from<std::int64_t>({2, 0}))); }) == Ints{5, 6, 1, 2});
}

TEST_CASE("the name of an array is the one in its errors") {
  const std::string what = run_failure<millrace::Error>([] {
    const TensorArray holes(constant(2), "holes");
    holes.write(1, 5);
    return holes.stack();
  });
  CHECK(says(what, {"slot 0 of array 'holes'"}));
}

TEST_CASE("what is read before anything is written needs a declared type, a boot, or a write that comes first in the text") {
  CHECK(says(build_refusal([] { TensorArray(constant(2), "states").read(0); }),
             {"'states' of array<?>", "write to it first, or declare dtype and shape"}));
  Program program;
  const Guard guard(program);
  CHECK(TensorArray::typed(2, VarType(DType::f32, {2, 3})).read(0).type() == VarType(DType::f32, {2, 3}));
  CHECK(TensorArray::typed(2, VarType::unranked(DType::f64)).read(0).type() == VarType::unranked(DType::f64));
  CHECK(TensorArray(constant(2)).read(-1, constant(1.0)).type() == VarType(DType::f32, {}));
}

TEST_CASE("a second write of another dtype or rank is refused when the program is built") {
  CHECK(says(build_refusal([] {
               const TensorArray array(constant(2), "states");
               array.write(0, constant(1.0));
               array.write(1, constant(1));
             }),
             {"op tensor_array_write", "f32[]", "'states'", "i64[]"}));
}

TEST_CASE("a window needs room, and an array that is not one is refused") {
  CHECK(says(build_refusal([] { TensorArray::window(-1); }), {"a window of 0 or more"}));
  CHECK(says(build_refusal([] { TensorArray::window(-1); }), {"a window of -1"}));
  CHECK(says(build_refusal([] { TensorArray::of(constant(1)).size(); }), {"expected an array", "i64[]"}));
}

TEST_CASE("rows are taken apart by length or in the caller's order, and put together again") {
  const LoDTensor x(Tensor::from<float>({1, 2, 3, 4, 5, 6}), LoD::from_lengths({{1, 0, 3, 2}}));
  for (const bool sorted : {sort_by_length, unsorted}) {
    const LoDTensor y = built(
        [&] {
          const auto [steps, order] = unpack(input("x", VarType(DType::f32, {DDim::unknown}, 1)), 0, sorted);
          const Var n = steps.size();
          const TensorArray outputs(n, order);
          count_to(n, [&](const Var& step) { outputs[step] = steps[step] * 2.0; });
          return pack(outputs, 0, order);
        },
        {{"x", x}});
    CHECK(y.lod() == x.lod());
    CHECK(y.tensor().to_vector<float>() == std::vector<float>{2, 4, 6, 8, 10, 12});
  }
}
