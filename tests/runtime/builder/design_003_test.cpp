// SPDX-License-Identifier: Apache-2.0 The listings of the design "Implementation Doc: Dynamic RNN" (003) as programs: each quoted beside
// the form that runs, and, where the original cannot run when it is taken literally, the error it gets. The same loops by hand, as
// coroutines: tests/runtime/array/designs_test.cpp.
#include <doctest/doctest.h>

#include <cmath>

#include <millrace/runtime/array/errors.h>
#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/program/text.h>
#include <millrace/runtime/task/errors.h>

#include "support/built.h"

using namespace millrace::build;
using millrace::DDim, millrace::DType, millrace::Feeds, millrace::LoD, millrace::LoDTensor, millrace::Program, millrace::ProgramError,
    millrace::Tensor, millrace::VarType;
using namespace millrace::testing;

namespace {

using Floats = std::vector<float>;

// ---- "The C++ code below demonstrates the forward logic of RNN which PaddlePaddle Fluid generates in ProgramDesc." ----
//
//     auto input = LoDTensor(...);  // LoDTensor is the data structure for time series
//
//     std::vector<LoDTensor> inputs_for_each_timestep = LoDTensorToTimesteps(LoDTensor())
//     std::vector<LoDTensor> memories;
//     memories.resize(inputs_for_each_timestep.size() + 1);
//     memories[0] = 0;
//     std::vector<LoDTensor> outputs_for_each_timestep;
//     outputs_for_each_timestep.resize(inputs_for_each_timestep.size());
//
//     auto W0 = LoDTensor(...);
//     auto W1 = LoDTensor(...);
//     auto Bias = LoDTensor(...);
//
//     size_t i = 0;
//     while (i < inputs_for_each_timestep.size()) {
//       auto& step_input = inputs_for_each_timestep[i];
//       auto& ex_mem = memories[i];
//
//       auto tmp0 = step_input * W0;
//       auto tmp1 = ex_mem * W1;
//       auto sum = tmp0 + tmp1 + Bias
//       auto hidden = sigmoid(sum);
//       memories[i+1] = sum;
//       outputs_for_each_timestep[i] = sum;
//     }
//
//     LoDTensor outputs = TimestepsToLoDTensor(outputs_for_each_timestep);

/// Where the program leaves the letter of the listing.
struct Letter {
  bool increments = true;  ///< ++i, which the listing forgets
  bool boots = true;       ///< the memory before step 0 is a row of zeros for each sequence, not the number 0
  bool shrinks = true;     ///< the memory keeps the rows of the sequences that still live
};

Var row(float value) { return constant(Tensor::from<float>({value}).reshape({1, 1})); }

Var forward_logic(const Letter& letter) {
  const Var x = input("input", VarType(DType::f32, {DDim::unknown, 1}, 1));
  const Var zeros = input("zeros", VarType(DType::f32, {DDim::unknown, 1}));
  const auto [inputs_for_each_timestep, order] = unpack(x, 0, sort_by_length);
  const Var size = inputs_for_each_timestep.size();
  const TensorArray memories(size, order, "memories");
  const TensorArray outputs_for_each_timestep(size, order, "outputs");
  const Var W0 = row(2), W1 = row(.5f), Bias = row(1);
  Var i = 0, more = less(i, size);
  {
    WhileLoop loop = while_op(more, {i});
    const auto frame = loop.frame();
    const Var step_input = inputs_for_each_timestep[i];
    const Var ex_mem = letter.boots ? memories.read(i - 1, zeros) : memories.read(i - 1, constant(0));
    const Var living = letter.shrinks ? shrink(ex_mem, step_input) : ex_mem;
    const Var tmp0 = matmul(step_input, W0);
    const Var tmp1 = matmul(living, W1);
    const Var sum = tmp0 + tmp1 + Bias;
    memories[i] = sum;
    outputs_for_each_timestep[i] = sum;
    if (letter.increments) i.update(i + 1);
    more.update(less(i, size));
  }
  return pack(outputs_for_each_timestep, 0, order);
}

Feeds sentences() {
  const LoDTensor x(Tensor::from<float>({1, 2, 3, 4, 5, 6}).reshape({6, 1}), LoD::from_lengths({{2, 1, 3}}));
  return {{"input", x}, {"zeros", Tensor::from<float>({0, 0, 0}).reshape({3, 1})}};
}

}  // namespace

