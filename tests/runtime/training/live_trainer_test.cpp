// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <thread>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/this_task.h>
#include <millrace/runtime/training/live_trainer.h>

#include "support/bytes.h"
#include "support/predictor.h"
#include "support/program_runs.h"
#include "support/random_tensor.h"

using namespace millrace;
using namespace millrace::training;
using build::Var;
using millrace::testing::predictor_units, millrace::testing::wave;
using millrace::testing::Random;

namespace {

constexpr std::int64_t units = predictor_units;

Program predictor() { return millrace::testing::predictor(0); }

LiveTrainerOptions options_of(std::int64_t k1, std::int64_t k2) {
  LiveTrainerOptions options;
  options.states = {{"h", "h_next"}};
  options.k1 = k1;
  options.k2 = k2;
  options.trainer.optimizer.kind = OptimizerOptions::Kind::adam;
  options.trainer.schedule.base = 0.01;
  options.trainer.clipping.norm = 1;
  return options;
}

LiveTrainer::Row row_at(std::int64_t t) { return {{"x", Tensor::from<float>({wave(t)})}, {"target", Tensor::from<float>({wave(t + 1)})}}; }

std::vector<float> all_of(const Tensors& tensors) {
  std::vector<float> all;
  for (const auto& [name, tensor] : tensors)
    for (const float value : tensor.to_vector<float>()) all.push_back(value);
  return all;
}

/// The same training by hand, over waves that are there as a whole: slices of them, and the state in front of each.
struct Offline {
  Offline(std::int64_t k1, std::int64_t k2, std::int64_t rows) {
    Program model = predictor();
    {
      const build::Guard guard(model);
      const auto port =
          std::find_if(model.outputs().begin(), model.outputs().end(), [](const auto& each) { return each.name == "losses"; });
      build::output("loss", build::mean(build::slice(Var::of(port->var), 0, -k1, 1 << 30)));
    }
    Trainer trainer(model, options_of(k1, k2).trainer);
    std::vector<Tensor> states{Tensor::from(std::vector<float>(units, 0.0f), {1, units})};
    for (std::int64_t end = k1; end <= rows; end += k1) {
      const std::int64_t begin = std::max<std::int64_t>(0, end - k2);
      std::vector<float> x, target;
      for (std::int64_t t = begin; t < end; ++t) x.push_back(wave(t)), target.push_back(wave(t + 1));
      const LoD::Level all{end - begin};
      const Trainer::Step step = trainer.step({{"x", LoDTensor(Tensor::from(x, {end - begin, 1}), LoD::from_lengths({all}))},
                                               {"target", Tensor::from(target, {end - begin, 1})},
                                               {"h", states[static_cast<std::size_t>(begin / k1)]}});
      losses.push_back(step.loss);
      states.push_back(step.outputs["h_next"].tensor());
    }
    weights = trainer.weights();
  }
  std::vector<double> losses;
  Tensors weights;
};

/// Rows in memory that counts its bytes.
task<void> feed(TensorArray x, TensorArray target, std::shared_ptr<MemoryResource> memory, std::int64_t rows) {
  TaskInfo& me = co_await this_task::info();
  const ExternalHold room(me.run());  // the trainer makes it, outside of this run
  for (std::int64_t t = 0; t < rows; ++t) {
    Tensor now(DType::f32, DDim{1}, memory), next(DType::f32, DDim{1}, memory);
    *now.mutable_data<float>() = wave(t);
    *next.mutable_data<float>() = wave(t + 1);
    co_await x.append(now);
    co_await target.append(next);
  }
  x.close();
  target.close();
}

}  // namespace

TEST_CASE("a stream is learned while it arrives, through windows, in the memory of its last rows") {
  constexpr std::int64_t rows = 10000, k = 40, capacity = 8;
  const auto memory = std::make_shared<testing::SimMemory>(0);
  const TensorArray x = TensorArray::window(capacity).named("x"), target = TensorArray::window(capacity).named("target");
  std::vector<double> losses;
  LiveTrainer live(predictor(), options_of(k, k));
  {
    const ArrayWriter of_x = x.feeder("the stream"), of_target = target.feeder("the stream");
    std::thread stream([&] {
      ThreadExecutor executor(1);
      sync_wait(executor, feed(x, target, memory, rows));
    });
    live.learn({{"x", x}, {"target", target}}, [&](const Trainer::Step& step) { losses.push_back(step.loss); });
    stream.join();
  }
  CHECK(live.rows() == rows);
  REQUIRE(losses.size() == rows / k);
  // Two arrays: kept rows, unread ones, one that waits, and one in each hand.
  CHECK(memory->peak_bytes() <= 2 * (k + capacity + 4) * sizeof(float));
  const double first = losses[0], last = losses.back();
  INFO("loss ", first, " at first, ", last, " at last");
  CHECK(last < first / 20);
  const Offline offline(k, k, rows);
  CHECK(losses == offline.losses);
  CHECK(all_of(live.trainer().weights()) == all_of(offline.weights));
}

