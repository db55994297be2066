// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/client/session_plan.h>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/sequence_ops.h>
#include <millrace/runtime/layers/gru.h>
#include <streaming/live/live_model.h>
#include <streaming/live/served.h>

using namespace millrace;
using namespace millrace::testing;
using build::Var;

namespace {

constexpr std::int64_t features = 3, hidden = 4;

layers::GruWeights weights(Random& random, std::int64_t inputs) {
  return {
      random_tensor(random, {inputs, 3 * hidden}), random_tensor(random, {hidden, 3 * hidden}), random_tensor(random, {3 * hidden}), {}};
}

/// Words and sentences, each a recurrence over what is inside; two inputs of words and one of sentences.
Program words_and_sentences(Random& random) {
  Program program;
  const build::Guard guard(program);
  const Var x = build::input("x", VarType(DType::f32, {DDim::unknown, features}, 2));
  const Var z = build::input("z", VarType(DType::f32, {DDim::unknown, hidden}, 2));
  const Var speaker = build::input("speaker", VarType(DType::f32, {DDim::unknown, hidden}, 1));
  const Var words = layers::gru(x, {weights(random, features)}, {.name = "words"}).y;
  build::output("y", words + z);
  build::output("sentence", layers::gru(build::sequence_last_step(words) + speaker, {weights(random, hidden)}, {.name = "said"}).y);
  return program;
}

LoD random_lod(Random& random, std::int64_t dialogues, int levels) {
  std::vector<LoD::Level> lengths;
  std::int64_t count = dialogues;
  for (int level = 0; level < levels; ++level) {
    std::int64_t items = 0;
    LoD::Level& own = lengths.emplace_back();
    for (std::int64_t i = 0; i < count; ++i) items += own.emplace_back(random.between(0, level == 0 ? 3 : 40));
    count = items;
  }
  return LoD::from_lengths(lengths);
}

void check_same(const Program& program, const std::map<std::string, LoDTensor>& feeds, const SessionPlanOptions& options) {
  SeededExecutor executor(1);
  const RunResult whole = sync_wait(executor, run(program, Feeds(feeds.begin(), feeds.end())));
  Served served(program);
  SessionPlan plan(feeds, describe_server(served.url()), options);
  const std::vector<ClientRecord> records = stream_plans(served.url(), plan.take());
  for (const ClientRecord& record : records) REQUIRE(record.error == "");
  const auto outputs = plan.outputs(records);
  REQUIRE(outputs.size() == program.outputs().size());
  for (const auto& [name, rows] : outputs) {
    INFO(name);
    CHECK(rows.lod() == whole[name].lod());
    CHECK(rows.dims() == whole[name].dims());
    CHECK(WholeRun::bytes(rows.tensor()) == WholeRun::bytes(whole[name].tensor()));
  }
}

}  // namespace

TEST_CASE("ragged rows of several inputs, streamed as sessions with inner sequences, give what one run gives, LoD and bits") {
  for (const std::uint64_t seed : seeds(4)) {
    INFO("seed ", seed);
    Random random(seed);
    const Program program = words_and_sentences(random);
    const LoD lod = random_lod(random, random.between(0, 4), 2);
    std::map<std::string, LoDTensor> feeds;
    feeds.emplace("x", LoDTensor(random_tensor(random, {lod.rows(), features}), lod));
    feeds.emplace("z", LoDTensor(random_tensor(random, {lod.rows(), hidden}), lod));
    const LoD sentences = lod.levels(0, 1);
    feeds.emplace("speaker", LoDTensor(random_tensor(random, {sentences.rows(), hidden}), sentences));
    SessionPlanOptions options;
    options.piece_bytes = static_cast<std::size_t>(random.between(1, 200));
    options.flush = random.coin();
    options.one_session = random.coin();
    check_same(program, feeds, options);
  }
}

TEST_CASE("a flat program gets a session for each sequence, with its own values for the start") {
  Random random(3);
  const Program program = live_listing(random, features, hidden);
  const LoD lod = LoD::from_lengths({{5, 0, 70}});
  check_same(program,
             {{"x", LoDTensor(random_tensor(random, {75, features}), lod)}, {"boot", LoDTensor(random_tensor(random, {3, hidden}))}}, {});
}

TEST_CASE("rows that are no sequences of the server's inputs are refused by name before anything is sent") {
  StartedMessage server;
  server.inputs.push_back({"x", DType::f32, {2}, {}, {}, {}});
  server.inputs.push_back({"z", DType::f32, {}, {}, {}, {}});
  server.inputs.push_back({"s", DType::f32, {1}, {}, {}, 1});
  const auto rows = [](const DDim& dims, const LoD& lod = {}) { return LoDTensor(make_darray(dims, 1.0f), lod); };
  const LoD two = LoD::from_lengths({{1, 1}, {2, 1}});
  const std::map<std::string, LoDTensor> good{{"x", rows({3, 2}, two)}, {"z", rows({3})}, {"s", rows({2, 1})}};
  CHECK(SessionPlan(good, server).take().size() == 2);
  const auto with = [&](const std::string& name, const LoDTensor& value) {
    std::map<std::string, LoDTensor> feeds = good;
    feeds.insert_or_assign(name, value);
    return feeds;
  };
  CHECK_THROWS_WITH_AS(SessionPlan({{"s", rows({2, 1})}, {"x", rows({3, 2}, two)}}, server),
                       "input 'z': expected f32[?], found rows of 's', 'x'", ArgumentError);
  CHECK_THROWS_WITH_AS(SessionPlan({}, server), "input 'x': expected f32[?, 2], found nothing", ArgumentError);
  CHECK_THROWS_AS(SessionPlan(with("x", rows({3, 3}, two)), server), ShapeError);
  CHECK_THROWS_AS(SessionPlan(with("x", LoDTensor(Tensor::from<std::int64_t>({1, 2}).reshape({1, 2}))), server), DTypeError);
  CHECK_THROWS_AS(SessionPlan(with("z", rows({2})), server), LoDError);
  CHECK_THROWS_AS(SessionPlan(with("z", rows({3}, LoD::from_lengths({{2, 1}}))), server), LoDError);
  CHECK_THROWS_AS(SessionPlan(with("s", rows({3, 1})), server), LoDError);
  CHECK_THROWS_AS(SessionPlan(with("x", rows({3, 2}, LoD::from_lengths({{2, 1}}))), server), LoDError);
  CHECK_THROWS_AS(SessionPlan(with("boot", rows({3, 2})), server), ShapeError);
  CHECK_THROWS_AS(SessionPlan(with("boot", LoDTensor(Tensor::scalar(1.0f))), server), ShapeError);
  CHECK(SessionPlan(with("boot", rows({2, 2})), server).take().at(1).start.given.at("boot") == std::vector<GivenNumber>{1.0, 1.0});
}