TEST_CASE("003: the forward logic of a dynamic RNN, as a program") {
  const LoDTensor outputs = built([] { return forward_logic({}); }, sentences());
  CHECK(outputs.lod() == LoD::from_lengths({{2, 1, 3}}));
  CHECK(outputs.tensor().to_vector<float>() == Floats{3, 6.5f, 7, 9, 15.5f, 20.75f});
}

TEST_CASE("003: taken literally the loop never counts on, which is refused when it is built") {
  CHECK(says(build_refusal([] { forward_logic({.increments = false}); }),
             {"op while", "the loop can never end", "the same in every iteration"}));
}

TEST_CASE("003: taken literally the first memory is the number 0, which has no row for any sequence") {
  const std::string what = build_refusal([] { forward_logic({.boots = false}); });
  INFO(what);
  CHECK(says(what, {"op shrink", "expected a state that has rows"}));
}

TEST_CASE("003: taken literally the memory keeps the rows of sequences that are over, and the error names shrink") {
  const std::string what = run_failure<millrace::ShapeError>([] { return forward_logic({.shrinks = false}); }, sentences());
  INFO(what);
  CHECK(says(what, {"shrink"}));
}

TEST_CASE("003: taken literally std::vector slots are given anew in each iteration, here a slot is written once") {
  const std::string what = run_failure<millrace::Error>([] {
    const TensorArray memories(constant(2), "memories");
    Var i = 0;
    {
      WhileLoop loop = while_loop({i});
      const auto frame = loop.frame();
      loop.break_if(equal(i, 2));
      memories[0] = i;
      i.update(i + 1);
    }
    return memories.read(0);
  });
  INFO(what);
  CHECK(says(what, {"slot 0 of array 'memories'", "a slot is written once"}));
}

// ---- "syntax sugar to compose operators, such as while, split_lod_tensor_to_timesteps, restore_lod_tensor_from_timesteps" ----

TEST_CASE("003: the ops by the names that the design gives them") {
  const LoDTensor y = built(
      [] {
        const std::vector<Var> made = call("split_lod_tensor_to_timesteps", {input("input", VarType(DType::f32, {DDim::unknown, 1}, 1))});
        const TensorArray steps = TensorArray::of(made[0]);
        const Var n = steps.size();
        const TensorArray out(n, Order(made[1]));
        Var i = 0, more = less(i, n);
        {
          WhileLoop loop = while_op(more, {i});
          const auto frame = loop.frame();
          out[i] = steps[i] * 10.0;
          i.update(i + 1);
          more.update(less(i, n));
        }
        return call1("restore_lod_tensor_from_timesteps", {out.var(), made[1]});
      },
      {{"input", sentences().at("input")}});
  CHECK(y.tensor().to_vector<float>() == Floats{10, 20, 30, 40, 50, 60});
  CHECK(y.lod() == LoD::from_lengths({{2, 1, 3}}));
}

// ---- "The fragment program of a while op and its sub-block" ----
//
//     program {
//       block {
//         idx: 0  # main block
//         parent_idx: -1  # -1 means no parent
//         ops: {
//           ...  # ops before while op
//           op {
//             inputs: ...,
//             outputs: ...,
//             type: "while",
//             attrs: {
//               attr {
//                 name: 'sub_block',
//                 type: 'BlockID',
//                 value: 1  # the sub block id of this while op is 1
//               }
//             }
//           }
//           ...  # ops after while op
//         }
//       }
//       block {
//         idx: 1  # the sub_block of while_op
//         parent_idx: 0  # parent of while block is the main block
//         ops: {
//           ... # ops inside while
//         }
//       }
//     }

namespace {

const std::string fragment = R"(millrace 1 "fragment"
input "n" = n: i64[]
block { idx: 0 parent_idx: -1
  zero: i64[] = constant() {value=i64[](0)}
  one: i64[] = constant() {value=i64[](1)}
  go: bool[] = less(A=zero, B=n)
  last: i64[], stopped: bool[] = while(Carried=[zero, go]) {sub_block=@1, condition=1}
  y: i64[] = neg(X=last)
}
block { idx: 1 parent_idx: 0
  params i: i64[], more: bool[]
  next: i64[] = add(A=i, B=one)
  again: bool[] = less(A=next, B=n)
  results next, again
}
output "y" = y
output "stopped" = stopped
)";

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

