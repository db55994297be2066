// SPDX-License-Identifier: Apache-2.0
// Refusals of the inference of while, break_if and if.
#include <doctest/doctest.h>

#include <functional>

#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>

#include "support/built.h"

using namespace millrace::build;
using millrace::BlockId, millrace::DDim, millrace::DType, millrace::Op, millrace::Program, millrace::ProgramError, millrace::VarId,
    millrace::VarType;
using millrace::testing::says;

namespace {

/// The message of the ProgramError that building throws; empty when it does not.
std::string refusal(const std::function<void()>& building) {
  Program program;
  const Guard guard(program);
  try {
    building();
  } catch (const ProgramError& error) {
    return error.what();
  }
  return {};
}

Var f32_input(const DDim& shape) { return input("x", VarType(DType::f32, shape)); }

}  // namespace

TEST_CASE("a loop's outputs have the types of what it carries") {
  Program program;
  const Guard guard(program);
  Var step = constant(0);
  Var x = f32_input({DDim::unknown, 3});
  WhileLoop loop = while_loop({step, x});
  {
    const auto frame = loop.frame();
    loop.break_if(equal(step, constant(5)));
    x.update(x + x);
    step.update(step + constant(1));
  }
  CHECK(step.type() == VarType(DType::i64, {}));
  CHECK(x.type() == VarType(DType::f32, {DDim::unknown, 3}));
}

TEST_CASE("an undeclared change of shape or dtype is refused and named") {
  const auto loop_with = [](const DDim& shape, const std::function<Var(const Var&)>& next) {
    return refusal([&] {
      Var step = constant(0);
      Var x = f32_input(shape);
      WhileLoop loop = while_loop({step, x});
      const auto frame = loop.frame();
      loop.break_if(equal(step, constant(5)));
      x.update(next(x));
      step.update(step + constant(1));
    });
  };
  CHECK(says(loop_with({2}, [](const Var& x) { return concat({x, x}, 0); }), {"op while", "the next value", "f32[2]", "f32[4]"}));
  CHECK(says(loop_with({2}, [](const Var& x) { return cast(x, DType::f64); }), {"the next value", "f32[2]", "f64[2]"}));
  CHECK(says(loop_with({2}, [](const Var& x) { return reshape(x, {1, 2}); }), {"f32[2]", "f32[1, 2]"}));
  CHECK(loop_with({DDim::unknown}, [](const Var& x) { return concat({x, x}, 0); }).empty());
}

TEST_CASE("a wrong number of carried vars is refused") {
  const auto append = [](std::size_t inputs, std::size_t results) {
    return refusal([&] {
      Program& program = Guard::current().program();
      const Var x = f32_input({2});
      const int body = program.add_block(0);
      const VarId param = program.add_var("p", x.type(), body);
      program.block(body).params = {param};
      program.block(body).results.assign(results, param);
      Op op{"while", std::vector<VarId>(inputs, x.id()), {}, {{"sub_block", BlockId{body}}, {"max_trips", std::int64_t{1}}}, {}};
      program.append(0, std::move(op));
    });
  };
  CHECK(append(1, 1).empty());
  CHECK(says(append(2, 1), {"expected 1 carried vars", "found 2"}));
  CHECK(says(append(1, 2), {"expected 1 results", "found 2"}));
}

TEST_CASE("a condition that is no boolean scalar is refused") {
  const auto break_on = [](const std::function<Var()>& condition) {
    return refusal([&] {
      Var step = constant(0);
      WhileLoop loop = while_loop({step});
      const auto frame = loop.frame();
      loop.break_if(condition());
      step.update(step + constant(1));
    });
  };
  CHECK(says(break_on([] { return constant(1); }), {"op break_if", "boolean scalar", "i64[]"}));
  CHECK(says(break_on([] { return input("stop", VarType(DType::boolean, {2})); }), {"boolean scalar", "'stop' of bool[2]"}));
  CHECK(says(refusal([] {
               Var more = constant(1);
               WhileLoop loop = while_op(more, {more});
               const auto frame = loop.frame();
               more.update(more - constant(1));
             }),
             {"op while", "boolean scalar", "i64[]"}));
}

