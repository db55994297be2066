// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/served_route.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <millrace/streaming/admin/server_report.h>
#include <millrace/streaming/client/stream_client.h>
#include <streaming/live/live_model.h>
#include <streaming/live/served.h>
#include <streaming/live/whole_clients.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

/// A model with rows of its own width, and what one run of the whole gives.
struct Own {
  Own(Random& random, std::int64_t features, std::int64_t hidden)
      : program(live_listing(random, features, hidden)), whole(program, random, 6, 40, features, hidden) {}
  ServedRoute route(std::string name) const { return {std::move(name), std::make_shared<const ServedModel>(program, StreamConfig()), {}}; }
  ClientPlan plan(std::size_t i, const std::string& model) const {
    ClientPlan plan = plan_for(whole, i);
    plan.start.model = model;
    return plan;
  }
  std::int64_t rows() const {
    std::int64_t all = 0;
    for (const Tensor& one : whole.rows) all += one.dims()[0];
    return all;
  }
  Program program;
  WholeRun whole;
};

std::string error_of(const Served& served, const ClientPlan& plan, const std::string& route = {}) {
  StreamUrl url = served.url(route.empty() ? StreamUrl::Scheme::tcp : StreamUrl::Scheme::ws);
  if (!route.empty()) url.path = "/" + route;
  return stream_plans(url, {plan}).at(0).error;
}

}  // namespace

TEST_CASE("names of models are short words of letters and digits, and no path that a server has") {
  for (const char* good : {"a", "vad", "GRU-2_b", "default", "stream2"}) CHECK(is_route_name(good));
  for (const std::string& bad : {std::string(), std::string("stream"), std::string("now"), std::string("a/b"), std::string("page.css"),
                                 std::string("ä"), std::string("a b"), std::string(65, 'a')})
    CHECK_FALSE(is_route_name(bad));
  Random random(1);
  asio::io_context context;
  const Own one(random, 3, 4);
  const auto refused = [&](std::vector<ServedRoute> routes) { Server(context, std::move(routes), {}); };
  CHECK_THROWS_WITH_AS(refused({}), "server: expected a model, found none", ArgumentError);
  CHECK_THROWS_WITH_AS(refused({one.route("a"), one.route("a")}), "server: expected a name for each model, found 'a' twice", ArgumentError);
  CHECK_THROWS_WITH_AS(refused({one.route("now")}), doctest::Contains("and neither stream nor now, found 'now'"), ArgumentError);
}

TEST_CASE("models of different widths in one server give each the bits of its own whole run, by name, by address and by default") {
  Random random(3);
  const Own narrow(random, 3, 4), wide(random, 7, 11);
  const std::map<std::string, const Own*> owns{{"narrow", &narrow}, {"wide", &wide}};
  Served served({narrow.route("narrow"), wide.route("wide")});
  struct Way {
    std::string route;  // of the address; empty: plain TCP
    std::string model;  // of the start
    std::string gets;
  };
  for (const Way& way :
       {Way{"", "", "narrow"}, Way{"", "narrow", "narrow"}, Way{"", "wide", "wide"}, Way{"stream", "", "narrow"},
        Way{"stream", "wide", "wide"}, Way{"narrow", "", "narrow"}, Way{"wide", "", "wide"}, Way{"wide", "wide", "wide"}}) {
    INFO("address '", way.route, "' model '", way.model, "'");
    const Own& own = *owns.at(way.gets);
    StreamUrl url = served.url(way.route.empty() ? StreamUrl::Scheme::tcp : StreamUrl::Scheme::ws);
    if (!way.route.empty()) url.path = "/" + way.route;
    std::vector<ClientPlan> plans;
    for (std::size_t i = 0; i < own.whole.rows.size(); ++i) plans.push_back(own.plan(i, way.model));
    const auto records = stream_plans(url, plans);
    for (std::size_t i = 0; i < records.size(); ++i) {
      CHECK(records[i].error == "");
      REQUIRE(records[i].started);
      CHECK(records[i].started->model == way.gets);
      CHECK(records[i].outputs.at(0) == WholeRun::bytes(own.whole.outputs[i]));
    }
  }
  const auto models = served.ask([&] { return served.server->models(); });
  REQUIRE(models.size() == 2);
  for (const Server::ModelStats& one : models) {
    CHECK(one.counts->sessions == 4 * 6);
    CHECK(one.counts->ended.count("ended") == 4 * 6);
    CHECK(one.counts->tick_rows.sum() == static_cast<double>(4 * owns.at(one.name)->rows()));
  }
  CHECK(served.ask([&] { return served.server->places(); }).size() == 2);
}

