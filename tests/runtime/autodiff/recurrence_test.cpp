// SPDX-License-Identifier: Apache-2.0
// The backward of recurrences over ragged rows.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/autodiff/append_backward.h>
#include <millrace/runtime/builder/dynamic_rnn.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/builder/static_rnn.h>
#include <millrace/runtime/layers/gru.h>
#include <millrace/runtime/layers/lstm.h>
#include <millrace/runtime/layers/rnn.h>
#include <millrace/runtime/program/text.h>

#include "runtime/loops/cpu_fused/fused_cells.h"
#include "support/central_difference.h"
#include "support/random_lod.h"
#include "support/with_gradients.h"

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::build;

namespace {

/// A program whose output `loss` is Σ weight · y, with weight fed as `dy`.
struct Loss {
  Program program;
  VarId loss = no_var;
};

/// The gradients of inputs and parameters as outputs d_NAME; gives the names.
std::vector<std::string> with_all_gradients(Program& program, VarId loss, const BackwardOptions& given = {}) {
  BackwardOptions options = given;
  if (options.with_respect_to.empty()) {
    for (const Program::Port& port : program.inputs())
      if (port.name != "dy") options.with_respect_to.push_back(port.var);
    for (const auto& [var, value] : program.parameters()) options.with_respect_to.push_back(var);
  }
  return with_gradients(program, loss, options);
}

/// Prints, parses and prints the same.
void expect_round_trip(const Program& program) {
  std::map<std::string, Tensor> weights;
  for (const auto& [var, value] : program.parameters()) weights.emplace(program.var(var).name, value);
  const std::string printed = print(program);
  CHECK(print(parse_program(printed, weights, program.shared_registry())) == printed);
}

/// A cell of tests over ragged rows, with boots; `dtype` of all.
Loss loss_over(const CellCase& each, DType dtype, bool reverse) {
  Loss made;
  {
    const Guard guard(made.program);
    const Var x = input("x", VarType(dtype, {DDim::unknown, each.c}, 1));
    const Var dy = input("dy", VarType(dtype, {DDim::unknown, each.widths[0]}, 1));
    std::vector<CellState> states;
    for (std::size_t i = 0; i < each.widths.size(); ++i) {
      states.push_back({each.widths[i]});
      states.back().initial = input("boot" + std::to_string(i), VarType(dtype, {DDim::unknown, each.widths[i]}));
    }
    const layers::Unrolled unrolled = layers::unroll(each.cell, {x}, states, reverse);
    Var loss = sum(drop_lod(unrolled.output) * drop_lod(dy));
    for (const Var& last : unrolled.last) loss = loss + sum(last * last);
    output("loss", loss);
    made.loss = loss.id();
  }
  return made;
}

Feeds feeds_of(Random& random, const CellCase& each, const LoD& lod, DType dtype) {
  Feeds feeds = feeds_for(random, each, lod, true, dtype);
  feeds.emplace("dy", LoDTensor(random_tensor(random, {lod.rows(), each.widths[0]}, 1, dtype), lod));
  return feeds;
}

CellCase tanh_cell(std::uint64_t seed, std::int64_t c, std::int64_t h, DType dtype) {
  return {"tanh", c, {h}, [=](const Var& x, const std::vector<Var>& states) {
            Weights weights(seed, dtype);
            const Var from_input = matmul(x, weights({c, h}));
            const Var from_state = matmul(states[0], weights({h, h}));
            const Var next = tanh(from_input + from_state + weights({h}));
            return CellStep{next, {next}};
          }};
}

/// A cell with two layer norms, one of them over a product.
CellCase norm_cell(std::uint64_t seed, std::int64_t c, std::int64_t h, DType dtype) {
  return {"layer norms", c, {h}, [=](const Var& x, const std::vector<Var>& states) {
            Weights weights(seed, dtype);
            const Var sum = layer_norm(matmul(states[0], weights({h, h})), weights({h}), weights({h})) + matmul(x, weights({c, h}));
            const Var next = layer_norm(tanh(sum), weights({h}), weights({h}));
            return CellStep{next, {next}};
          }};
}

TEST_CASE("the backward of a ragged recurrence is a recurrence that runs fused, with the bits of the interpreted one") {
  Random random(5);
  for (const auto& [each, reverse] : std::vector<std::pair<CellCase, bool>>{{tanh_cell(3, 3, 4, DType::f32), false},
                                                                            {tanh_cell(3, 3, 4, DType::f32), true},
                                                                            {norm_cell(4, 3, 37, DType::f32), false},
                                                                            {norm_cell(4, 3, 37, DType::f32), true}}) {
    INFO(each.name);
    Loss made = loss_over(each, DType::f32, reverse);
    with_all_gradients(made.program, made.loss);
    expect_round_trip(made.program);
    for (const auto& lengths : std::vector<LoD::Level>{{3, 0, 5, 1}, {1}, {0, 0}, {}, {64, 2}}) {
      const LoD lod = LoD::from_lengths({lengths});
      CHECK(compare(made.program, feeds_of(random, each, lod, DType::f32)) == (lod.rows() > 0 ? 2 : 0));
    }
  }
}

/// Σ of the outputs of tanh(s + b) and x_t · b, and of a state that is the same in each iteration.
Loss same_in_each_iteration(bool ragged) {
  Loss made;
  {
    const Guard guard(made.program);
    const Var s = input("s", VarType(DType::f64, {2, 3})), b = input("b", VarType(DType::f64, {3}));
    Var total;
    if (ragged) {
      const Var x = input("x", VarType(DType::f64, {DDim::unknown, 3}, 1));
      DynamicRNN rnn;
      {
        const auto block = rnn.block();
        const Var now = rnn.step_input(x), h = rnn.memory(DType::f64, {3}), same = tanh(s + b);
        rnn.update_memory(h, same);
        rnn.output(same);
        rnn.output(now * b + h);
      }
      total = sum(drop_lod(rnn.outputs()[0])) + sum(drop_lod(rnn.outputs()[1]));
    } else {
      const Var x = input("x", VarType(DType::f64, {4, 2, 3}));
      StaticRNN rnn;
      {
        const auto block = rnn.block();
        const Var now = rnn.step_input(x);
        rnn.output(tanh(s + b));
        rnn.output(now * b);
      }
      total = sum(rnn.outputs()[0]) + sum(rnn.outputs()[1]);
    }
    output("loss", total);
    made.loss = total.id();
  }
  return made;
}

TEST_CASE("what a loop writes the same in each iteration gets the gradients of all iterations") {
  Random random(6);
  for (const bool ragged : {false, true}) {
    INFO("ragged ", ragged);
    Loss made = same_in_each_iteration(ragged);
    with_all_gradients(made.program, made.loss);
    Feeds feeds{{"s", random_tensor(random, {2, 3}, 1, DType::f64)}, {"b", random_tensor(random, {3}, 1, DType::f64)}};
    const LoD lod = LoD::from_lengths({{4, 4}});
    if (ragged)
      feeds.emplace("x", LoDTensor(random_tensor(random, {8, 3}, 1, DType::f64), lod));
    else
      feeds.emplace("x", random_tensor(random, {4, 2, 3}, 1, DType::f64));
    expect_gradients(made.program, feeds, {"s", "b", "x"});
  }
}

TEST_CASE("the backward loop unpacks the rows that set its order once") {
  Loss made = loss_over(tanh_cell(3, 3, 4, DType::f32), DType::f32, false);
  with_all_gradients(made.program, made.loss);
  std::map<VarId, int> unpacked;  // by the rows of the loop
  for (const Op& op : made.program.block(0).ops)
    if (op.type == "unpack") ++unpacked[op.inputs[0]];
  CHECK(unpacked.size() == 2);
  for (const auto& [rows, times] : unpacked) CHECK(times == 1);
  for (const Op& op : made.program.block(0).ops) CHECK(op.type != "same_steps");
}

TEST_CASE("no sequences give gradients of the extents of the weights, one column wide too") {
  for (const std::int64_t h : {1, 2}) {
    const CellCase each = tanh_cell(1, 4, h, DType::f64);
    Loss made = loss_over(each, DType::f64, false);
    const std::vector<std::string> names = with_all_gradients(made.program, made.loss);
    for (const auto& lengths : std::vector<LoD::Level>{{}, {0}, {2, 0}}) {
      Random random(3);
      expect_gradients(made.program, feeds_of(random, each, LoD::from_lengths({lengths}), DType::f64), names);
    }
  }
}

TEST_CASE("gradients of a ragged recurrence equal central differences") {
  for (const std::uint64_t seed : seeds(6)) {
    INFO("seed ", seed);
    Random random(seed);
    const CellCase each = tanh_cell(seed, random.between(1, 4), random.between(1, 5), DType::f64);
    Loss made = loss_over(each, DType::f64, random.coin());
    const std::vector<std::string> names = with_all_gradients(made.program, made.loss);
    const LoD lod = random_lod(random, 1, 5);
    DifferenceOptions options;
    options.seed = seed;
    expect_gradients(made.program, feeds_of(random, each, lod, DType::f64), names, options);
  }
}

}  // namespace