TEST_CASE("a body that can never end is refused") {
  const auto body = [](const std::function<void(WhileLoop&, Var&, const Var&)>& iteration, LoopOptions options = {}) {
    return refusal([&] {
      Var step = constant(0);
      const Var n = input("n", VarType(DType::i64, {}));
      WhileLoop loop = while_loop({step}, options);
      const auto frame = loop.frame();
      iteration(loop, step, n);
    });
  };
  const auto count = [](Var& step) { step.update(step + constant(1)); };
  CHECK(says(body([&](WhileLoop&, Var& step, const Var&) { count(step); }), {"can never end", "expected a break_if"}));
  CHECK(says(body([&](WhileLoop& loop, Var& step, const Var& n) {
               loop.break_if(equal(n, constant(3)));
               count(step);
             }),
             {"can never end", "the same in every iteration"}));
  CHECK(says(body([](WhileLoop& loop, Var& step, const Var& n) { loop.break_if(equal(step, n)); }), {"the same in every iteration"}));
  CHECK(body([&](WhileLoop& loop, Var& step, const Var& n) {
          loop.break_if(equal(n, constant(3)));
          loop.break_if(equal(step, n));
          count(step);
        }).empty());
  CHECK(body([&](WhileLoop&, Var& step, const Var&) { count(step); }, {.max_trips = 3}).empty());
}

TEST_CASE("the designs' listing whose condition is never changed is refused, and one that updates it is not") {
  const auto listing = [](bool updates) {
    return refusal([&] {
      Var i = constant(0);
      const Var n = input("n", VarType(DType::i64, {}));
      Var more = less(i, n);
      WhileLoop loop = while_op(more, {i, more});
      const auto frame = loop.frame();
      i.update(i + constant(1));
      if (updates) more.update(less(i, n));
    });
  };
  CHECK(says(listing(false), {"can never end", "the same in every iteration"}));
  CHECK(listing(true).empty());
}

TEST_CASE("a condition read from an array depends on the place, or on what the body writes") {
  const auto reads = [](const std::function<Var(const TensorArray&, const Var& step)>& condition, bool writes) {
    return refusal([&] {
      Var step = constant(0);
      const Var flags = input("flags", VarType(DType::boolean, {8}));
      const TensorArray array = writes ? TensorArray::typed(constant(8), VarType(DType::boolean, {})) : TensorArray::unstack(flags);
      WhileLoop loop = while_loop({step});
      const auto frame = loop.frame();
      if (writes) array.write(step, constant(true));
      loop.break_if(condition(array, step));
      step.update(step + constant(1));
    });
  };
  const auto fixed = [](const TensorArray& array, const Var&) { return array.read(constant(0)); };
  const auto moving = [](const TensorArray& array, const Var& step) { return array.read(step); };
  CHECK(reads(moving, false).empty());
  CHECK(reads(fixed, true).empty());
  CHECK(says(reads(fixed, false), {"can never end"}));
}

TEST_CASE("the branches of if agree in number, kind and dtype") {
  const auto branch = [](const std::function<std::vector<Var>(const Var&)>& otherwise) {
    std::string found;
    const std::string refused = refusal([&] {
      const Var x = f32_input({2, 3});
      const Var which = input("which", VarType(DType::boolean, {}));
      found = if_else(which, [&] { return std::vector<Var>{identity(x)}; }, [&] { return otherwise(x); })[0].type().to_string();
    });
    return refused.empty() ? found : refused;
  };
  CHECK(branch([](const Var& x) { return std::vector<Var>{x + x}; }) == "f32[2, 3]");
  CHECK(branch([](const Var& x) { return std::vector<Var>{concat({x, x}, 0)}; }) == "f32[?, 3]");
  CHECK(branch([](const Var& x) { return std::vector<Var>{reshape(x, {6})}; }) == "f32[*]");
  CHECK(says(branch([](const Var& x) { return std::vector<Var>{cast(x, DType::i32)}; }), {"op if", "to agree", "f32[2, 3]", "i32[2, 3]"}));
  CHECK(says(branch([](const Var& x) { return std::vector<Var>{x, x}; }), {"expected 1 results", "found 2"}));
}
