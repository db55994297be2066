// SPDX-License-Identifier: Apache-2.0
// The file as viewers read it.
#include <millrace/runtime/trace/tracer.h>

#include <doctest/doctest.h>

#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <support/program_runs.h>

using namespace millrace;
using nlohmann::json;
using testing::on_sim, testing::Schedule;

namespace {

Program running_sum(std::int64_t iterations) {
  Program program;
  program.set_title("a \"sum\"");
  const build::Guard guard(program);
  const build::Var x = build::input("x", VarType(DType::f32, {}));
  const build::TensorArray slots = build::TensorArray::typed(build::constant(iterations), VarType(DType::f32, {}), "slots");
  build::Var step = build::constant(0);
  build::WhileLoop loop = build::while_loop({step});
  {
    const auto frame = loop.frame();
    loop.break_if(equal(step, build::constant(iterations)));
    slots.write(step, slots.read(step - 1, x) + 1.0);
    step.update(step + 1);
  }
  build::output("slots", slots.stack());
  return program;
}

/// Spans of one thread of the picture lie beside or within each other.
void check_nesting(const json& events) {
  std::map<int, std::vector<std::pair<double, double>>> threads;
  for (const json& event : events)
    if (event.at("ph") == "X")
      threads[event.at("tid").get<int>()].emplace_back(event.at("ts").get<double>(),
                                                       event.at("ts").get<double>() + event.at("dur").get<double>());
  const double rounding = 0.002;
  for (const auto& [thread, spans] : threads)
    for (const auto& a : spans)
      for (const auto& b : spans) {
        const bool crossing = a.first + rounding < b.first && b.first + rounding < a.second && a.second + rounding < b.second;
        if (crossing) FAIL("thread " << thread << ": spans cross");
      }
}

}  // namespace

TEST_CASE("a trace is JSON as Chrome and Perfetto read it") {
  Tracer tracer;
  Schedule schedule(5);
  RunOptions options;
  options.tracer = &tracer;
  on_sim(schedule, running_sum(20), {{"x", Tensor::scalar(1.f)}}, options);
  const json trace = json::parse(tracer.to_json());
  const json& events = trace.at("traceEvents");
  std::set<int> named;
  std::size_t spans = 0;
  std::size_t instants = 0;
  for (const json& event : events) {
    const std::string phase = event.at("ph");
    CHECK(event.at("pid").is_number_integer());
    if (phase == "M") {
      CHECK(event.at("name") == "thread_name");
      CHECK(named.insert(event.at("tid").get<int>()).second);
      CHECK_FALSE(event.at("args").at("name").get<std::string>().empty());
      continue;
    }
    CHECK(named.contains(event.at("tid").get<int>()));
    CHECK(event.at("ts").get<double>() >= 0);
    CHECK(event.at("cat").is_string());
    if (phase == "X") {
      CHECK(event.at("dur").get<double>() >= 0);
      ++spans;
    } else {
      CHECK(phase == "i");
      CHECK(event.at("s") == "t");
      ++instants;
    }
  }
  CHECK(instants == 40);
  CHECK(spans + instants == tracer.events().size());
  check_nesting(events);
}

TEST_CASE("spans of one track that overlap get rows of their own") {
  Tracer tracer;
  const std::uint64_t track = tracer.add_track("loop");
  const std::int64_t begin = tracer.now();
  tracer.span("iteration", "iteration 0", track, 0, begin);
  const std::int64_t later = begin + 1;
  tracer.span("iteration", "iteration 1", track, 1, later);
  const json events = json::parse(tracer.to_json()).at("traceEvents");
  std::set<int> threads;
  for (const json& event : events)
    if (event.at("ph") == "X") threads.insert(event.at("tid").get<int>());
  CHECK(threads.size() == 2);
}

TEST_CASE("names with quotes, backslashes and control characters are still JSON") {
  Tracer tracer;
  const std::string name = "a \"b\" \\ \n\t\x01";
  tracer.instant("op", name, tracer.add_track(name), -1);
  const json events = json::parse(tracer.to_json()).at("traceEvents");
  REQUIRE(events.size() == 2);
  CHECK(events[1].at("name").get<std::string>().starts_with("a \"b\" \\"));
  CHECK(json::parse(Tracer().to_json()).at("traceEvents").empty());
}
