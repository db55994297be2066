// SPDX-License-Identifier: Apache-2.0
// Misuse of StaticRNN and DynamicRNN, which share it: errors while the program is built.
#include <millrace/runtime/builder/rnn_block.h>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/dynamic_rnn.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/builder/static_rnn.h>

#include "support/built.h"

using namespace millrace::build;
using millrace::DDim, millrace::DType, millrace::Program, millrace::VarType;
using namespace millrace::testing;

namespace {

template <class RNN>
Var whole(const std::string& name = "x") {
  if constexpr (std::is_same_v<RNN, DynamicRNN>)
    return input(name, VarType(DType::f32, {DDim::unknown, 2}, 1));
  else
    return input(name, VarType(DType::f32, {DDim::unknown, 3, 2}));
}

}  // namespace

TEST_CASE_TEMPLATE("case 20: a memory that is never updated is refused by name", RNN, StaticRNN, DynamicRNN) {
  CHECK(says(build_refusal([] {
               RNN rnn;
               const Var x = whole<RNN>();
               const auto block = rnn.block();
               const Var x_t = rnn.step_input(x);
               const Var kept = rnn.memory(DType::f32, {2});
               rnn.memory(DType::f32, {2});
               rnn.update_memory(kept, kept + x_t);
             }),
             {"RNN: memory 'memory_2", "is never updated", "update_memory"}));
}

TEST_CASE_TEMPLATE("a refused block leaves a program that can still be built", RNN, StaticRNN, DynamicRNN) {
  Program program;
  const Guard guard(program);
  const Var x = whole<RNN>();
  const auto visit = [&](bool update) {
    RNN rnn;
    Var h;
    {
      const auto block = rnn.block();
      const Var x_t = rnn.step_input(x);
      h = rnn.memory(DType::f32, {2});
      if (update) rnn.update_memory(h, h + x_t);
      rnn.output(h);
    }
    return rnn.outputs()[0];
  };
  CHECK_THROWS_AS(visit(false), millrace::ProgramError);
  CHECK(guard.block() == 0);
  output("y", visit(true));
}

TEST_CASE_TEMPLATE("calls before, after and deeper than the block are refused", RNN, StaticRNN, DynamicRNN) {
  const auto before = [](auto&& call) {
    return build_refusal([&] {
      RNN rnn;
      call(rnn, whole<RNN>());
    });
  };
  const auto after = [](auto&& call) {
    return build_refusal([&] {
      RNN rnn;
      const Var x = whole<RNN>();
      Var h;
      {
        const auto block = rnn.block();
        const Var x_t = rnn.step_input(x);
        h = rnn.memory(DType::f32, {2});
        rnn.update_memory(h, x_t);
      }
      call(rnn, h);
    });
  };
  CHECK(says(before([](RNN& rnn, const Var& x) { rnn.step_input(x); }), {"step_input", "inside its block", "before it was visited"}));
  CHECK(says(before([](RNN& rnn, const Var& x) { rnn.static_input(x); }), {"static_input", "before it was visited"}));
  CHECK(says(before([](RNN& rnn, const Var& x) { rnn.memory(x); }), {"memory", "before it was visited"}));
  CHECK(says(before([](RNN& rnn, const Var& x) { rnn.output(x); }), {"output", "before it was visited"}));
  CHECK(says(before([](RNN& rnn, const Var&) { rnn.outputs(); }), {"outputs", "after its block", "before it was visited"}));
  CHECK(says(before([](RNN& rnn, const Var& x) { rnn.last(x); }), {"last", "after its block"}));
  CHECK(
      says(after([](RNN& rnn, const Var& h) { rnn.update_memory(h, h); }), {"update_memory", "inside its block", "after it was visited"}));
  CHECK(says(after([](RNN& rnn, const Var& h) { rnn.output(h); }), {"output", "after it was visited"}));
  CHECK(says(after([](RNN& rnn, const Var&) { rnn.last(whole<RNN>("other")); }), {"last", "a memory of this RNN"}));
  CHECK(says(after([](RNN& rnn, const Var&) { rnn.block(); }), {"one visit of its block", "second"}));
  CHECK(says(build_refusal([] {
               RNN rnn;
               const Var x = whole<RNN>();
               const auto block = rnn.block();
               rnn.step_input(x);
               rnn.outputs();
             }),
             {"outputs", "after its block", "inside"}));
  CHECK(says(build_refusal([] {
               RNN rnn;
               const Var x = whole<RNN>();
               const auto block = rnn.block();
               const Var x_t = rnn.step_input(x);
               if_else(true, [&] { return rnn.output(x_t), std::vector<Var>{}; }, [] { return std::vector<Var>{}; });
             }),
             {"output", "in its own block", "found block 2"}));
}

