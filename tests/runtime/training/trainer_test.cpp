// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/losses.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/layers/linear.h>
#include <millrace/runtime/layers/lstm.h>
#include <millrace/runtime/layers/narrow.h>
#include <millrace/runtime/training/batches.h>
#include <millrace/runtime/training/dataset.h>
#include <millrace/runtime/training/extract.h>
#include <millrace/runtime/training/initialiser.h>
#include <millrace/runtime/training/trainer.h>

#include "support/bytes.h"
#include "support/program_runs.h"
#include "support/random_tensor.h"

using namespace millrace;
using namespace millrace::training;
using millrace::testing::Random;
using millrace::testing::random_tensor;

namespace {

/// Sequences of three features, the first of which is mostly above 0 in those of class 1; some are empty.
Dataset shifted(std::uint64_t seed, std::int64_t count) {
  Random random(seed);
  LoD::Level lengths;
  for (std::int64_t i = 0; i < count; ++i) lengths.push_back(random.between(0, 19) == 0 ? 0 : random.between(1, 9));
  const LoD lod = LoD::from_lengths({lengths});
  Tensor rows = random_tensor(random, {lod.rows(), 3});
  std::vector<std::int64_t> classes;
  for (std::int64_t i = 0; i < count; ++i) {
    classes.push_back(random.between(0, 1));
    const auto [begin, end] = lod.row_range(0, i, i + 1);
    for (std::int64_t row = begin; row < end; ++row) rows[DDim{row, 0}] = rows[DDim{row, 0}] + (classes.back() == 1 ? 0.8 : -0.8);
  }
  return {LoDTensor(rows, lod), Tensor::from(classes, {count}), false, {}, "shifted"};
}

// clang-format off
// [trainer]
Program sequence_classifier(std::int64_t features, std::int64_t units, std::int64_t classes) {
  Program program;
  const build::Guard guard(program);
  const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, features}, 1));      // rows of sequences
  const build::Var target = build::input("target", VarType(DType::i64, {DDim::unknown}));         // a class for each
  const LayerInit init(/*seed=*/1);
  const layers::LstmResult lstm = layers::lstm({x}, {init.lstm("lstm", features, units)});
  const build::Var scores = layers::linear(lstm.h[0], init.linear("linear", units, classes));
  build::output("scores", scores);
  build::output("loss", build::softmax_cross_entropy_loss(scores, target));
  return program;
}

/// Gives the trained program, and its loss in the last epoch.
std::pair<Program, double> train(const Dataset& data, int epochs) {
  TrainerOptions options;
  options.optimizer.kind = OptimizerOptions::Kind::adam;
  options.schedule.base = 0.01;
  options.clipping.norm = 1;
  Trainer trainer(sequence_classifier(3, 16, 2), options);
  double loss = 0;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    loss = 0;
    const auto order = permutation(data.sequences(), /*seed=*/1, static_cast<std::uint64_t>(epoch));
    for (const auto& chosen : deal_batches(data.x.lod(), order, {.sequences = 16})) {
      const Dataset batch = data.select(chosen);
      const double count = static_cast<double>(chosen.size()) / static_cast<double>(data.sequences());
      loss += trainer.step({{"x", batch.x}, {"target", batch.targets}}).loss * count;
    }
  }
  return {trainer.trained({"scores"}), loss};
}
// [trainer]
// clang-format on

Tensors steps(Trainer& trainer, const Dataset& data, int from, int to) {
  for (int i = from; i < to; ++i) {
    const std::vector<std::vector<std::int64_t>> batches =
        deal_batches(data.x.lod(), permutation(data.sequences(), 2, static_cast<std::uint64_t>(i)), {.sequences = 8});
    const Dataset batch = data.select(batches[0]);
    trainer.step({{"x", batch.x}, {"target", batch.targets}});
  }
  return trainer.weights();
}

bool same(const Tensors& a, const Tensors& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [name, tensor] : a)
    if (tensor.to_vector<float>() != b.at(name).to_vector<float>()) return false;
  return true;
}

}  // namespace

