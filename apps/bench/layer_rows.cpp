// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include <fmt/format.h>

#include <bench/families.h>
#include <bench/library/our_lstm.h>
#include <bench/machine.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/layers/lstm.h>

namespace millrace::bench {
namespace {

/// `layers` LSTMs of H units, one over the other; or both directions of each.
struct Stack {
  std::size_t layers = 1;
  bool both = false;
  bool dense = false;  ///< [T, N, H], as a graph of ONNX has it, instead of rows with lengths
};

Program stack_program(const LstmProblem& problem, const Stack& stack) {
  const auto [layers, both, dense] = stack;
  Program program;
  build::Guard guard(program);
  const std::int64_t h = problem.hidden;
  const VarType type = dense ? VarType(DType::f32, {DDim::unknown, DDim::unknown, h}) : VarType(DType::f32, {DDim::unknown, h}, 1);
  const build::Var x = build::input("x", type);
  std::vector<layers::LstmWeights> weights;
  for (std::size_t i = 0; i < layers * (both ? 2 : 1); ++i) {
    layers::LstmWeights made;
    const std::int64_t width = both && i > 1 ? 2 * h : h;
    made.input = random_tensor(DDim{width, 4 * h}, 10 + i, 1 / std::sqrt(static_cast<float>(width)));
    made.recurrent = random_tensor(DDim{h, 4 * h}, 20 + i, 1 / std::sqrt(static_cast<float>(h)));
    made.bias = random_tensor(DDim{4 * h}, 30 + i, 0.1f);
    weights.push_back(std::move(made));
  }
  layers::LstmOptions options;
  if (both) options.direction = layers::Direction::bidirectional;
  build::output("y", layers::lstm({x}, weights, options).y);
  return program;
}

void layer_row(Context& context, const Stack& stack, std::int64_t hidden, std::int64_t batch, int threads) {
  const auto [layers, both, dense] = stack;
  const std::int64_t steps = context.quick ? 32 : 128;
  const LstmProblem problem = make_problem(hidden, std::vector<std::int64_t>(static_cast<std::size_t>(batch), steps));
  const Program program = stack_program(problem, stack);
  const Feeds feeds = dense ? Feeds{{"x", problem.x.reshape(DDim{steps, batch, hidden})}} : feeds_of(problem);
  const OurProgram ours(program, feeds, threads), alone(program, feeds, 1);
  const auto loops = static_cast<double>(layers * (both ? 2 : 1));
  Row row;
  row.id = "layers";
  row.shape = fmt::format("{} layer{}{}{}, {} steps, B{} H{} f32, {}", layers, layers == 1 ? "" : "s", both ? " both ways" : "",
                          dense ? " dense" : "", steps, batch, hidden, threads_text(threads));
  row.peer_name = "ours, 1 thread";
  row.goal = 1.5;
  const std::int64_t products = problem.r.elements() * 2;
  row.floor = context.machine->floor(loops * 2.0 * static_cast<double>(products * problem.rows()), products * 4,
                                     loops * static_cast<double>(steps) / 2, threads);
  if (difference(ours.output("y").tensor(), alone.output("y").tensor()) != 0) {
    row.note = "not measured: more threads give other numbers";
    context.emit(std::move(row));
    return;
  }
  emit_pair(context, row, ours.timer(), alone.timer(), "");
}

}  // namespace

void measure_layers(Context& context) {
  const std::vector<std::int64_t> widths = context.quick ? std::vector<std::int64_t>{64} : std::vector<std::int64_t>{128, 256};
  const std::vector<std::int64_t> batches = context.quick ? std::vector<std::int64_t>{1} : std::vector<std::int64_t>{1, 8};
  for (const int threads : context.threads) {
    if (threads == 1) continue;
    for (const std::int64_t hidden : widths)
      for (const std::int64_t batch : batches) {
        for (const std::size_t layers : {std::size_t{2}, std::size_t{4}}) layer_row(context, {layers}, hidden, batch, threads);
        layer_row(context, {4, false, true}, hidden, batch, threads);
        layer_row(context, {1, true}, hidden, batch, threads);
        layer_row(context, {3, true, true}, hidden, batch, threads);
        if (batch == 1 && hidden >= 256) layer_row(context, {}, hidden, batch, threads);
      }
  }
}

}  // namespace millrace::bench