TEST_CASE_TEMPLATE("the first step input comes before memories, static inputs and outputs", RNN, StaticRNN, DynamicRNN) {
  const auto first = [](auto&& call) {
    return build_refusal([&] {
      RNN rnn;
      const Var x = whole<RNN>();
      const auto block = rnn.block();
      call(rnn, x);
    });
  };
  CHECK(says(first([](RNN& rnn, const Var&) { rnn.memory(DType::f32, {2}); }), {"memory", "expected a step_input before it"}));
  CHECK(says(first([](RNN& rnn, const Var& x) { rnn.static_input(x); }), {"static_input", "expected a step_input before it"}));
  CHECK(says(first([](RNN& rnn, const Var& x) { rnn.output(x); }), {"output", "expected a step_input before it"}));
  CHECK(says(first([](RNN&, const Var&) {}), {"expected a step_input in its block, found none"}));
}

TEST_CASE_TEMPLATE("a memory keeps dtype and row, and is updated once", RNN, StaticRNN, DynamicRNN) {
  const auto updating = [](auto&& call) {
    return build_refusal([&] {
      RNN rnn;
      const Var x = whole<RNN>();
      const auto block = rnn.block();
      const Var x_t = rnn.step_input(x);
      call(rnn, rnn.memory(DType::f32, {2}), x_t);
    });
  };
  CHECK(says(updating([](RNN& rnn, const Var& h, const Var& x) { rnn.update_memory(h, cast(x, DType::f64)); }),
             {"update_memory", "'memory", "f32", "f64"}));
  CHECK(
      says(updating([](RNN& rnn, const Var& h, const Var& x) { rnn.update_memory(h, concat({x, x}, 1)); }), {"update_memory", "2]", "4]"}));
  CHECK(says(updating([](RNN& rnn, const Var& h, const Var& x) {
               rnn.update_memory(h, x);
               rnn.update_memory(h, h);
             }),
             {"is updated twice"}));
  CHECK(says(updating([](RNN& rnn, const Var&, const Var& x) { rnn.update_memory(x, x); }), {"expected a memory of this RNN"}));
}

TEST_CASE_TEMPLATE("inputs and boots are variables of the program around", RNN, StaticRNN, DynamicRNN) {
  const auto inside = [](auto&& call) {
    return build_refusal([&] {
      RNN rnn;
      const Var x = whole<RNN>();
      const auto block = rnn.block();
      call(rnn, rnn.step_input(x) * 2.0);
    });
  };
  const std::string around = "a variable of the program around the block";
  CHECK(says(inside([](RNN& rnn, const Var& y) { rnn.step_input(y); }), {"step_input", around, "block 1"}));
  CHECK(says(inside([](RNN& rnn, const Var& y) { rnn.static_input(y); }), {"static_input", around}));
  CHECK(says(inside([](RNN& rnn, const Var& y) { rnn.memory(y); }), {"memory", around}));
  CHECK(says(inside([](RNN& rnn, const Var&) { rnn.memory(constant(1.0)); }), {"memory", "a row for each sequence", "f32[]"}));
}

TEST_CASE("steps need the LoD or the axis that they are taken along") {
  const auto takes = [](auto rnn_of, const VarType& type) {
    return build_refusal([&] {
      const Var x = input("x", type);
      const auto rnn = rnn_of();
      const auto block = rnn->block();
      rnn->step_input(x);
    });
  };
  const auto dynamic = [] { return std::make_unique<DynamicRNN>(); };
  const auto inner = [] { return std::make_unique<DynamicRNN>(DynamicRNN::Options{.level = 1}); };
  const auto fixed = [] { return std::make_unique<StaticRNN>(); };
  CHECK(says(takes(dynamic, VarType(DType::f32, {3, 2})), {"a level of LoD that is present", "found 0", "'x'"}));
  CHECK(says(takes(inner, VarType(DType::f32, {3, 2}, 1)), {"a level of LoD that is present (0)", "found 1"}));
  CHECK(says(takes(fixed, VarType(DType::f32, {3, 2}, 1)), {"rows without LoD", "'x'"}));
  CHECK(says(takes(fixed, VarType(DType::f32, {})), {"'x'"}));
}
