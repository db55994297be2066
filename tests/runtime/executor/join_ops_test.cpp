// SPDX-License-Identifier: Apache-2.0
// Ops of interpreted loops that run joined, and branches that run where they stand.
#include <millrace/runtime/executor/join_ops.h>

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/executor/executable.h>
#include <millrace/runtime/trace/tracer.h>
#include <support/built.h>
#include <support/program_runs.h>
#include <support/random.h>
#include <support/random_tensor.h>

using namespace millrace::build;
using millrace::Backend, millrace::CompiledBlock, millrace::DDim, millrace::DType, millrace::Executable, millrace::Feeds,
    millrace::IndexError, millrace::Program, millrace::RunOptions, millrace::RunResult, millrace::Tensor, millrace::Tracer,
    millrace::VarType;
using millrace::testing::bits, millrace::testing::built_program, millrace::testing::on_cpu, millrace::testing::Random,
    millrace::testing::random_tensor, millrace::testing::says;

namespace {

using Ints = std::vector<std::int64_t>;

/// state = chosen(state, x[t], k[t]) for each slot, in a loop that no backend takes, because it has a branch.
Program branching(const DDim& slot, const DDim& integers, bool checks_place = false) {
  return built_program([&] {
    const Var x = input("x", VarType(DType::f32, slot.inserted(0, DDim::unknown)));
    const Var k = input("k", VarType(DType::i64, integers.inserted(0, DDim::unknown)));
    const Var w = parameter("w", Tensor::from<float>({.5F, -.25F, .125F, 1, -.5F, .75F, .25F, -1, .5F}, {3, 3}));
    const TensorArray rows = TensorArray::unstack(x), counts = TensorArray::unstack(k);
    const Var n = rows.size();
    const TensorArray out(n, "out");
    Var step = constant(0), state = rows.read(constant(0)) * 0.5f, total = counts.read(constant(0));
    WhileLoop loop = while_loop({step, state, total});
    {
      const auto frame = loop.frame();
      loop.break_if(equal(step, n));
      const Var row = rows.read(step), count = counts.read(step);
      total.update(call1("mod", {total * constant(2) + count, constant(7)}));
      const Var some = less(sum(cast(total, DType::f32)), Var(10.0));
      const std::vector<Var> next = if_else(
          some, [&]() -> std::vector<Var> { return {tanh(matmul(state, w) + row * 0.5f)}; },
          [&]() -> std::vector<Var> {
            const Var place = checks_place ? step : constant(1);
            const Var other = gather(call1("concat", {constant(Tensor::from<float>({1, 2, 3}))}, {{"axis", std::int64_t{0}}}), place);
            return {sigmoid(state - row) * (other + 1.0f)};
          });
      state.update(where(equal(call1("mod", {total, constant(2)}), constant(0)), next[0], next[0] * 0.5f + 0.25f));
      out.write(step, state);
      step.update(step + 1);
    }
    output("y", out.stack());
    output("total", total);
  });
}

RunOptions one_by_one() {
  RunOptions options;
  options.backend = Backend::interpreted;
  return options;
}

const CompiledBlock* joined(const Executable& executable, std::size_t block) {
  const auto& made = executable.compiled().joined.at(block);
  return made ? &*made : nullptr;
}

Feeds feeds_of(Random& random, const DDim& slot, const DDim& integers, std::int64_t steps, std::int64_t least = -9, std::int64_t most = 9) {
  Ints counts(static_cast<std::size_t>(integers.inserted(0, steps).elements()));
  for (std::int64_t& count : counts) count = random.between(least, most);
  return {{"x", random_tensor(random, slot.inserted(0, steps))}, {"k", Tensor::from(counts, integers.inserted(0, steps))}};
}

}  // namespace