TEST_CASE("weights of bf16 learn by steps that are too small for bf16, because the optimizer holds f32 masters") {
  const Dataset data = shifted(1, 200);
  Program wide = sequence_classifier(3, 16, 2);
  layers::narrow_weights(wide, DType::bf16);
  const Program model = extract(wide, {"scores", "loss"});
  TrainerOptions options;
  options.optimizer.kind = OptimizerOptions::Kind::adam;
  options.schedule.base = 4e-4;  // a bf16 of 0.25 has neighbours 0.002 away
  Trainer trainer(model, options);
  const Tensors before = trainer.weights();
  const Feeds all{{"x", data.x}, {"target", data.targets}};
  const double first = trainer.step(all).loss;
  for (int step = 0; step < 300; ++step) trainer.step(all);
  const double last = trainer.step(all).loss;
  INFO("loss ", first, " at first, ", last, " at last");
  CHECK(last < first - 0.05);
  std::int64_t narrow = 0;
  for (const auto& [name, weight] : trainer.weights()) narrow += weight.dtype() == DType::bf16 ? 1 : 0;
  CHECK(narrow == 3);  // both matrices of the LSTM and that of the linear layer
  Checkpoint saved;
  trainer.save(saved);
  CHECK(saved.tensors.at("optimizer").at("lstm_0_recurrent_bf16/master").dtype() == DType::f32);
  Trainer other(model, options);
  other.restore(saved);
  CHECK(other.step(all).loss == trainer.step(all).loss);
}

TEST_CASE("a model of one's own learns, and what was trained runs alone") {
  const Dataset data = shifted(1, 200);
  const auto [program, loss] = train(data, 15);
  CHECK(loss < 0.35);  // ln 2 of who knows nothing
  const Dataset other = shifted(2, 100);
  const Tensor scores = testing::on_cpu(program, {{"x", other.x}})["scores"].tensor();
  int right = 0;
  for (std::int64_t i = 0; i < 100; ++i)
    right +=
        (scores[DDim{i, 1}] > scores[DDim{i, 0}] ? 1 : 0) == other.targets.to_vector<std::int64_t>()[static_cast<std::size_t>(i)] ? 1 : 0;
  CHECK(right > 85);
}

TEST_CASE("the same seed gives the same bits, whatever the threads and the backend") {
  const Dataset data = shifted(3, 60);
  Trainer first(sequence_classifier(3, 8, 2));
  const Tensors wanted = steps(first, data, 0, 6);
  for (const int threads : {1, 2, 3}) {
    TrainerOptions options;
    options.threads = threads;
    Trainer again(sequence_classifier(3, 8, 2), options);
    CHECK(same(steps(again, data, 0, 6), wanted));
  }
  TrainerOptions options;
  options.run.backend = Backend::interpreted;
  Trainer interpreted(sequence_classifier(3, 8, 2), options);
  CHECK(same(steps(interpreted, data, 0, 6), wanted));
}

TEST_CASE("layers of a stack run side by side forward and backward, with the bits of one behind the other") {
  Random random(5);
  const LayerInit init(/*seed=*/1);
  Program program;
  {
    const build::Guard guard(program);
    const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, 8}, 1));
    std::vector<layers::LstmWeights> layers;
    for (int layer = 0; layer < 4; ++layer) layers.push_back(init.lstm("lstm_" + std::to_string(layer), 8, 8));
    const build::Var y = layers::lstm({x}, layers).y;
    build::output("loss", build::mean_squared_error(y, build::input("target", VarType(DType::f32, {DDim::unknown, 8}))));
  }
  const LoD lod = LoD::from_lengths({{9, 0, 4, 12, 1}});
  const Feeds feeds{{"x", LoDTensor(random_tensor(random, {lod.rows(), 8}), lod)}, {"target", random_tensor(random, {lod.rows(), 8})}};
  const auto trained = [&](int threads, std::int64_t* together) {
    TrainerOptions options;
    options.threads = threads;
    Trainer trainer(program, options);
    for (int step = 0; step < 3; ++step) *together = trainer.step(feeds).outputs.loops_side_by_side;
    return trainer.weights();
  };
  std::int64_t together = 0, alone = 0;
  const Tensors wanted = trained(1, &alone);
  const Tensors found = trained(2, &together);
  CHECK(alone == 0);
  CHECK(together == 8);  // four forward, four backward
  CHECK(same(found, wanted));
}

