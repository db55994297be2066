// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/live_learner.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/streaming/client/stream_client.h>
#include <millrace/streaming/protocol/data.h>
#include <millrace/tensor/sanitized.h>
#include <streaming/live/served.h>
#include <support/predictor.h>
#include <support/program_runs.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

constexpr std::int64_t units = predictor_units;

Program predictor() { return millrace::testing::predictor(1); }

StreamConfig learning(std::int64_t k1, std::int64_t k2, double rate = 0.01) {
  LearnConfig learn;
  learn.losses = "losses";
  learn.k1 = k1;
  learn.k2 = k2;
  learn.learning_rate = rate;
  learn.clip_norm = 1;
  learn.sessions = 4;
  learn.states = {{"h", "h_next"}};
  StreamConfig config;
  config.learn = learn;
  return config;
}

std::vector<ServedRoute> routes_of(const StreamConfig& config) {
  std::vector<ServedRoute> routes;
  routes.push_back({default_route, std::make_shared<const ServedModel>(predictor(), config), {}});
  return routes;
}

std::vector<float> rows_of(std::int64_t first, std::int64_t last, double shift) {
  std::vector<float> rows;
  for (std::int64_t t = first; t < last; ++t) rows.push_back(wave(t, shift));
  return rows;
}

std::string bytes_of(const std::vector<float>& rows) { return {reinterpret_cast<const char*>(rows.data()), rows.size() * sizeof(float)}; }

Message message_of(const std::string& input, const std::vector<float>& rows) { return encode_data(input, std::as_bytes(std::span(rows))); }

ClientPlan plan_of(std::int64_t rows, double shift) {
  ClientPlan plan;
  plan.start.reply = ReplyFormat::binary;
  constexpr std::int64_t together = 7;
  for (std::int64_t t = 0; t < rows; t += together) {
    const std::int64_t end = std::min(rows, t + together);
    plan.script.push_back(message_of("x", rows_of(t, end, shift)));
    plan.script.push_back(message_of("target", rows_of(t + 1, end + 1, shift)));
  }
  return plan;
}

/// The answers of a sequence that learns, by hand: a run over each k1 rows with the weights so far, then the update.
std::vector<float> answers(std::int64_t rows, double shift, const StreamConfig& config, std::vector<float> h) {
  const LearnConfig& learn = *config.learn;
  training::LiveTrainer trainer(predictor(), make_learning(predictor(), learn, {}).trainer);
  trainer.reset({{"h", Tensor::from(h, {1, units})}});
  std::vector<float> all;
  for (std::int64_t begin = 0; begin < rows; begin += learn.k1) {
    const std::int64_t count = std::min(learn.k1, rows - begin);
    const auto part = [&](std::int64_t first) {
      return LoDTensor(Tensor::from(rows_of(first, first + count, shift), {count, 1}), LoD::from_lengths({LoD::Level{count}}));
    };
    const RunResult made =
        on_cpu(trainer.trainer().trained({"y", "h_next"}), {{"x", Value(part(begin))}, {"h", Value(Tensor::from(h, {1, units}))}});
    for (const float y : made["y"].tensor().to_vector<float>()) all.push_back(y);
    h = made["h_next"].tensor().to_vector<float>();
    for (std::int64_t t = begin; t < begin + count; ++t)
      trainer.push({{"x", Tensor::from<float>({wave(t, shift)})}, {"target", Tensor::from<float>({wave(t + 1, shift)})}});
  }
  return all;
}

double mean_error(const std::string& answers, std::int64_t first, std::int64_t last, double shift) {
  double sum = 0;
  for (std::int64_t t = first; t < last; ++t) {
    float y = 0;
    std::memcpy(&y, answers.data() + static_cast<std::size_t>(t) * sizeof y, sizeof y);
    sum += std::pow(y - wave(t + 1, shift), 2);
  }
  return sum / static_cast<double>(last - first);
}

}  // namespace