TEST_CASE("small ops of a loop with branches run joined, with the bits of each op alone") {
  Random random(1);
  const Program program = branching({2, 3}, {1});
  const Executable executable(program);
  const CompiledBlock* const body = joined(executable, 1);
  REQUIRE(body != nullptr);
  CHECK(body->ops.size() < executable.compiled().block(1).ops.size());
  CHECK(joined(executable, 2) != nullptr);
  CHECK(joined(executable, 0) == nullptr);
  for (const std::int64_t steps : {1, 2, 20}) {
    const Feeds feeds = feeds_of(random, {2, 3}, {1}, steps);
    const RunResult found = on_cpu(program, feeds), wanted = on_cpu(program, feeds, one_by_one());
    CHECK(bits(found) == bits(wanted));
    CHECK(found.iterations == wanted.iterations);
  }
}

TEST_CASE("rows of an unknown number join too") {
  Random random(2);
  const Program program = branching({DDim::unknown, 3}, {});
  CHECK(joined(Executable(program), 2) != nullptr);
  for (const std::int64_t rows : {1, 4}) {
    const Feeds feeds = feeds_of(random, {rows, 3}, {}, 9);
    CHECK(bits(on_cpu(program, feeds)) == bits(on_cpu(program, feeds, one_by_one())));
  }
}

TEST_CASE("integers beyond those that a kernel of rows holds take each op alone") {
  Random random(3);
  const Program program = branching({2, 3}, {1});
  const std::int64_t large = std::int64_t{1} << 40;
  const Feeds feeds = feeds_of(random, {2, 3}, {1}, 9, large, large + 1000);
  CHECK(bits(on_cpu(program, feeds)) == bits(on_cpu(program, feeds, one_by_one())));
}

TEST_CASE("a chain of integers that leaves the exact numbers of a row kernel is several groups") {
  const Program program = built_program([] {
    const Var k = input("k", VarType(DType::i64, {2}));
    const Var more = input("more", VarType(DType::boolean, {}));
    output("y", if_else(
                    more,
                    [&]() -> std::vector<Var> {
                      Var x = k;
                      for (int i = 0; i < 9; ++i) x = x * constant(5) - constant(1);
                      return {x};
                    },
                    [&]() -> std::vector<Var> { return {k}; })[0]);
  });
  const Executable executable(program);
  const CompiledBlock* const then = joined(executable, 1);
  REQUIRE(then != nullptr);
  CHECK(then->ops.size() > 2);
  CHECK(then->ops.size() < 18);
  for (const std::int64_t most : {3, 1 << 20}) {
    const Feeds feeds{{"k", Tensor::from<std::int64_t>({most, -most})}, {"more", Tensor::scalar(true)}};
    CHECK(bits(on_cpu(program, feeds)) == bits(on_cpu(program, feeds, one_by_one())));
  }
}

TEST_CASE("a loop that has to wait for a ready task once has one iteration under way at a time") {
  const Program program = built_program([] {
    const auto iterate = [](const Var& from, std::int64_t count) {
      Var step = constant(0), state = from;
      WhileLoop loop = while_loop({step, state});
      {
        const auto frame = loop.frame();
        loop.break_if(equal(step, constant(count)));
        state.update(if_else(
            less(step, constant(2)), [&]() -> std::vector<Var> { return {tanh(state + from)}; },
            [&]() -> std::vector<Var> { return {sigmoid(state - from)}; })[0]);
        step.update(step + 1);
      }
      return state;
    };
    output("y", iterate(iterate(constant(Tensor::from<float>({1, 2})), 5), 50));
  });
  const RunResult result = on_cpu(program);
  CHECK(result.iterations == 55);
  CHECK(result.peak_step_scopes() <= 2);
  CHECK(bits(result) == bits(on_cpu(program, {}, one_by_one())));
}