TEST_CASE("sessions of several models at once share a device, whose ticks take turns") {
  for (const std::uint64_t seed : seeds(3)) {
    INFO("seed ", seed);
    Random random(seed);
    const Own a(random, 2, 3), b(random, 5, 9), c(random, 1, 20);
    const Own* owns[] = {&a, &b, &c};
    Served served({a.route("a"), b.route("b"), c.route("c")});
    std::vector<ClientPlan> plans;
    for (std::size_t i = 0; i < 6; ++i)
      for (const char* name : {"a", "b", "c"}) plans.push_back(owns[name[0] - 'a']->plan(i, name));
    ClientOptions options;
    options.next_piece = [&random](std::size_t) { return static_cast<std::size_t>(random.between(1, 90)); };
    const auto records = stream_plans(served.url(), plans, options);
    for (std::size_t i = 0; i < records.size(); ++i) {
      CHECK(records[i].error == "");
      CHECK(records[i].outputs.at(0) == WholeRun::bytes(owns[i % 3]->whole.outputs[i / 3]));
    }
  }
}

TEST_CASE("a model that a server does not have is refused by name, and the refusal says which there are") {
  Random random(1);
  const Own one(random, 3, 4), two(random, 5, 6);
  Served served({one.route("one"), two.route("two")});
  CHECK(error_of(served, one.plan(0, "three")) == "unknown_model: start.model: expected one, two, found 'three'");
  CHECK(error_of(served, one.plan(0, "one"), "two") ==
        "unknown_model: start.model: expected two, which the address says, or none, found 'one'");
  CHECK(error_of(served, one.plan(0, ""), "three").starts_with("cannot connect: "));
  CHECK(error_of(served, one.plan(1, "one")) == "");
  const ServerCounts& counts = served.ask([&]() -> const ServerCounts& { return served.server->counts(); });
  CHECK(counts.refused.count("unknown_model") == 2);
  CHECK(counts.refused_requests == 1);
}

TEST_CASE("rows of another model's width, and a state of another model, are refused") {
  Random random(1);
  const Own narrow(random, 3, 4), wide(random, 7, 11);
  Served served({narrow.route("narrow"), wide.route("wide")});
  ClientPlan wrong = narrow.plan(0, "wide");
  wrong.start.given.clear();
  wrong.bytes = std::string(3 * sizeof(float), '\0');
  CHECK(error_of(served, wrong).starts_with("bad_input: "));
  ClientPlan saving = narrow.plan(0, "narrow");
  saving.save = true;
  const ClientRecord saved = stream_plans(served.url(), {saving}).at(0);
  if (saved.error.find("libssl-dev") != std::string::npos) {
    MESSAGE("skipped: ", saved.error);
    return;
  }
  REQUIRE(saved.state);
  ClientPlan going_on;
  going_on.start.state = saved.state;
  going_on.start.model = "wide";
  CHECK(error_of(served, going_on) == "bad_state: saved state: expected one of the model that is served, found one of another model");
  going_on.start.model = "narrow";
  CHECK(error_of(served, going_on) == "");
}

TEST_CASE("sessions of all models together are admitted up to what the machine holds") {
  Random random(1);
  const Own one(random, 3, 4), two(random, 5, 6);
  std::vector<ServedRoute> routes{one.route("one"), two.route("two")};
  routes[0].admission.capacity = 100;
  routes[1].admission.capacity = 1000;
  for (ServedRoute& route : routes) route.admission.session_rate = 25;
  Served served(std::move(routes));
  std::vector<ClientPlan> plans;
  for (int i = 0; i < 3; ++i) plans.push_back(one.plan(0, "one"));   // 3/4 of the machine
  for (int i = 0; i < 12; ++i) plans.push_back(two.plan(0, "two"));  // 1/40 each: 10 find room
  for (ClientPlan& plan : plans) plan.start.given.clear();
  std::map<std::string, std::size_t> refused;
  for (const ClientRecord& record : stream_plans(served.url(), plans))
    if (!record.error.empty()) ++refused[record.error.substr(0, record.error.find(':'))];
  // Starts come in any order: one of the first model needs as much as ten of the second.
  const auto models = served.ask([&] { return served.server->models(); });
  const double used = static_cast<double>(models[0].counts->sessions) / 4 + static_cast<double>(models[1].counts->sessions) / 40;
  CHECK(used <= 1.0);
  CHECK(used > 0.75);
  CHECK(refused.size() == 1);
  CHECK(refused["overload"] >= 1);
}

TEST_CASE("metrics, sessions and capacity name the model") {
  Random random(1);
  const Own one(random, 3, 4), two(random, 5, 6);
  Served served({one.route("one"), two.route("two")});
  REQUIRE(error_of(served, two.plan(0, "two")) == "");
  std::set<std::string> labelled;
  for (const Metric& metric : served.ask([&] { return metrics_of(*served.server); }))
    for (const Metric::Sample& sample : metric.samples)
      for (const auto& [label, value] : sample.labels)
        if (label == "model" && value == "two" && (sample.histogram ? sample.histogram->count() > 0 : sample.value > 0))
          labelled.insert(metric.name);
  for (const char* name : {"millrace_sessions_started_total", "millrace_sessions_ended_total"}) CHECK(labelled.count(name) == 1);
  const auto capacity = nlohmann::json::parse(served.ask([&] { return capacity_json(*served.server); }));
  REQUIRE(capacity["models"].size() == 2);
  CHECK(capacity["models"][0]["model"] == "one");
  CHECK(capacity["models"][1]["model"] == "two");
  CHECK(capacity["used"] == 0.0);
}
