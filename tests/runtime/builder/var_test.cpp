// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/builder/var.h>

#include <doctest/doctest.h>

#include <functional>
#include <optional>
#include <thread>

#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>

#include "support/built.h"

using namespace millrace::build;
using millrace::DType, millrace::Program, millrace::ProgramError, millrace::Tensor, millrace::VarType;
using millrace::testing::says;

namespace {

std::string refusal(const std::function<void()>& work) {
  try {
    work();
  } catch (const ProgramError& error) {
    return error.what();
  }
  return {};
}

Var rows(const std::string& name) { return input(name, VarType(DType::f32, {2})); }

}  // namespace

TEST_CASE("building without a guard is an error that asks for one") {
  const std::string what = "builder: expected an open build::Guard on this thread, found none";
  CHECK(refusal([] { constant(1); }) == what);
  CHECK(refusal([] { rows("x"); }) == what);
  CHECK(refusal([] { const Var one = 1; }) == what);
  CHECK(refusal([] { Guard::current(); }) == what);
}

TEST_CASE("guards nest, and each ends where an exception leaves it") {
  Program outer, inner;
  const Guard guard(outer);
  rows("a");
  try {
    const Guard nested(inner);
    rows("b");
    throw 1;
  } catch (int) {
  }
  rows("c");
  CHECK(outer.inputs().size() == 2);
  CHECK(inner.inputs().size() == 1);
  CHECK(&Guard::current() == &guard);
}

TEST_CASE("an exception out of a frame or a branch goes on where it was, with the variables as they were") {
  Program program;
  const Guard guard(program);
  Var step = constant(0);
  const millrace::VarId before = step.id();
  try {
    WhileLoop loop = while_loop({step});
    const auto frame = loop.frame();
    step.update(step + 1);
    throw 1;
  } catch (int) {
  }
  CHECK(guard.block() == 0);
  CHECK(step.id() == before);
  try {
    if_else(constant(true), []() -> std::vector<Var> { throw 1; }, [] { return std::vector<Var>{}; });
  } catch (int) {
  }
  CHECK(guard.block() == 0);
  CHECK(program.block(0).ops.size() == 2);
}

TEST_CASE("a loop that is refused leaves its variables as they were") {
  Program program;
  const Guard guard(program);
  Var step = constant(0);
  const millrace::VarId before = step.id();
  CHECK(says(refusal([&] {
               WhileLoop loop = while_loop({step});
               const auto frame = loop.frame();
               step.update(step + 1);
             }),
             {"can never end"}));
  CHECK(step.id() == before);
}

TEST_CASE("a guard on one thread is no guard on another") {
  Program here, there;
  const Guard guard(here);
  std::string without;
  std::thread([&] {
    without = refusal([] { constant(1); });
    const Guard own(there);
    rows("x");
    rows("y");
  }).join();
  rows("z");
  CHECK(says(without, {"found none"}));
  CHECK(here.inputs().size() == 1);
  CHECK(there.inputs().size() == 2);
}

TEST_CASE("a variable of another program is named, with its block") {
  Program outer, inner;
  const Guard guard(outer);
  const Var ours = rows("ours");
  const Guard nested(inner);
  rows("theirs");
  const std::vector<std::string> parts{"'ours' of block 0", "another"};
  CHECK(says(refusal([&] { relu(ours); }), parts));
  CHECK(says(refusal([&] { rows("x") + ours; }), parts));
  CHECK(says(refusal([&] { output("y", ours); }), parts));
  CHECK(says(refusal([&] { while_loop({ours}).frame(); }), parts));
  CHECK(says(refusal([&] { if_else(constant(true), [&] { return std::vector{ours}; }, [&] { return std::vector{ours}; }); }), parts));
  CHECK(says(refusal([&] { ours.type(); }), parts));
}

TEST_CASE("a variable whose guard was closed is named, even where another program has its place") {
  std::optional<Program> program(std::in_place);
  std::optional<Var> kept;
  {
    const Guard guard(*program);
    kept = rows("kept");
  }
  program.emplace();
  const Guard guard(*program);
  rows("x");
  CHECK(says(refusal([&] { relu(*kept); }), {"'kept' of block 0", "a guard that was closed"}));
}

