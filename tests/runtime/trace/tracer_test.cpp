// SPDX-License-Identifier: Apache-2.0
// The records of a tracer, of programs that run.
#include <millrace/runtime/trace/tracer.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>

#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/layers/lstm.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>
#include <support/bytes.h>
#include <support/program_runs.h>

using namespace millrace;
using testing::on_sim, testing::Schedule;
using Events = std::vector<Tracer::Event>;

namespace {

/// Two loops of `iterations` that know nothing of each other: slot t = slot t − 1 · .5 + 1.
Program two_loops(std::int64_t iterations) {
  Program program;
  program.set_title("two loops");
  const build::Guard guard(program);
  const build::Var x = build::input("x", VarType(DType::f32, {}));
  for (const char* name : {"first", "second"}) {
    const build::TensorArray slots = build::TensorArray::typed(build::constant(iterations), VarType(DType::f32, {}), name);
    build::Var step = build::constant(0);
    build::WhileLoop loop = build::while_loop({step});
    {
      const auto frame = loop.frame();
      loop.break_if(equal(step, build::constant(iterations)));
      slots.write(step, slots.read(step - 1, x) * 0.5 + 1.0);
      step.update(step + 1);
    }
    build::output(name, slots.stack());
  }
  return program;
}

const Feeds one{{"x", Tensor::scalar(1.f)}};

RunOptions traced(Tracer& tracer) {
  RunOptions options;
  options.tracer = &tracer;
  return options;
}

/// The iterations of each loop, by track.
std::map<std::uint64_t, Events> loops(const Tracer& tracer) {
  std::map<std::uint64_t, Events> found;
  for (const Tracer::Event& event : tracer.events("iteration")) found[event.track].push_back(event);
  return found;
}

std::int64_t begin(const Events& events) {
  return std::min_element(events.begin(), events.end(), [](auto& a, auto& b) { return a.begin_ns < b.begin_ns; })->begin_ns;
}
std::int64_t end(const Events& events) {
  return std::max_element(events.begin(), events.end(), [](auto& a, auto& b) { return a.end_ns < b.end_ns; })->end_ns;
}

void check_overlap(const Tracer& tracer, std::size_t iterations) {
  const auto found = loops(tracer);
  REQUIRE(found.size() == 2);
  const Events& first = found.begin()->second;
  const Events& second = found.rbegin()->second;
  CHECK(first.size() == iterations);
  CHECK(second.size() == iterations);
  CHECK(begin(second) < end(first));
  CHECK(begin(first) < end(second));
}

}  // namespace

TEST_CASE("a span lasts from its making to its end, and an instant does not last") {
  Tracer tracer;
  const std::uint64_t track = tracer.add_track("loop");
  {
    const TraceSpan outer(&tracer, "iteration", "iteration 0", track, 0);
    const TraceSpan inner(&tracer, "op", "add", track);
    tracer.instant("slot", "states[0] issued", track, 0);
  }
  const Events events = tracer.events();
  REQUIRE(events.size() == 3);
  CHECK(events[0].instant);
  CHECK(events[0].begin_ns == events[0].end_ns);
  CHECK(events[1].name == "add");
  CHECK(events[1].step == -1);
  CHECK(events[2].name == "iteration 0");
  CHECK(events[2].step == 0);
  CHECK(events[2].begin_ns <= events[1].begin_ns);
  CHECK(events[1].end_ns <= events[2].end_ns);
  REQUIRE(tracer.events("op").size() == 1);
  CHECK(tracer.events("tick").empty());
}

TEST_CASE("without a tracer a span is nothing, and one that is dropped is not recorded") {
  {
    const TraceSpan span(nullptr, "op", "add", 0);
  }
  Tracer tracer;
  {
    TraceSpan span(&tracer, "op", "add", 0);
    span.drop();
  }
  CHECK(tracer.events().empty());
}

TEST_CASE("a track has one number for each name") {
  Tracer tracer;
  const std::uint64_t a = tracer.add_track("a");
  CHECK(tracer.add_track("b") != a);
  CHECK(tracer.add_track("a") == a);
}