std::string refusal(const std::string& text) {
  try {
    millrace::parse_program(text, {});
  } catch (const ProgramError& error) {
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("003: the fragment of a while op and its sub-block is a program's text, with the same fields") {
  const Program program = millrace::parse_program(fragment, {});
  CHECK(millrace::print(program) == fragment);
  CHECK(program.block(0).idx == 0);
  CHECK(program.block(0).parent_idx == -1);
  CHECK(program.block(1).idx == 1);
  CHECK(program.block(1).parent_idx == 0);
  const millrace::Op& op = program.block(0).ops.at(3);
  CHECK(op.type == "while");
  CHECK(op.attributes.get<millrace::BlockId>("sub_block").index == 1);
  const auto result = run_fifo(millrace::run(program, {{"n", Tensor::scalar<std::int64_t>(4)}}));
  CHECK(result["y"].tensor().item() == -4);
}

// ---- "Condition: A bool scalar. […] it should be updated inside the sub-block of while op unless it is an endless loop. The condition
// variable will
//      be an output variable of the while operator, too." ----

TEST_CASE("003: the condition is a bool scalar, an output too, and a body that never updates it is refused") {
  const auto result = run_fifo(millrace::run(millrace::parse_program(fragment, {}), {{"n", Tensor::scalar<std::int64_t>(4)}}));
  CHECK(result["stopped"].tensor().item_int() == 0);
  CHECK(says(refusal(replaced(fragment, "results next, again", "results next, more")),
             {"line 7", "op while", "the loop can never end", "'more'"}));
  CHECK(
      says(refusal(replaced(fragment, "condition=1", "condition=0")), {"line 7", "op while", "expected a boolean scalar", "'i' of i64[]"}));
}

// ---- "The pseudocode is:" ----
//
//     auto global_scopes = ...
//     vector<Scope> step_scopes;
//     while(cond) {
//       auto cur_scope = global_scopes.NewScope()
//       step_scopes.push_back(cur_scope);
//       executor.Run(cur_scope, sub_block);
//     }

TEST_CASE("003: each iteration has a scope of its own, a vector of them is an output, and inference keeps few") {
  const Program program = millrace::parse_program(fragment, {});
  const Feeds feeds{{"n", Tensor::scalar<std::int64_t>(50)}};
  millrace::RunOptions options;
  options.keep_step_scopes = true;
  const auto kept = run_fifo(millrace::run(program, feeds, options));
  CHECK(kept.step_scopes().size() == 50);
  for (const std::int64_t iteration : {0, 1, 49}) {
    CHECK(kept.step_value(1, iteration, "i")->tensor().tensor().item_int() == iteration);
    CHECK(kept.step_value(1, iteration, "next")->tensor().tensor().item_int() == iteration + 1);
  }
  const auto lean = run_fifo(millrace::run(program, feeds));
  CHECK(lean.step_scopes().empty());
  CHECK(lean.peak_step_scopes() <= 9);  // the iterations that may be under way at once, and the next
}

// ---- What the listings of 000, 001 and 003 say when taken literally: the same errors from programs ----

TEST_CASE("taken literally: starting at step 1 leaves slot 0 unwritten, and stack names it") {
  const std::string what = run_failure<millrace::Error>([] {
    const TensorArray outputs(constant(12), "step_outputs");
    Var step = 1;
    {
      WhileLoop loop = while_loop({step});
      const auto frame = loop.frame();
      loop.break_if(equal(step, 12));
      outputs[step] = step;
      step.update(step + 1);
    }
    return outputs.stack();
  });
  INFO(what);
  CHECK(says(what, {"slot 0 of array 'step_outputs'", "tensor_array_stack"}));
}

TEST_CASE("taken literally: states.read(step), which nobody writes, is a deadlock that names array, slot and loop") {
  const std::string what = run_failure<millrace::Error>([] {
    const TensorArray states = TensorArray::typed(3, VarType(DType::f32, {}), "states");
    Var step = 0, last = 0.0;
    {
      WhileLoop loop = while_loop({step, last});
      const auto frame = loop.frame();
      loop.break_if(equal(step, 3));
      last.update(states.read(step));
      step.update(step + 1);
    }
    return last;
  });
  INFO(what);
  CHECK(says(what, {"slot 0 of array 'states'", "while", "iteration 0"}));
}

TEST_CASE("taken literally: level 1 of an input with one level is refused with the levels present, when the program is built") {
  const std::string what =
      build_refusal([] { unpack(input("sentence", VarType(DType::f32, {DDim::unknown}, 1)), 1 /*level*/, sort_by_length); });
  INFO(what);
  CHECK(says(what, {"op unpack", "a level of LoD that is present (0), found 1", "'sentence'"}));
}
