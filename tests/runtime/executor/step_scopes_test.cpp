// SPDX-License-Identifier: Apache-2.0
// Iterations, and the scopes of their values: how many there are, and how long they live.
#include <millrace/runtime/executor/var_scope.h>

#include <doctest/doctest.h>

#include <numeric>

#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/trace/tracer.h>
#include <support/program_runs.h>

using namespace millrace::build;
using millrace::DDim, millrace::DType, millrace::Feeds, millrace::LoD, millrace::LoDTensor, millrace::Program, millrace::RunOptions,
    millrace::RunResult, millrace::Tensor, millrace::Tracer, millrace::Value, millrace::VarType;
using millrace::testing::everywhere, millrace::testing::on_cpu, millrace::testing::on_sim, millrace::testing::Schedule;

namespace {

/// state[t] = sigmoid(state[t − 1] · .7 − x[t] · .3), ragged; its body is block 1.
Program listing(bool sorted = true) {
  Program program;
  program.set_title("listing");
  const Guard guard(program);
  const Var x = input("x", VarType(DType::f32, {DDim::unknown, 1}, 1));
  const Var boot = input("boot", VarType(DType::f32, {DDim::unknown, 1}));
  auto [steps, order] = unpack(x, 0, sorted);
  const Var n = steps.size();
  const TensorArray states(n, order, "states");
  Var step = constant(0);
  WhileLoop loop = while_loop({step});
  {
    const auto frame = loop.frame();
    loop.break_if(equal(step, n));
    const Var row = steps.read(step);
    const Var before = shrink(states.read(step - 1, boot), row);
    Program& building = Guard::current().program();
    const Var state = sigmoid(before * constant(0.7) - row * constant(0.3));
    building.rename(state.id(), "state");
    states.write(step, state);
    step.update(step + 1);
  }
  output("y", pack(states, 0, order));
  output("steps", step);
  return program;
}

Feeds ragged(const std::vector<std::int64_t>& lengths) {
  const std::int64_t rows = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  std::vector<float> values(static_cast<std::size_t>(rows));
  std::iota(values.begin(), values.end(), 1.f);
  std::vector<float> boots(lengths.size(), .5f);
  const auto sequences = static_cast<std::int64_t>(lengths.size());
  return {{"x", LoDTensor(Tensor::from(values, {rows, 1}), LoD::from_lengths({lengths}))}, {"boot", Tensor::from(boots, {sequences, 1})}};
}

/// Counts from 0 to n; the iteration that finds `step == n` ends at the test.
Program counter(const std::function<void(WhileLoop&, Var& step, const Var& n)>& body, millrace::build::LoopOptions options = {}) {
  Program program;
  const Guard guard(program);
  const Var n = input("n", VarType(DType::i64, {}));
  Var step = constant(0);
  WhileLoop loop = while_loop({step}, options);
  {
    const auto frame = loop.frame();
    body(loop, step, n);
  }
  output("step", step);
  return program;
}

std::size_t iterations(const Program& program, const Feeds& feeds) {
  Tracer tracer;
  RunOptions options;
  options.tracer = &tracer;
  options.keep_step_scopes = true;
  const RunResult result = on_cpu(program, feeds, options);
  const std::size_t found = tracer.events("iteration").size();
  CHECK(std::cmp_equal(result.iterations, found));
  CHECK(result.step_scopes().size() == found);
  return found;
}

}  // namespace

TEST_CASE("sequences of 4, 3, 2 and 1 rows give 4 iterations, 4 iteration events, and 4 step scopes of 4, 3, 2 and 1 rows") {
  Tracer tracer;
  RunOptions options;
  options.keep_step_scopes = true;
  options.tracer = &tracer;
  const RunResult result = on_cpu(listing(), ragged({4, 3, 2, 1}), options);
  CHECK(result.iterations == 4);
  const std::vector<Tracer::Event> events = tracer.events("iteration");
  REQUIRE(events.size() == 4);
  for (std::int64_t iteration = 0; iteration < 4; ++iteration) CHECK(events[static_cast<std::size_t>(iteration)].step == iteration);
  REQUIRE(result.step_scopes().size() == 4);
  for (std::int64_t iteration = 0; iteration < 4; ++iteration) {
    CHECK(result.step_scopes()[static_cast<std::size_t>(iteration)]->iteration() == iteration);
    const Value* state = result.step_value(1, iteration, "state");
    REQUIRE(state != nullptr);
    CHECK(state->tensor().rows() == 4 - iteration);
  }
  CHECK(result.step_value(1, 4, "state") == nullptr);
  CHECK(result.step_value(1, 0, "steps") == nullptr);
  CHECK(result.live_step_scopes() == 0);
}

TEST_CASE("no rows give no iteration") {
  CHECK(iterations(listing(), ragged({})) == 0);
  CHECK(iterations(listing(), ragged({0, 0})) == 0);
  CHECK(iterations(listing(false), ragged({0, 2, 0})) == 2);
}