TEST_CASE("a traced run shows each op of a group") {
  Random random(4);
  const Program program = branching({2, 3}, {1});
  const Feeds feeds = feeds_of(random, {2, 3}, {1}, 3);
  Tracer tracer;
  RunOptions options;
  options.tracer = &tracer;
  CHECK(bits(on_cpu(program, feeds, options)) == bits(on_cpu(program, feeds)));
  CHECK(tracer.to_json().find("\"where\"") != std::string::npos);
}

TEST_CASE("an error in a branch that runs where it stands names op, block and iteration") {
  Random random(5);
  const Program program = branching({2, 3}, {1}, true);
  Feeds feeds = feeds_of(random, {2, 3}, {1}, 5);
  for (auto& [name, value] : feeds)
    if (name == "k") value = Tensor::from(Ints{3, 3, 3, 3, 3}, {5, 1});
  for (const RunOptions& options : {RunOptions{}, one_by_one()}) {
    try {
      on_cpu(program, feeds, options);
    } catch (const IndexError& error) {
      CHECK(says(error.what(), {"op gather of block 3", "iteration", "of block 1"}));
    }
  }
}

TEST_CASE("a slot that is handed on keeps its order beside ops that run joined") {
  const Program program = built_program([] {
    const Var x = input("x", VarType(DType::f32, {DDim::unknown, 1}, 1));
    const auto [steps, order] = millrace::build::unpack(x, 0, true);
    const Var n = steps.size();
    Var step = constant(0);
    const millrace::build::ArrayVar out(n, order, "out");
    WhileLoop loop = while_loop({step});
    {
      const auto frame = loop.frame();
      loop.break_if(equal(step, n));
      const Var now = steps.read(step), kept = identity(steps.read(maximum(step - 1, constant(0))));
      const Var more = kept * 2.0f + 1.0f;
      out.write(step, shrink(kept, now) + now);
      step.update(step + cast(sum(more, {0, 1}) * 0.0f + 1.0f, DType::i64));
    }
    output("y", pack(out, 0, order));
  });
  const Tensor rows = Tensor::from<float>({1, 2, 10, 20, 30, 40, 50, 7}, {8, 1});
  const Feeds feeds{{"x", millrace::LoDTensor(rows, millrace::LoD::from_lengths({{2, 6}}))}};
  CHECK(bits(on_cpu(program, feeds)) == bits(on_cpu(program, feeds, one_by_one())));
}

TEST_CASE("an op of a group that waits for nothing is not held up by one that waits") {
  // Each loop reads in its iteration what the other has written in the same one.
  const Program program = built_program([] {
    const VarType row(DType::f32, {3});
    const Var n = input("n", VarType(DType::i64, {}));
    const TensorArray there = TensorArray::typed(n, row, "there"), back = TensorArray::typed(n, row, "back");
    const auto iterate = [&](const auto& body) {
      Var step = constant(0), state = constant(Tensor::from<float>({1, 2, 3}));
      WhileLoop loop = while_loop({step, state});
      {
        const auto frame = loop.frame();
        loop.break_if(equal(step, n));
        const Var chosen = if_else(
            less(step, constant(2)), [&]() -> std::vector<Var> { return {state * 0.5f + 0.125f}; },
            [&]() -> std::vector<Var> { return {state}; })[0];
        state.update(body(step, chosen));
        step.update(step + 1);
      }
      return state;
    };
    const Var first = iterate([&](const Var& step, const Var& state) {
      const Var sent = tanh(state) * 0.5f;
      const Var taken = tanh(back.read(step)) * 0.25f;
      there.write(step, sent);
      return sent + taken;
    });
    const Var second = iterate([&](const Var& step, const Var& state) {
      const Var seen = sigmoid(there.read(step)) + state;
      back.write(step, seen);
      return seen * 0.5f;
    });
    output("first", first);
    output("second", second);
  });
  const Feeds feeds{{"n", Tensor::scalar<std::int64_t>(20)}};
  CHECK(bits(on_cpu(program, feeds)) == bits(on_cpu(program, feeds, one_by_one())));
}
