// SPDX-License-Identifier: Apache-2.0
// StaticRNN and DynamicRNN as recurrences: fed row by row, alone and in a crowd, they give the bits of the whole.
#include <doctest/doctest.h>

#include <support/built.h>
#include <support/program_runs.h>
#include <support/random_tensor.h>
#include <support/step_by_step.h>

#include <millrace/runtime/builder/dynamic_rnn.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/builder/static_rnn.h>

using namespace millrace;
using millrace::testing::built_program;
using millrace::testing::bytes_of;
using millrace::testing::Random;
using millrace::testing::random_tensor;
using millrace::testing::says;
using millrace::testing::StepByStep;

namespace {

constexpr std::int64_t features = 3;
constexpr std::int64_t hidden = 5;

struct Net {
  explicit Net(Random& random) : w(random_tensor(random, {features, hidden})), u(random_tensor(random, {hidden, hidden})) {}
  build::Var step(const build::Var& x, const build::Var& h) const {
    return build::tanh(build::matmul(x, build::constant(w)) + build::matmul(h, build::constant(u)));
  }
  Tensor w, u;
};

template <class RNN>
build::Var cell(RNN& rnn, const build::Var& x, const build::Var& h, const Net& net) {
  const build::Var next = net.step(x, h);
  rnn.update_memory(h, next);
  return next;
}

std::string refusal(const Program& program) {
  try {
    make_recurrence(program);
  } catch (const UnsupportedError& error) {
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("a DynamicRNN with a boot, a filled memory and a static input: the same bits whole and row by row, alone and in a crowd") {
  for (const std::uint64_t seed : millrace::testing::seeds(12)) {
    INFO("seed ", seed);
    Random random(seed);
    const Net net(random);
    const bool sorted = random.coin();
    const Program program = built_program([&] {
      const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, features}, 1));
      const build::Var boot = build::input("boot", VarType(DType::f32, {DDim::unknown, hidden}));
      const build::Var still = build::input("still", VarType(DType::f32, {DDim::unknown, hidden}));
      build::DynamicRNN rnn({.sort_by_length = sorted});
      build::Var h;
      {
        const auto block = rnn.block();
        const build::Var x_t = rnn.step_input(x);
        h = rnn.memory(boot);
        const build::Var sum = rnn.memory(DType::f32, {hidden}, 2.5);
        const build::Var next = cell(rnn, x_t, h, net) + rnn.static_input(still);
        rnn.update_memory(sum, sum + next);
        rnn.output(sum * next);
      }
      build::output("y", rnn.outputs()[0]);
      build::output("last", rnn.last(h));
    });
    const Recurrence recurrence = make_recurrence(program);
    CHECK(recurrence.at_end == std::vector<std::string>{"last"});
    CHECK(recurrence.given.size() == 2);
    const std::int64_t steps = random.between(1, 9);
    std::vector<Tensor> xs;
    std::vector<std::vector<Value>> given;
    for (int s = 0; s < 3; ++s) {
      xs.push_back(random_tensor(random, {steps, features}));
      given.push_back({random_tensor(random, {1, hidden}), random_tensor(random, {1, hidden})});
    }
    const auto crowd = StepByStep(recurrence).run_all(xs, given);
    for (std::size_t s = 0; s < xs.size(); ++s) {
      const LoDTensor rows(xs[s], LoD::from_lengths({{steps}}));
      const RunResult whole =
          millrace::testing::on_cpu(program, {{"x", rows}, {"boot", given[s][0].tensor()}, {"still", given[s][1].tensor()}});
      CHECK(crowd[s] == bytes_of(whole["y"].tensor()));
      CHECK(StepByStep(recurrence).run(xs[s], given[s]) == bytes_of(whole["y"].tensor()));
    }
  }
}