TEST_CASE("served sessions learn from their rows: each answer has the bits of the weights before its row, alone and in a crowd") {
  constexpr std::int64_t rows = 600;
  for (const auto& [k1, k2] : {std::pair{8, 8}, {5, 15}}) {
    INFO(k1, " ", k2);
    if (sanitized && k1 == k2) continue;
    const StreamConfig config = learning(k1, k2);
    Served served(routes_of(config));
    std::vector<ClientPlan> plans;
    for (int i = 0; i < 3; ++i) plans.push_back(plan_of(rows - 100 * i, i));
    plans[1].start.given = {{"h", std::vector<GivenNumber>(units, 0.25)}};
    const auto records = stream_plans(served.url(), plans);
    for (std::size_t i = 0; i < plans.size(); ++i) {
      INFO("session ", i);
      REQUIRE(records[i].error == "");
      const auto count = rows - 100 * static_cast<std::int64_t>(i);
      const auto shift = static_cast<double>(i);
      const std::vector<float> wanted = answers(count, shift, config, std::vector<float>(units, i == 1 ? 0.25f : 0.0f));
      CHECK(records[i].outputs.at(0) == bytes_of(wanted));
      CHECK(mean_error(records[i].outputs[0], count - 100, count, shift) < 0.3 * mean_error(records[i].outputs[0], 0, 100, shift));
    }
    CHECK(served.ask([&] { return served.server->live_sessions(); }) == 0);
    CHECK(served.ask([&] { return served.server->stats().rows; }) == 3 * rows - 300);
    // Their steps stand at the first device, also when they are gone.
    CHECK(served.ask([&] { return served.server->places().at(0).ticks.rows; }) == 3 * rows - 300);
  }
}

TEST_CASE("a session that begins anew keeps what it learned, and the next session begins with the model's own weights") {
  Served served(routes_of(learning(4, 4)));
  const auto first = stream_plans(served.url(), {plan_of(200, 0)}).at(0), second = stream_plans(served.url(), {plan_of(200, 0)}).at(0);
  REQUIRE(first.error == "");
  CHECK(first.outputs == second.outputs);
  auto learner = LiveLearner(std::make_shared<const Learning>(make_learning(predictor(), *learning(4, 4).learn, {})));
  const Recurrence recurrence = make_recurrence(predictor());
  Tick tick;
  tick.starts.push_back({0, {}});
  tick.slots = {0};
  std::vector<std::shared_ptr<const Recurrence>> made;
  for (std::int64_t t = 0; t < 12; ++t) {
    tick.inputs.clear();
    for (const Recurrence::Input& input : recurrence.inputs)
      tick.inputs.push_back(Tensor::from<float>({wave(input.name == "x" ? t : t + 1, 0)}).reshape(input.dims.inserted(0, 1)));
    made.push_back(learner.learn(recurrence, tick));
    tick.starts.clear();
    if (t == 5) tick.starts.push_back({0, {}});  // rows 4 and 5 lead to no update
  }
  std::vector<bool> updated;
  for (const auto& one : made) updated.push_back(one != nullptr);
  CHECK(updated == std::vector<bool>{false, false, false, true, false, false, false, false, false, true, false, false});
}

TEST_CASE("sessions that learn are as many as the model says, and no state of theirs is saved") {
  StreamConfig config = learning(4, 4);
  config.learn->sessions = 1;
  Served served(routes_of(config));
  std::vector<ClientPlan> plans;
  for (int i = 0; i < 3; ++i) plans.push_back(plan_of(20, i));
  ClientOptions slow;
  slow.piece_bytes = 4;
  const auto records = stream_plans(served.url(), plans, slow);
  const auto good = std::count_if(records.begin(), records.end(), [](const ClientRecord& record) { return record.error.empty(); });
  CHECK(good >= 1);
  for (const ClientRecord& record : records)
    if (!record.error.empty()) CHECK(record.error.starts_with("overload: 1 sessions of this model learn, the most that this server takes"));
  ClientPlan saves = plan_of(20, 0);
  saves.save = true;
  const auto refused = stream_plans(served.url(), {saves}).at(0);
  CHECK(refused.error.find("sessions of this model learn, and their weights are no part of a state") != std::string::npos);
}

