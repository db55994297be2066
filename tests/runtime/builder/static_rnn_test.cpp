// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/builder/static_rnn.h>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/ops.h>

#include "support/built.h"
#include "support/program_runs.h"
#include "support/random.h"

using namespace millrace::build;
using millrace::DDim, millrace::DType, millrace::Feeds, millrace::Program, millrace::RunResult, millrace::ShapeError, millrace::Tensor,
    millrace::VarType;
using namespace millrace::testing;

namespace {

using Floats = std::vector<float>;

const VarType time_first(DType::f32, {DDim::unknown, DDim::unknown, 1});

Floats of(const RunResult& result, const std::string& name) { return result[name].tensor().to_vector<float>(); }

/// h = h / 2 + x·still, from `boot` or from 3.
Program halving(bool boots, StaticRNN::Options options) {
  return built_program([&] {
    const Var x = input("x", time_first), still = input("still", VarType(DType::f32, {DDim::unknown, 1}));
    const Var boot = boots ? input("boot", VarType(DType::f32, {DDim::unknown, 1})) : Var();
    StaticRNN rnn(options);
    Var h;
    {
      const auto block = rnn.block();
      const Var x_t = rnn.step_input(x);
      h = boots ? rnn.memory(boot) : rnn.memory(DType::f32, {1}, 3);
      const Var next = h / 2.0 + x_t * rnn.static_input(still);
      rnn.update_memory(h, next);
      rnn.output(next);
      rnn.output(x_t);
    }
    output("y", rnn.outputs()[0]);
    output("same", rnn.outputs()[1]);
    output("last", rnn.last(h));
  });
}

}  // namespace

TEST_CASE("case 20, time first: h = (h + x) / 2 from 4") {
  const RunResult result = everywhere(built_program([] {
                                        const Var x = input("x", time_first);
                                        StaticRNN rnn;
                                        Var h;
                                        {
                                          const auto block = rnn.block();
                                          const Var x_t = rnn.step_input(x);
                                          h = rnn.memory(DType::f32, {1}, 4);
                                          const Var next = (h + x_t) / 2.0;
                                          rnn.update_memory(h, next);
                                          rnn.output(next);
                                        }
                                        output("y", rnn.outputs()[0]);
                                        output("last", rnn.last(h));
                                      }),
                                      {{"x", Tensor::from<float>({1, 2, 3}).reshape({3, 1, 1})}}, 60);
  CHECK(of(result, "y") == Floats{2.5f, 2.25f, 2.625f});
  CHECK(result["y"].dims() == DDim{3, 1, 1});
  CHECK(of(result, "last") == Floats{2.625f});
}

TEST_CASE("any extents, with and without boot, forward and reversed: the plain loop, on the CPU and in any order of completion") {
  for (const std::uint64_t seed : seeds(40)) {
    INFO("seed ", seed);
    Random random(seed);
    const std::int64_t steps = random.between(0, 6), sequences = random.between(1, 4);
    const auto fill = [&](std::int64_t count) {
      Floats values;
      for (std::int64_t i = 0; i < count; ++i) values.push_back(random.real());
      return values;
    };
    const Floats x = fill(steps * sequences), still = fill(sequences), boot = fill(sequences);
    const bool boots = random.coin();
    const StaticRNN::Options options{.reverse = random.coin(), .parallel_iterations = random.between(1, 6)};
    Floats wanted(x.size());
    Floats last = boots ? boot : Floats(still.size(), 3.f);
    for (std::int64_t t = 0; t < steps; ++t)
      for (std::int64_t s = 0; s < sequences; ++s) {
        const auto at = static_cast<std::size_t>((options.reverse ? steps - 1 - t : t) * sequences + s);
        float& h = last[static_cast<std::size_t>(s)];
        h = h / 2.f + x[at] * still[static_cast<std::size_t>(s)];
        wanted[at] = h;
      }
    Feeds feeds{{"x", Tensor::from(x, {steps, sequences, 1})}, {"still", Tensor::from(still, {sequences, 1})}};
    if (boots) feeds.emplace("boot", Tensor::from(boot, {sequences, 1}));
    const Program program = halving(boots, options);
    const RunResult result = on_cpu(program, feeds);
    CHECK(of(result, "y") == wanted);
    // Without a step nothing says how many sequences a step has.
    CHECK(result["y"].dims() == DDim{steps, steps == 0 ? result["y"].dims()[1] : sequences, 1});
    CHECK(of(result, "same") == x);
    CHECK(of(result, "last") == last);
    Schedule schedule(seed, policy_of(seed));
    CHECK(bits(on_sim(schedule, program, feeds)) == bits(result));
  }
}