TEST_CASE("a trainer that goes on from a checkpoint has the bits of one that never stopped") {
  const testing::ScratchFolder folder;
  const Dataset data = shifted(4, 60);
  Trainer whole(sequence_classifier(3, 8, 2)), before(sequence_classifier(3, 8, 2)), after(sequence_classifier(3, 8, 2));
  const Tensors wanted = steps(whole, data, 0, 9);
  steps(before, data, 0, 4);
  Checkpoint checkpoint;
  before.save(checkpoint);
  CheckpointFolder(folder.path()).save(checkpoint);
  after.restore(*CheckpointFolder(folder.path()).load());
  CHECK(after.steps() == 4);
  CHECK(same(steps(after, data, 4, 9), wanted));
}

TEST_CASE("a frozen weight stays, and one that is not there is refused") {
  TrainerOptions options;
  options.frozen = {"linear_bias"};
  Trainer trainer(sequence_classifier(3, 4, 2), options);
  const std::vector<float> bias = trainer.weights().at("linear_bias").to_vector<float>();
  const Tensors trained = steps(trainer, shifted(5, 20), 0, 2);
  CHECK(trained.at("linear_bias").to_vector<float>() == bias);
  options.frozen = {"none"};
  CHECK_THROWS_WITH_AS(Trainer(sequence_classifier(3, 4, 2), options), doctest::Contains("'none'"), ArgumentError);
  options.frozen.clear();
  options.loss = "scores";
  CHECK_THROWS_AS(Trainer(sequence_classifier(3, 4, 2), options), ProgramError);
}

TEST_CASE("a trainer refuses numbers out of their range before its first step") {
  const Program model = sequence_classifier(3, 4, 2);
  const auto refused = [&](const char* why, const auto& change) {
    TrainerOptions options;
    change(options);
    CHECK_THROWS_WITH_AS(Trainer(model, options), doctest::Contains(why), ArgumentError);
  };
  refused("clip: expected a norm of at least 0, found -1", [](TrainerOptions& to) { to.clipping.norm = -1; });
  refused("clip: expected a value of at least 0, found nan", [](TrainerOptions& to) { to.clipping.value = std::nan(""); });
  refused("schedule: expected a base rate of at least 0, found -1", [](TrainerOptions& to) { to.schedule.base = -1; });
  refused("schedule: expected at least 1 step from one factor to the next, found 0",
          [](TrainerOptions& to) { to.schedule = {.kind = Schedule::Kind::step, .warmup = 5, .every = 0}; });
  refused("schedule: expected a finite factor above 0, found inf",
          [](TrainerOptions& to) { to.schedule = {.kind = Schedule::Kind::exponential, .factor = INFINITY}; });
  refused("schedule: expected a least rate of at least 0, found nan",
          [](TrainerOptions& to) { to.schedule = {.kind = Schedule::Kind::cosine, .warmup = 5, .least = std::nan("")}; });
  refused("momentum", [](TrainerOptions& to) { to.optimizer.momentum = -1; });
}

TEST_CASE("a forget bias without a bias is no weight that is trained") {
  Random random(4);
  const layers::LstmWeights weights{random_tensor(random, {3, 16}), random_tensor(random, {4, 16}), {}, {}, {}};
  const auto model = [&](const layers::LstmWeights& of, double forget_bias) {
    Program program;
    const build::Guard guard(program);
    layers::LstmOptions options;
    options.forget_bias = forget_bias;
    const build::Var y = layers::lstm({build::input("x", VarType(DType::f32, {DDim::unknown, 3}, 1))}, {of}, options).y;
    build::output("loss", build::reduce(build::drop_lod(y) * build::drop_lod(y), "mean", {}, false));
    return program;
  };
  layers::LstmWeights biased = weights;
  std::vector<float> ones(16, 0.0F);
  std::fill(ones.begin() + 4, ones.begin() + 8, 1.0F);
  biased.bias = Tensor::from(ones, {16});
  TrainerOptions frozen;
  frozen.frozen = {"lstm_0_bias"};
  Trainer constant(model(weights, 1)), weight(model(biased, 0), frozen);
  CHECK(!constant.weights().contains("lstm_0_bias"));
  for (int i = 0; i < 3; ++i) {
    const LoD lod = LoD::from_lengths({{2, 0, 3}});
    const Feeds feeds{{"x", LoDTensor(random_tensor(random, {5, 3}), lod)}};
    CHECK(constant.step(feeds).loss == weight.step(feeds).loss);
  }
  for (const auto& [name, value] : constant.weights()) CHECK(value.to_vector<float>() == weight.weights().at(name).to_vector<float>());
}