TEST_CASE("sessions that learn are among those of their device, with their steps and states") {
  Served served(routes_of(learning(4, 4)));
  ClientPlan slow = plan_of(400, 0);
  ClientOptions options;
  std::vector<Server::PlaceStats> seen;
  options.on_result = [&](std::size_t, const ResultMessage& result, double) {
    if (result.seq == 50) seen = served.ask([&] { return served.server->places(); });
  };
  REQUIRE(stream_plans(served.url(), {slow}, options).at(0).error == "");
  REQUIRE(seen.size() >= 1);
  CHECK(seen[0].sessions == 1);
  CHECK(seen[0].ticks.rows >= 50);
  CHECK(seen[0].ticks.ticks >= 50);
  CHECK(seen[0].seconds_a_row > 0);
  CHECK(seen[0].state_bytes > 0);
}

TEST_CASE("while all sessions that may learn are taken a server says so, and what a row took is known when they are gone") {
  StreamConfig config = learning(4, 4);
  config.learn->sessions = 1;
  Served served(routes_of(config));
  const auto refuses = [&] { return served.ask([&] { return served.server->refuses_all(); }); };
  CHECK(refuses() == "");
  ClientOptions options;
  std::string while_taken;
  options.on_result = [&](std::size_t, const ResultMessage& result, double) {
    if (result.seq == 10) while_taken = refuses();
  };
  REQUIRE(stream_plans(served.url(), {plan_of(100, 0)}, options).at(0).error == "");
  CHECK(while_taken == "all sessions that may learn are taken");
  for (int tries = 0; tries < 1000 && served.ask([&] { return served.server->live_sessions(); }) > 0; ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK(refuses() == "");
  CHECK(served.ask([&] { return served.server->places().at(0).seconds_a_row; }) > 0);
}

TEST_CASE("a loss that is not finite ends the session that made it, and no other") {
  const StreamConfig config = learning(2, 2, 1e30);
  Served served(routes_of(config));
  ClientPlan wild = plan_of(4, 0);
  wild.script.push_back(message_of("x", {1, 1, 1, 1}));
  wild.script.push_back(message_of("target", {1e30f, 1e30f, 1e30f, 1e30f}));
  const auto records = stream_plans(served.url(), {wild, plan_of(2, 1)});
  CHECK(records[0].error.starts_with("failed: "));
  CHECK(records[0].error.find("expected a finite loss") != std::string::npos);
  CHECK(records[1].error == "");
}

TEST_CASE("a model that cannot learn live is refused when it is loaded, by name") {
  StreamConfig config = learning(4, 4);
  config.learn->losses = "loss";
  CHECK_THROWS_WITH_AS(ServedModel(predictor(), config), "live trainer: expected an output 'loss' of the model, found none", ArgumentError);
  config = learning(4, 4);
  RecurrenceOptions options;
  options.constants = {{"x", Tensor::from<float>({1})}};
  CHECK_THROWS_WITH_AS(make_learning(predictor(), *config.learn, options), doctest::Contains("found 'x', which never changes"),
                       UnsupportedError);
  options = {};
  options.states = {{"h", "h_next"}};
  CHECK_THROWS_WITH_AS(make_learning(predictor(), *config.learn, options), doctest::Contains("found a graph that is one step"),
                       UnsupportedError);
  Program step;
  {
    const build::Guard guard(step);
    const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, 1})),
                     h = build::input("h", VarType(DType::f32, {DDim::unknown, 1}));
    const build::Var next = build::tanh(x * build::parameter("w", Tensor::from<float>({1})) + h);
    build::output("losses", next * next);
    build::output("h_next", next);
  }
  CHECK_THROWS_WITH_AS(ServedModel(step, learning(4, 4)), doctest::Contains("found a graph that takes a row of 'h' in each step"),
                       UnsupportedError);
}