TEST_CASE("the listing has as many iterations under every schedule") {
  CHECK(everywhere(listing(), ragged({4, 3, 2, 1}), 60).iterations == 4);
  CHECK(everywhere(listing(false), ragged({1, 0, 3}), 60).iterations == 3);
}

TEST_CASE("an iteration that ends at the body's test is no iteration") {
  const Feeds five{{"n", Tensor::scalar(std::int64_t{5})}};
  const auto count = [](Var& step) { step.update(step + 1); };
  CHECK(iterations(counter([&](WhileLoop& loop, Var& step, const Var& n) {
                     loop.break_if(equal(step, n));
                     count(step);
                   }),
                   five) == 5);
  CHECK(iterations(counter([&](WhileLoop& loop, Var& step, const Var& n) {  // a test in two parts
                     loop.break_if(equal(step, n));
                     loop.break_if(equal(step * 2, n + 1));
                     count(step);
                   }),
                   five) == 3);
}

TEST_CASE("an iteration that ends later in the body is an iteration") {
  const Feeds five{{"n", Tensor::scalar(std::int64_t{5})}};
  const auto count = [](Var& step) { step.update(step + 1); };
  // The iteration changed what the loop carries.
  CHECK(iterations(counter([&](WhileLoop& loop, Var& step, const Var& n) {
                     count(step);
                     loop.break_if(equal(step, n));
                   }),
                   five) == 5);
  // It computed what the test does not need.
  CHECK(iterations(counter([&](WhileLoop& loop, Var& step, const Var& n) {
                     const Var next = step + 1;
                     loop.break_if(equal(step, n));
                     step.update(next);
                   }),
                   five) == 6);
  // It stored something, or ran a loop.
  CHECK(iterations(counter([&](WhileLoop& loop, Var& step, const Var& n) {
                     const TensorArray array(constant(1));
                     array.write(constant(0), step);
                     loop.break_if(equal(array.read(constant(0)), n));
                     count(step);
                   }),
                   five) == 6);
  CHECK(iterations(counter([&](WhileLoop& loop, Var& step, const Var& n) {
                     Var inner = Var::of(step.id());
                     WhileLoop again = while_loop({inner}, {.max_trips = 1});
                     {
                       const auto frame = again.frame();
                       inner.update(inner + 0);
                     }
                     loop.break_if(equal(inner, n));
                     count(step);
                   }),
                   five) == 12);
}

TEST_CASE("without keeping them, no more step scopes are alive at once than iterations may be under way") {
  for (const std::int64_t parallel : {1, 2, 8}) {
    const Program program = counter(
        [](WhileLoop& loop, Var& step, const Var& n) {
          loop.break_if(equal(step, n));
          step.update(step + 1);
        },
        {.parallel_iterations = parallel});
    for (const std::uint64_t seed : millrace::testing::seeds(20)) {
      INFO("seed ", seed);
      Schedule schedule(seed, millrace::testing::policy_of(seed));
      const RunResult result = on_sim(schedule, program, {{"n", Tensor::scalar(std::int64_t{300})}});
      CHECK(result.iterations == 300);
      CHECK(result.peak_step_scopes() <= parallel);
      CHECK(result.live_step_scopes() == 0);
      CHECK(result.step_scopes().empty());
    }
  }
}

TEST_CASE("a carried var that is under way all the time keeps no step scope alive") {
  Program program;
  const Guard guard(program);
  const TensorArray late = TensorArray::typed(constant(1), VarType(DType::f32, {}), "late");
  Var passed = late.read(constant(0));
  Var step = constant(0);
  WhileLoop loop = while_loop({step, passed});
  {
    const auto frame = loop.frame();
    loop.break_if(equal(step, constant(200)));
    step.update(step + 1);
  }
  late.write(constant(0), cast(step, DType::f32));
  output("passed", passed);
  const RunResult result = on_cpu(program);
  CHECK(result["passed"].tensor().item() == 200);
  CHECK(result.peak_step_scopes() <= 9);
  CHECK(result.live_step_scopes() == 0);
}

TEST_CASE("kept step scopes of nested loops tell which iteration they are") {
  Program program;
  {
    const Guard guard(program);
    Var i = constant(0);
    WhileLoop outer = while_loop({i});
    {
      const auto frame = outer.frame();
      outer.break_if(equal(i, constant(2)));
      Var j = constant(0);
      WhileLoop inner = while_loop({j});
      {
        const auto iterations = inner.frame();
        inner.break_if(equal(j, constant(3)));
        j.update(j + 1);
      }
      i.update(i + 1);
    }
    output("i", i);
  }
  RunOptions options;
  options.keep_step_scopes = true;
  const RunResult result = on_cpu(program, {}, options);
  CHECK(result.iterations == 2 + 2 * 3);
  std::size_t inner = 0;
  for (const auto& scope : result.step_scopes()) {
    if (scope->block() != 2) continue;
    CHECK(scope->parent()->block() == 1);
    CHECK(scope->step() == scope.get());
    ++inner;
  }
  CHECK(inner == 6);
}