TEST_CASE("gradients reach k2 rows back, every k1 rows, with the bits of slices of the whole") {
  for (const auto& [k1, k2] : {std::pair{1, 1}, {1, 4}, {3, 3}, {4, 12}, {5, 10}}) {
    INFO(k1, " ", k2);
    LiveTrainer live(predictor(), options_of(k1, k2));
    std::vector<double> losses;
    for (std::int64_t t = 0; t < 63; ++t)
      if (const auto step = live.push(row_at(t))) losses.push_back(step->loss);
    const Offline offline(k1, k2, 63);
    CHECK(losses == offline.losses);
    CHECK(all_of(live.trainer().weights()) == all_of(offline.weights));
  }
  CHECK(Offline(3, 3, 63).losses != Offline(3, 6, 63).losses);
}

TEST_CASE("a new sequence begins with zeros and the weights so far") {
  LiveTrainer live(predictor(), options_of(4, 8));
  for (std::int64_t t = 0; t < 10; ++t) live.push(row_at(t));
  live.reset();
  CHECK(live.rows() == 0);
  LiveTrainer other(predictor(), options_of(4, 8));
  Checkpoint checkpoint;
  live.trainer().save(checkpoint);
  other.trainer().restore(checkpoint);
  for (std::int64_t t = 0; t < 12; ++t) {
    const auto a = live.push(row_at(t)), b = other.push(row_at(t));
    REQUIRE(a.has_value() == b.has_value());
    if (a) CHECK(a->loss == b->loss);
  }
}

TEST_CASE("a new sequence may begin with states of its own") {
  const Tensor h = Tensor::from(std::vector<float>(units, 0.5f), {1, units});
  LiveTrainer zeros(predictor(), options_of(4, 8)), half(predictor(), options_of(4, 8));
  half.reset({{"h", h}});
  std::vector<double> losses[2];
  for (std::int64_t t = 0; t < 8; ++t) {
    if (const auto step = zeros.push(row_at(t))) losses[0].push_back(step->loss);
    if (const auto step = half.push(row_at(t))) losses[1].push_back(step->loss);
  }
  CHECK(losses[0] != losses[1]);
  CHECK_THROWS_WITH_AS(half.reset({{"c", h}}), "live trainer: expected a state of the model, found 'c'", ArgumentError);
  CHECK_THROWS_WITH_AS(half.reset({{"h", Tensor::from<float>({1})}}), doctest::Contains("in the state 'h', found"), ShapeError);
  CHECK_THROWS_WITH_AS(half.reset({{"h", Tensor::from<double>({1})}}), doctest::Contains("expected f32 in the state 'h'"), DTypeError);
  CHECK(half.rows() == 8);
}

TEST_CASE("rows and options that do not fit are refused by name, and change nothing") {
  const auto refused = [](LiveTrainerOptions options, const char* why) {
    CHECK_THROWS_WITH_AS(LiveTrainer(predictor(), options), doctest::Contains(why), ArgumentError);
  };
  refused(options_of(0, 4), "expected k1 of at least 1 and a multiple of it as k2, found 0 and 4");
  refused(options_of(4, 6), "found 4 and 6");
  LiveTrainerOptions options = options_of(2, 2);
  options.losses = "loss";
  refused(options, "expected an output 'loss' of the model, found none");
  options = options_of(2, 2);
  options.states = {{"h", "c_next"}};
  refused(options, "expected an output 'c_next'");
  options = options_of(2, 2);
  const auto unlike = [&](std::pair<std::string, std::string> state, const std::string& losses) {
    options.states = {state};
    options.losses = losses;
    CHECK_THROWS_AS(LiveTrainer(predictor(), options), ShapeError);
  };
  const auto known = options_of(2, 2);
  REQUIRE(!known.states.empty());
  const std::pair<std::string, std::string> state = *known.states.begin();
  unlike(state, state.second);  // as wide as the state
  unlike({state.first, known.losses}, known.losses);
  LiveTrainer live(predictor(), options_of(2, 2));
  live.push(row_at(0));
  LiveTrainer::Row row = row_at(1);
  row.erase("target");
  CHECK_THROWS_WITH_AS(live.push(row), "live trainer: expected a row of 'target', found none", ArgumentError);
  row.emplace("target", Tensor::from<float>({1, 2}));
  CHECK_THROWS_WITH_AS(live.push(row), doctest::Contains("expected a row of [1] for 'target', found"), ShapeError);
  row.insert_or_assign("target", Tensor::from<double>({1}));
  CHECK_THROWS_WITH_AS(live.push(row), doctest::Contains("expected f32 in a row of 'target'"), DTypeError);
  row = row_at(1);
  row.emplace("y", Tensor::from<float>({1}));
  CHECK_THROWS_WITH_AS(live.push(row), doctest::Contains("found 'y'"), ArgumentError);
  CHECK(live.rows() == 1);
  CHECK(live.push(row_at(1)).has_value());
}