TEST_CASE("guards that are nested on one program share their variables") {
  Program program;
  const Guard guard(program);
  const Var x = rows("x");
  const Guard nested(program);
  output("y", relu(x));
  CHECK(program.outputs().size() == 1);
}

TEST_CASE("a variable whose block has ended is named, with its block") {
  Program program;
  const Guard guard(program);
  Var step = constant(0), inside;
  {
    WhileLoop loop = while_loop({step});
    const auto frame = loop.frame();
    loop.break_if(equal(step, 3));
    inside = call1("neg", {step}, {}, "inside");
    step.update(step + 1);
  }
  CHECK(says(refusal([&] { neg(inside); }), {"'inside' belongs to block 1", "not visible in block 0"}));
  CHECK(says(refusal([&] { output("y", inside); }), {"output 'y'", "'inside' belongs to block 1"}));
  CHECK(says(refusal([&] { inside.update(step); }), {"'inside' belongs to block 1", "updated in block 0"}));
  std::vector<Var> branch;
  if_else(constant(true), [&] { return branch = {neg(step)}; }, [&] { return std::vector{step}; });
  CHECK(says(refusal([&] { neg(branch[0]); }), {"belongs to block 2", "not visible in block 0"}));
  CHECK(says(refusal([&] { if_else(constant(true), [&] { return std::vector{inside}; }, [&] { return std::vector{step}; }); }),
             {"op if", "'inside' belongs to block 1"}));
}

TEST_CASE("a variable that the loop does not carry cannot be updated in its frame") {
  Program program;
  const Guard guard(program);
  Var step = constant(0), other = constant(5);
  const std::string what = refusal([&] {
    WhileLoop loop = while_loop({step});
    const auto frame = loop.frame();
    loop.break_if(equal(step, 3));
    step.update(step + 1);
    other.update(step);
  });
  CHECK(says(what, {"belongs to block 0", "updated in block 1", "list it among the variables that the loop carries"}));
}

TEST_CASE("an empty variable is refused where a value is needed, and stands for an absent input where one may be") {
  Program program;
  const Guard guard(program);
  const Var x = rows("x");
  const Var none;
  CHECK_FALSE(none.defined());
  CHECK(says(refusal([&] { none.type(); }), {"found an empty Var"}));
  CHECK(says(refusal([&] { relu(none); }), {"op relu", "expected input X, found none"}));
  CHECK(says(refusal([&] { output("y", none); }), {"found an empty Var"}));
  CHECK(says(refusal([&] { while_loop({none}).frame(); }), {"found an empty Var"}));
  CHECK(call1("clip", {x, none, constant(1.0)}).type() == x.type());
}

TEST_CASE("numbers are literals, written in any way") {
  Program program;
  const Guard guard(program);
  const auto value = [&](const Var& literal) { return program.constant(literal.id())->item(); };
  const Var twelve(12);
  const Var same = 12;
  CHECK(twelve.type() == VarType(DType::i64, {}));
  CHECK(value(twelve) == 12);
  CHECK(value(same) == 12);
  CHECK(value(Var(std::size_t{7})) == 7);
  CHECK(Var(0.5).type() == VarType(DType::f32, {}));
  CHECK(Var(0.5f).type() == VarType(DType::f32, {}));
  CHECK(Var(true).type() == VarType(DType::boolean, {}));
  CHECK(value(Var(-0.5)) == -0.5);
}

TEST_CASE("copies are one variable, and of(id) is another") {
  Program program;
  const Guard guard(program);
  Var a = constant(1);
  const Var same = a;
  const Var other = Var::of(a.id());
  a.update(constant(2));
  CHECK(same.id() == a.id());
  CHECK(other.id() != a.id());
  CHECK(a.same_variable(same));
  CHECK_FALSE(a.same_variable(other));
  CHECK(other.name() == program.var(other.id()).name);
}
