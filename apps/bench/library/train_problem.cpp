// SPDX-License-Identifier: Apache-2.0
#include <bench/library/train_problem.h>

#include <cmath>
#include <numeric>
#include <random>
#include <utility>

#include <bench/library/lstm_problem.h>
#include <millrace/runtime/autodiff/append_backward.h>
#include <millrace/runtime/builder/losses.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/layers/linear.h>
#include <millrace/runtime/layers/lstm.h>
#include <millrace/runtime/training/extract.h>

namespace millrace::bench {
namespace {

using build::Var;

Var vector_of(const std::string& name, std::int64_t size, float value) {
  Tensor made(DType::f32, DDim{size});
  float* to = made.mutable_data<float>();
  std::fill(to, to + size, value);
  return build::parameter(name, made);
}

/// h' of the layer-norm LSTM of one step (Ba, Kiros, Hinton 2016, equations 20 to 22).
layers::Cell layer_norm_cell(const TrainProblem& problem) {
  using namespace build;
  const std::int64_t h = problem.hidden();
  const Var w = parameter("lstm_0_input", problem.w), r = parameter("lstm_0_recurrent", problem.r),
            b = parameter("lstm_0_bias", problem.bias);
  const Var scale_x = vector_of("scale_x", 4 * h, 1), scale_h = vector_of("scale_h", 4 * h, 1), scale_c = vector_of("scale_c", h, 1);
  const Var zero = vector_of("shift_x", 4 * h, 0), zero_h = vector_of("shift_h", 4 * h, 0), zero_c = vector_of("shift_c", h, 0);
  return [=](const Var& x, const std::vector<Var>& s) {
    const Var sum = (layer_norm(matmul(s[0], r), scale_h, zero_h) + b) + layer_norm(matmul(x, w), scale_x, zero);
    const std::vector<Var> a = split(sum, -1, {h, h, h, h});
    const Var c = sigmoid(a[1]) * s[1] + sigmoid(a[0]) * tanh(a[2]);
    const Var next = sigmoid(a[3]) * tanh(layer_norm(c, scale_c, zero_c));
    return layers::CellStep{next, {next, c}};
  };
}

Var last_state(const TrainProblem& problem, const Var& x, bool layer_norm) {
  if (layer_norm) {
    const layers::CellState state{problem.hidden()};
    return layers::unroll(layer_norm_cell(problem), {x}, {state, state}).last[0];
  }
  layers::LstmWeights weights;
  weights.input = problem.w;
  weights.recurrent = problem.r;
  weights.bias = problem.bias;
  return layers::lstm({x}, {weights}).h[0];
}

}  // namespace

TrainProblem make_train_problem(std::int64_t features, std::int64_t hidden, std::int64_t classes, std::vector<std::int64_t> lengths) {
  const auto near = [](std::int64_t units) { return 1 / std::sqrt(static_cast<float>(units)); };
  const std::int64_t rows = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  TrainProblem made;
  made.x = random_tensor(DDim{rows, features}, 1);
  made.w = random_tensor(DDim{features, 4 * hidden}, 2, near(features));
  made.r = random_tensor(DDim{hidden, 4 * hidden}, 3, near(hidden));
  made.bias = random_tensor(DDim{4 * hidden}, 4, 0.1f);
  made.out = random_tensor(DDim{hidden, classes}, 5, near(hidden));
  made.shift = random_tensor(DDim{classes}, 6, 0.1f);
  std::vector<std::int64_t> labels;
  for (std::size_t i = 0; i < lengths.size(); ++i) labels.push_back(static_cast<std::int64_t>(i) % classes);
  made.labels = Tensor::from(labels, DDim{static_cast<std::int64_t>(labels.size())});
  made.lengths = std::move(lengths);
  return made;
}

std::vector<std::int64_t> vowel_lengths() {
  std::mt19937_64 random(11);
  std::vector<std::int64_t> lengths;
  for (int i = 0; i < 27; ++i) lengths.push_back(7 + static_cast<std::int64_t>(random() % 20));
  return lengths;
}

Program classifier(const TrainProblem& problem, bool layer_norm) {
  Program program;
  const build::Guard guard(program);
  const Var x = build::input("x", VarType(DType::f32, {DDim::unknown, problem.features()}, 1));
  const Var target = build::input("target", VarType(DType::i64, {DDim::unknown}));
  const Var scores = layers::linear(last_state(problem, x, layer_norm), {problem.out, problem.shift});
  build::output("loss", build::softmax_cross_entropy_loss(scores, target));
  return program;
}

Feeds feeds_of(const TrainProblem& problem) {
  return {{"x", Value(LoDTensor(problem.x, LoD::from_lengths({problem.lengths})))}, {"target", Value(problem.labels)}};
}

Program with_backward(const Program& forward, const VarType& dy) {
  Program program = training::with_fed_weights(forward);
  BackwardOptions options;
  for (const Program::Port& port : program.inputs()) options.with_respect_to.push_back(port.var);
  options.seed = program.add_input("dy", dy);
  for (const Gradient& each : append_backward(program, program.outputs()[0].var, options))
    program.add_output("d_" + program.var(each.var).name, each.gradient);
  return program;
}

}  // namespace millrace::bench