TEST_CASE("case 23: a second step input with other steps or sequences is an error that names both") {
  const Program program = built_program([] {
    const Var first = input("first", time_first), second = input("second", time_first);
    StaticRNN rnn;
    {
      const auto block = rnn.block();
      const Var a = rnn.step_input(first), b = rnn.step_input(second);
      rnn.output(a + b);
    }
    output("y", rnn.outputs()[0]);
  });
  const auto refused = [&](const DDim& other) {
    try {
      on_cpu(program, {{"first", Tensor::from<float>({1, 2, 3, 4, 5, 6}).reshape({3, 2, 1})},
                       {"second", Tensor::from(Floats(static_cast<std::size_t>(other.elements()), 1.f), other)}});
    } catch (const ShapeError& error) {
      return says(error.what(), {"step inputs", "'first' of [3, 2, 1]", "'second' of " + other.to_string()});
    }
    return false;
  };
  CHECK(refused({2, 2, 1}));
  CHECK(refused({4, 2, 1}));
  CHECK(refused({3, 1, 1}));
  CHECK(says(build_refusal([] {
               const Var a = input("a", VarType(DType::f32, {3, 2, 1})), b = input("b", VarType(DType::f32, {4, 2, 1}));
               StaticRNN rnn;
               const auto block = rnn.block();
               rnn.step_input(a);
               rnn.step_input(b);
             }),
             {"same_steps", "steps", "3", "4"}));
}

TEST_CASE("steps of scalars take a boot, and are refused without one") {
  const auto counting = [](bool boots) {
    return [boots] {
      const Var x = input("x", VarType(DType::f32, {DDim::unknown}));
      StaticRNN rnn;
      Var h;
      {
        const auto block = rnn.block();
        const Var x_t = rnn.step_input(x);
        h = boots ? rnn.memory(constant(Tensor::from<float>({10}))) : rnn.memory(DType::f32, {});
        rnn.update_memory(h, h + x_t);
      }
      return rnn.last(h);
    };
  };
  CHECK(built_values<float>(counting(true), {{"x", Tensor::from<float>({1, 2, 3})}}) == Floats{16});
  CHECK(says(build_refusal([&] { counting(false)(); }), {"StaticRNN: memory", "[T, B, …]", "'x' of f32[?]", "give a boot"}));
}

TEST_CASE("over no steps, time first, outputs have as many sequences as the run brought") {
  for (const bool boots : {true, false}) {
    const Tensor rows = Tensor::from(Floats{1, 2, 3}, DDim{3, 1});
    Feeds feeds{{"x", Tensor::from(Floats{}, DDim{0, 3, 1})}, {"still", rows}};
    if (boots) feeds["boot"] = rows;
    for (const bool reverse : {true, false}) {
      const RunResult result = everywhere(halving(boots, {.reverse = reverse}), feeds, 5);
      CHECK(result["y"].dims() == DDim{0, 3, 1});
      CHECK(result["same"].dims() == DDim{0, 3, 1});
      CHECK(of(result, "last") == (boots ? Floats{1, 2, 3} : Floats{3, 3, 3}));
    }
  }
}