TEST_CASE("stacked DynamicRNNs stream") {
  Random random(4);
  const Net first(random);
  const Net second(random);
  const Program program = built_program([&] {
    build::Var rows = build::input("x", VarType(DType::f32, {DDim::unknown, features}, 1));
    for (const Net* net : {&first, &second}) {
      build::DynamicRNN rnn;
      {
        const auto block = rnn.block();
        const build::Var x_t = rnn.step_input(rows);
        const build::Var h = rnn.memory(DType::f32, {hidden});
        const build::Var y = cell(rnn, x_t, h, *net);
        rnn.output(build::slice(y, 1, 0, features));
      }
      rows = rnn.outputs()[0];
    }
    build::output("y", rows);
  });
  const Recurrence recurrence = make_recurrence(program);
  CHECK(recurrence.states.size() == 2);
  const Tensor x = random_tensor(random, {7, features});
  const LoDTensor rows(x, LoD::from_lengths({{7}}));
  CHECK(StepByStep(recurrence).run(x) == bytes_of(millrace::testing::on_cpu(program, {{"x", rows}})["y"].tensor()));
}

TEST_CASE("two step inputs are two live inputs, of which a step takes one row each") {
  const Program program = built_program([] {
    const build::Var a = build::input("a", VarType(DType::f32, {DDim::unknown, 1}, 1));
    const build::Var b = build::input("b", VarType(DType::f32, {DDim::unknown, 1}, 1));
    build::DynamicRNN rnn;
    {
      const auto block = rnn.block();
      const build::Var a_t = rnn.step_input(a), b_t = rnn.step_input(b);
      const build::Var h = rnn.memory(DType::f32, {1});
      const build::Var next = h + a_t * b_t;
      rnn.update_memory(h, next);
      rnn.output(next);
    }
    build::output("y", rnn.outputs()[0]);
  });
  const Recurrence recurrence = make_recurrence(program);
  REQUIRE(recurrence.inputs.size() == 2);
  REQUIRE(recurrence.states.size() == 1);
  const Tensor one = Tensor::from<float>({2}).reshape({1, 1});
  const StraightProgram step(recurrence.step);
  const std::vector<Value> results = step.run({one, Tensor::from<float>({3}).reshape({1, 1}), Tensor::from<float>({10}).reshape({1, 1})});
  CHECK(results[0].tensor().tensor().item() == 16);
}

TEST_CASE("a StaticRNN over one sequence streams, from a boot that it fills itself") {
  Random random(6);
  const Net net(random);
  const Program program = built_program([&] {
    const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, 1, features}));
    build::StaticRNN rnn;
    {
      const auto block = rnn.block();
      const build::Var x_t = rnn.step_input(x);
      const build::Var h = rnn.memory(DType::f32, {hidden}, 0.5);
      rnn.output(cell(rnn, x_t, h, net));
    }
    build::output("y", rnn.outputs()[0]);
  });
  const Recurrence recurrence = make_recurrence(program);
  REQUIRE(recurrence.states.size() == 1);
  const Tensor x = random_tensor(random, {8, 1, features});
  CHECK(StepByStep(recurrence).run(x) == bytes_of(millrace::testing::on_cpu(program, {{"x", x}})["y"].tensor()));
}

TEST_CASE("what is not causal, or puts what a sequence has not once beside its steps, is refused by name") {
  const auto reversed = [](int levels, bool reverse, bool live_static) {
    return built_program([&] {
      const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, 1}, levels));
      build::DynamicRNN rnn({.reverse = reverse});
      {
        const auto block = rnn.block();
        const build::Var x_t = rnn.step_input(x);
        rnn.output(live_static ? rnn.static_input(x) : x_t);
      }
      build::output("y", rnn.outputs()[0]);
    });
  };
  CHECK(says(refusal(reversed(1, true, false)), {"unpack", "from its end"}));
  CHECK(says(refusal(reversed(2, true, false)), {"unpack", "from its end"}));
  CHECK(make_recurrence(reversed(2, false, false)).levels == 2);
  CHECK(says(refusal(reversed(1, false, true)), {"reorder", "one row for each sequence"}));
  CHECK(says(refusal(built_program([] {
               const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, 1, 1}));
               build::StaticRNN rnn({.reverse = true});
               {
                 const auto block = rnn.block();
                 rnn.output(rnn.step_input(x));
               }
               build::output("y", rnn.outputs()[0]);
             })),
             {"reverse"}));
}