TEST_CASE("a trace is saved whole or not at all") {
  Tracer tracer;
  tracer.instant("op", "x", 0, 0);
  const testing::ScratchFolder folder;
  tracer.save(folder / "trace.json");
  std::ifstream file(folder / "trace.json", std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  CHECK(text.str() == tracer.to_json());
  CHECK_FALSE(std::filesystem::exists(folder / "trace.json.partial"));
  CHECK_THROWS_AS(tracer.save(folder / "absent" / "trace.json"), IoError);
}

TEST_CASE("two independent loops overlap under every fair schedule of two streams") {
  for (const std::uint64_t seed : testing::seeds(60)) {
    INFO("seed ", seed);
    Tracer tracer;
    // Priorities, as in PCT, may starve one of them.
    Schedule schedule(seed, seed % 4 == 0 ? SeededExecutor::Policy::fifo : SeededExecutor::Policy::random);
    on_sim(schedule, two_loops(12), one, traced(tracer));
    check_overlap(tracer, 12);
  }
}

TEST_CASE("two independent loops overlap on threads") {
  for (const std::size_t threads : {1, 2}) {
    Tracer tracer;
    ThreadExecutor executor(threads);
    sync_wait(executor, run(two_loops(50), one, traced(tracer)));
    check_overlap(tracer, 50);
  }
}

TEST_CASE("iterations of one loop overlap while the device lags behind") {
  Program program;
  {
    const build::Guard guard(program);
    const build::Var n = build::input("n", VarType(DType::i64, {8}));
    const build::TensorArray limits = build::TensorArray::unstack(n);
    const build::TensorArray slots = build::TensorArray::typed(build::constant(8), VarType(DType::i64, {}), "slots");
    build::Var step = build::constant(0);
    build::WhileLoop loop = build::while_loop({step});
    {
      const auto frame = loop.frame();
      loop.break_if(equal(step, build::constant(8)));
      // The place is computed on the device: the iteration waits for it, and the next one begins meanwhile.
      slots.write(limits.read(step) + 0, step * 2);
      step.update(step + 1);
    }
    build::output("slots", slots.stack());
  }
  Tensor n = Tensor::from<std::int64_t>({7, 6, 5, 4, 3, 2, 1, 0});
  Tracer tracer;
  Schedule schedule(1, SeededExecutor::Policy::fifo);
  const RunResult result = on_sim(schedule, program, {{"n", n}}, traced(tracer));
  CHECK(result["slots"].tensor().to_vector<std::int64_t>() == std::vector<std::int64_t>{14, 12, 10, 8, 6, 4, 2, 0});
  const Events iterations = tracer.events("iteration");
  REQUIRE(iterations.size() == 8);
  std::size_t overlapping = 0;
  for (const Tracer::Event& event : iterations)
    for (const Tracer::Event& other : iterations) overlapping += other.begin_ns > event.begin_ns && other.begin_ns < event.end_ns ? 1 : 0;
  CHECK(overlapping > 0);
}

TEST_CASE("each slot is issued once and then ready once") {
  for (const std::uint64_t seed : testing::seeds(20)) {
    INFO("seed ", seed);
    Tracer tracer;
    Schedule schedule(seed, testing::policy_of(seed));
    on_sim(schedule, two_loops(5), one, traced(tracer));
    const Events slots = tracer.events("slot");
    CHECK(slots.size() == 2 * 2 * 5);
    for (const std::string array : {"first", "second"})
      for (int t = 0; t < 5; ++t) {
        const std::string slot = array + "[" + std::to_string(t) + "]";
        const auto named_so = [&](const char* what) { return [&, what](const Tracer::Event& event) { return event.name == slot + what; }; };
        CHECK(std::count_if(slots.begin(), slots.end(), named_so(" issued")) == 1);
        CHECK(std::count_if(slots.begin(), slots.end(), named_so(" ready")) == 1);
        const auto issued = std::find_if(slots.begin(), slots.end(), named_so(" issued"));
        const auto ready = std::find_if(slots.begin(), slots.end(), named_so(" ready"));
        CHECK(issued < ready);
        CHECK(issued->step == t);
      }
  }
}

TEST_CASE("ops of the device and of the host lie on tracks of their own") {
  Tracer tracer;
  Schedule schedule(3);
  on_sim(schedule, two_loops(5), one, traced(tracer));
  std::set<std::uint64_t> device;
  std::set<std::uint64_t> host;
  for (const Tracer::Event& event : tracer.events("op")) {
    if (event.name == "mul") device.insert(event.track);
    if (event.name == "equal") host.insert(event.track);
  }
  CHECK(device.size() == 2);
  REQUIRE(host.size() == 1);
  CHECK_FALSE(device.contains(*host.begin()));
}

namespace {

/// Counts the ranges that are open, by category.
class Ranges final : public RangeSink {
 public:
  std::uint64_t begin(const char* category, std::string_view name, std::int64_t) override {
    const std::lock_guard lock(mutex_);
    CHECK_FALSE(name.empty());
    open_.insert(++last_);
    ++begun[category];
    return last_;
  }
  void end(std::uint64_t range) noexcept override {
    const std::lock_guard lock(mutex_);
    if (open_.erase(range) != 1) ++strangers;
  }
  void mark(const char* category, std::string_view, std::int64_t) override {
    const std::lock_guard lock(mutex_);
    ++begun[category];
  }
  std::size_t open() const { return open_.size(); }

  std::map<std::string, int> begun;
  int strangers = 0;

 private:
  std::mutex mutex_;
  std::set<std::uint64_t> open_;
  std::uint64_t last_ = 0;
};

}  // namespace

TEST_CASE("a tracer hands the spans of iterations and ops to a profiler's ranges, each of which ends once") {
  for (const bool record : {true, false}) {
    const auto ranges = std::make_shared<Ranges>();
    TracerOptions options;
    options.record = record;
    options.ranges = ranges;
    Tracer tracer(options);
    ThreadExecutor executor(2);
    RunOptions wanted = traced(tracer);
    wanted.backend = Backend::interpreted;
    sync_wait(executor, run(two_loops(5), one, wanted));
    CHECK(ranges->begun["iteration"] >= 10);
    CHECK(ranges->begun["op"] > 10);
    CHECK(ranges->open() == 0);
    CHECK(ranges->strangers == 0);
    CHECK(tracer.events().empty() != record);
    // A run that fails in the middle ends its ranges, too.
    CHECK_THROWS_AS(sync_wait(executor, run(two_loops(5), Feeds{}, wanted)), Error);
    CHECK(ranges->open() == 0);
  }
}

TEST_CASE("a tracer that keeps nothing leaves loops in the backend that they have without one") {
  TracerOptions options;
  options.record = false;
  Tracer tracer(options);
  Program program;
  {
    const build::Guard guard(program);
    layers::LstmWeights weights;
    weights.input = Tensor::from(std::vector<float>(16, 0.25f), DDim{2, 8});
    weights.recurrent = Tensor::from(std::vector<float>(16, 0.5f), DDim{2, 8});
    build::output("y", layers::lstm({build::input("x", VarType(DType::f32, {DDim::unknown, 2}, 1))}, {weights}).y);
  }
  const Feeds feeds{{"x", Value(LoDTensor(Tensor::from(std::vector<float>(6, 0.5f), DDim{3, 2}), LoD::from_lengths({{2, 1}})))}};
  ThreadExecutor executor(1);
  const RunResult plain = sync_wait(executor, run(program, feeds));
  const RunResult ranged = sync_wait(executor, run(program, feeds, traced(tracer)));
  CHECK(plain.fused_loops > 0);
  CHECK(ranged.fused_loops == plain.fused_loops);
}

TEST_CASE("a tracer with a file writes events as they end, keeps none, and counts those beyond its bound") {
  const testing::ScratchFolder folder;
  const auto text = [&] {
    std::ifstream file(folder / "trace.json", std::ios::binary);
    std::stringstream read;
    read << file.rdbuf();
    return read.str();
  };
  TracerOptions options;
  options.file = folder / "trace.json";
  {
    Tracer tracer(options);
    const std::uint64_t track = tracer.add_track("loop");
    for (int i = 0; i < 5000; ++i) {
      const TraceSpan outer(&tracer, "iteration", "iteration", track, i);
      const TraceSpan inner(&tracer, "op", "add", track, i);
    }
    CHECK(tracer.events().empty());
    CHECK_FALSE(std::filesystem::exists(options.file));
    CHECK(tracer.finish() == 0);
  }
  const std::string whole = text();
  CHECK(whole.starts_with("{\"traceEvents\":["));
  CHECK(whole.ends_with("],\"displayTimeUnit\":\"ns\"}\n"));
  std::size_t adds = 0;
  for (std::size_t at = whole.find("\"add\""); at != whole.npos; at = whole.find("\"add\"", at + 1)) ++adds;
  CHECK(adds == 5000);
  options.most_bytes = 2000;
  {
    Tracer tracer(options);
    for (int i = 0; i < 100; ++i) tracer.instant("op", "add", 1, i);
    const std::uint64_t left_out = tracer.finish();
    CHECK(left_out > 0);
    CHECK(left_out < 100);
  }
  CHECK(text().size() < 2500);
  // Nothing appears of one that was not finished.
  options.file = folder / "other.json";
  {
    Tracer tracer(options);
  }
  CHECK_FALSE(std::filesystem::exists(options.file));
  options.file = folder / "absent" / "trace.json";
  CHECK_THROWS_AS(Tracer{options}, IoError);
  CHECK_THROWS_AS(Tracer().finish(), ArgumentError);
  options.file = "/dev/full";
  Tracer full(options);
  full.instant("op", "add", 1, 0);
  CHECK_THROWS_AS(full.finish(), IoError);
}