TEST_CASE("a loss that is no number is an error that names the step, and changes nothing") {
  Trainer trainer(sequence_classifier(3, 4, 2));
  const Dataset data = shifted(6, 20);
  const Tensors before = steps(trainer, data, 0, 2);
  Dataset broken = data.select(std::vector<std::int64_t>{0, 1, 2, 3, 4, 5});
  Tensor rows = Tensor::from(std::vector<float>(static_cast<std::size_t>(broken.rows() * 3), std::nanf("")), {broken.rows(), 3});
  CHECK_THROWS_WITH_AS(trainer.step({{"x", LoDTensor(rows, broken.x.lod())}, {"target", broken.targets}}),
                       doctest::Contains("step 2: expected a finite loss, found nan"), TrainingError);
  CHECK(trainer.steps() == 2);
  CHECK(same(trainer.weights(), before));
}

TEST_CASE("weights of bf16 are trained through master copies") {
  Program program;
  {
    const build::Guard guard(program);
    const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, 3}, 1));
    const build::Var target = build::input("target", VarType(DType::i64, {DDim::unknown}));
    const LayerInit init(1);
    const layers::LstmResult lstm = layers::lstm({x}, {init.lstm("lstm", 3, 8)}, {.weights = DType::bf16});
    build::output("loss", build::softmax_cross_entropy_loss(layers::linear(lstm.h[0], init.linear("linear", 8, 2)), target));
  }
  TrainerOptions options;
  options.schedule.base = 0.01;
  Trainer trainer(program, options);
  CHECK(trainer.weights().at("lstm_0_input").dtype() == DType::bf16);
  const Dataset data = shifted(7, 64);
  const auto loss = [&] { return trainer.evaluate({{"x", data.x}, {"target", data.targets}})["loss"].tensor().item(); };
  const double before = loss();
  for (int i = 0; i < 40; ++i) trainer.step({{"x", data.x}, {"target", data.targets}});
  CHECK(loss() < 0.75 * before);
  CHECK(trainer.weights().at("lstm_0_input").dtype() == DType::bf16);
  Checkpoint checkpoint;
  trainer.save(checkpoint);
  CHECK(checkpoint.tensors.at("optimizer").at("lstm_0_input/master").dtype() == DType::f32);
}

TEST_CASE("a trainer that was moved from says so in each member") {
  Trainer moved(sequence_classifier(3, 4, 2));
  Trainer trainer = std::move(moved);
  const char* const why = "trainer: expected a trainer, found one that was moved from";
  Checkpoint checkpoint;
  // NOLINTBEGIN(bugprone-use-after-move)
  CHECK_THROWS_WITH_AS(moved.step({}), why, ArgumentError);
  CHECK_THROWS_WITH_AS(moved.compute({}), why, ArgumentError);
  CHECK_THROWS_WITH_AS(moved.apply({}), why, ArgumentError);
  CHECK_THROWS_WITH_AS(moved.evaluate({}), why, ArgumentError);
  CHECK_THROWS_WITH_AS(moved.steps(), why, ArgumentError);
  CHECK_THROWS_WITH_AS(moved.learning_rate(), why, ArgumentError);
  CHECK_THROWS_WITH_AS(moved.weights(), why, ArgumentError);
  CHECK_THROWS_WITH_AS(moved.set_weights({}), why, ArgumentError);
  CHECK_THROWS_WITH_AS(moved.trained({}), why, ArgumentError);
  CHECK_THROWS_WITH_AS(moved.save(checkpoint), why, ArgumentError);
  CHECK_THROWS_WITH_AS(moved.restore(checkpoint), why, ArgumentError);
  // NOLINTEND(bugprone-use-after-move)
  CHECK(trainer.steps() == 0);
}
