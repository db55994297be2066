// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/builder/dynamic_rnn.h>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/program/check.h>
#include <millrace/runtime/program/text.h>

#include "support/built.h"
#include "support/program_runs.h"
#include "support/random.h"

using namespace millrace::build;
using millrace::DDim, millrace::DType, millrace::Feeds, millrace::LoD, millrace::LoDError, millrace::LoDTensor, millrace::Program,
    millrace::RunResult, millrace::Tensor, millrace::VarType;
using namespace millrace::testing;

namespace {

using Floats = std::vector<float>;
using Lengths = LoD::Level;

LoDTensor rows(const Floats& values, const std::vector<Lengths>& lengths) {
  return LoDTensor(Tensor::from(values, {static_cast<std::int64_t>(values.size()), 1}), LoD::from_lengths(lengths));
}
Tensor column(const Floats& values) { return Tensor::from(values, {static_cast<std::int64_t>(values.size()), 1}); }
Var ragged(const std::string& name, int levels = 1) { return input(name, VarType(DType::f32, {DDim::unknown, 1}, levels)); }
Var plain(const std::string& name) { return input(name, VarType(DType::f32, {DDim::unknown, 1})); }
Floats of(const RunResult& result, const std::string& name) { return result[name].tensor().to_vector<float>(); }

/// h = h·decay + x, every state as "y", the last ones as "last".
Program decaying(float decay, DynamicRNN::Options options) {
  return built_program([&] {
    const Var x = ragged("x", options.level + 1);
    const Var boot = plain("boot");
    DynamicRNN rnn(options);
    Var h;
    {
      const auto block = rnn.block();
      const Var x_t = rnn.step_input(x);
      h = rnn.memory(boot);
      const Var next = h * Var(decay) + x_t;
      rnn.update_memory(h, next);
      rnn.output(next);
    }
    output("y", rnn.outputs()[0]);
    output("last", rnn.last(h));
  });
}

struct Walked {
  Floats y;
  Floats last;
};
/// The same by a plain loop over each sequence.
Walked walk(const Floats& x, const Lengths& lengths, const Floats& boot, float decay, bool reverse) {
  Walked walked;
  walked.y.resize(x.size());
  std::size_t begin = 0;
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    const auto n = static_cast<std::size_t>(lengths[s]);
    float h = boot[s];
    for (std::size_t t = 0; t < n; ++t) {
      const std::size_t row = begin + (reverse ? n - 1 - t : t);
      h = h * decay + x[row];
      walked.y[row] = h;
    }
    walked.last.push_back(h);
    begin += n;
  }
  return walked;
}

}  // namespace

TEST_CASE("case 21: sums over ragged sequences with boots, in the caller's order") {
  for (const bool sorted : {true, false}) {
    const Program program = decaying(1, {.sort_by_length = sorted});
    check(program);
    const RunResult result = everywhere(program, {{"x", rows({1, 2, 3, 4, 5, 6}, {{3, 1, 2}})}, {"boot", column({10, 20, 30})}});
    CHECK(of(result, "y") == Floats{11, 13, 16, 24, 35, 41});
    CHECK(result["y"].lod() == LoD::from_lengths({{3, 1, 2}}));
    CHECK(of(result, "last") == Floats{16, 24, 41});
  }
}

TEST_CASE("case 20: h = (h + x) / 2 from 4") {
  const RunResult result = on_cpu(built_program([] {
                                    const Var x = ragged("x");
                                    DynamicRNN rnn;
                                    {
                                      const auto block = rnn.block();
                                      const Var x_t = rnn.step_input(x);
                                      const Var h = rnn.memory(DType::f32, {1}, 4);
                                      const Var next = (h + x_t) / 2.0;
                                      rnn.update_memory(h, next);
                                      rnn.output(next);
                                    }
                                    output("y", rnn.outputs()[0]);
                                  }),
                                  {{"x", rows({1, 2, 3}, {{3}})}});
  CHECK(of(result, "y") == Floats{2.5f, 2.25f, 2.625f});
}

TEST_CASE(
    "any lengths, sorted or not, forward or reversed: the plain loop over each sequence, on the CPU and on devices that complete in any "
    "order") {
  for (const std::uint64_t seed : seeds(60)) {
    INFO("seed ", seed);
    Random random(seed);
    Lengths lengths;
    for (std::int64_t s = random.between(0, 5); s >= 0; --s) lengths.push_back(random.between(0, 6));
    Floats x;
    Floats boot;
    for (const std::int64_t length : lengths) {
      boot.push_back(random.real());
      for (std::int64_t t = 0; t < length; ++t) x.push_back(random.real());
    }
    const DynamicRNN::Options options{
        .sort_by_length = random.coin(), .reverse = random.coin(), .parallel_iterations = random.between(1, 6)};
    const Program program = decaying(0.5f, options);
    const Feeds feeds{{"x", rows(x, {lengths})}, {"boot", column(boot)}};
    const Walked wanted = walk(x, lengths, boot, 0.5f, options.reverse);
    const RunResult on_host = on_cpu(program, feeds);
    CHECK(of(on_host, "y") == wanted.y);
    CHECK(of(on_host, "last") == wanted.last);
    CHECK(on_host["y"].lod() == LoD::from_lengths({lengths}));
    Schedule schedule(seed, policy_of(seed));
    const RunResult on_device = on_sim(schedule, program, feeds);
    CHECK(of(on_device, "y") == wanted.y);
    CHECK(of(on_device, "last") == wanted.last);
  }
}

TEST_CASE("outer levels and their empty sequences come back when the steps are those of an inner level") {
  const LoDTensor x = rows({1, 2, 3, 4, 5, 6}, {{2, 0, 1}, {3, 0, 3}});
  const RunResult result = on_cpu(decaying(1, {.level = 1}), {{"x", x}, {"boot", column({0, 5, 10})}});
  CHECK(of(result, "y") == Floats{1, 3, 6, 14, 19, 25});
  CHECK(result["y"].lod() == x.lod());
  CHECK(of(result, "last") == Floats{6, 5, 25});
}

// ---- Static inputs ----

TEST_CASE("case 6: a static input with sub-sequences is re-ordered with the batch and shrinks with it") {
  const Program program = built_program([] {
    const Var x = ragged("x");
    const Var still = ragged("still");
    DynamicRNN rnn;
    {
      const auto block = rnn.block();
      rnn.step_input(x);
      rnn.output(rnn.static_input(still));
    }
    output("y", rnn.outputs()[0]);
  });
  // Lengths [2,1,3] of x; those of the static input are [1,2,3], and per step [3,1,2], [3,1], [3].
  const Feeds feeds{{"x", rows({0, 1, 2, 3, 4, 5}, {{2, 1, 3}})}, {"still", rows({10, 20, 21, 30, 31, 32}, {{1, 2, 3}})}};
  millrace::RunOptions keep;
  keep.keep_step_scopes = true;
  const RunResult result = on_cpu(program, feeds, keep);
  CHECK(result["y"].lod() == LoD::from_lengths({{2, 1, 3}, {1, 1, 2, 3, 3, 3}}));
  CHECK(of(result, "y") == Floats{10, 10, 20, 21, 30, 31, 32, 30, 31, 32, 30, 31, 32});
  const std::vector<Lengths> wanted{{3, 1, 2}, {3, 1}, {3}};
  for (std::int64_t iteration = 0; iteration < 3; ++iteration) {
    const auto* value = result.step_value(1, iteration, "shrink");
    REQUIRE(value != nullptr);
    CHECK(value->tensor().lod() == LoD::from_lengths({wanted[static_cast<std::size_t>(iteration)]}));
  }
  CHECK(bits(everywhere(program, feeds, 60)) == bits(result));
}

TEST_CASE("a static input of one row for each sequence, sorted, unsorted and reversed") {
  for (const bool sorted : {true, false})
    for (const bool reverse : {true, false}) {
      const Program program = built_program([&] {
        const Var x = ragged("x");
        const Var still = plain("still");
        DynamicRNN rnn({.sort_by_length = sorted, .reverse = reverse});
        {
          const auto block = rnn.block();
          const Var x_t = rnn.step_input(x);
          rnn.output(rnn.static_input(still) + x_t);
        }
        output("y", rnn.outputs()[0]);
      });
      const RunResult result = on_cpu(program, {{"x", rows({1, 2, 3, 4}, {{1, 3, 0}})}, {"still", column({100, 200, 300})}});
      CHECK(of(result, "y") == Floats{101, 202, 203, 204});
    }
}

// ---- Several of everything ----

TEST_CASE("several inputs, memories and outputs, one of which is an input as it came") {
  const RunResult result = on_cpu(built_program([] {
                                    const Var a = ragged("a"), b = ragged("b");
                                    DynamicRNN rnn({.reverse = true});
                                    Var sum, count;
                                    {
                                      const auto block = rnn.block();
                                      const Var a_t = rnn.step_input(a), b_t = rnn.step_input(b);
                                      sum = rnn.memory(DType::f32, {1});
                                      count = rnn.memory(DType::i64, {1}, 100);
                                      const Var next = sum + a_t * b_t;
                                      rnn.update_memory(count, count + 1);
                                      rnn.update_memory(sum, next);
                                      rnn.output(next);
                                      rnn.output(b_t);
                                    }
                                    output("sums", rnn.outputs()[0]);
                                    output("same", rnn.outputs()[1]);
                                    output("sum", rnn.last(sum));
                                    output("count", rnn.last(count));
                                  }),
                                  {{"a", rows({1, 2, 3}, {{2, 0, 1}})}, {"b", rows({10, 20, 30}, {{2, 0, 1}})}});
  CHECK(of(result, "sums") == Floats{50, 40, 90});
  CHECK(of(result, "same") == Floats{10, 20, 30});
  CHECK(of(result, "sum") == Floats{50, 0, 90});
  CHECK(result["count"].tensor().to_vector<std::int64_t>() == std::vector<std::int64_t>{102, 100, 101});
}

TEST_CASE("case 23: a second step input of other lengths is an error that names both, on every schedule") {
  const Program program = built_program([] {
    const Var first = ragged("first"), second = ragged("second");
    DynamicRNN rnn;
    {
      const auto block = rnn.block();
      const Var a = rnn.step_input(first), b = rnn.step_input(second);
      rnn.output(a + b);
    }
    output("y", rnn.outputs()[0]);
  });
  const Feeds feeds{{"first", rows({1, 2, 3}, {{2, 1}})}, {"second", rows({1, 2, 3}, {{1, 2}})}};
  const auto refused = [&](const std::function<void()>& running) {
    try {
      running();
    } catch (const LoDError& error) {
      return says(error.what(), {"step inputs", "'first' with [[2,1]]", "'second' with [[1,2]]", "level 0"});
    }
    return false;
  };
  CHECK(refused([&] { on_cpu(program, feeds); }));
  for (const std::uint64_t seed : seeds(40)) {
    INFO("seed ", seed);
    CHECK(refused([&] {
      Schedule schedule(seed, policy_of(seed));
      on_sim(schedule, program, feeds);
    }));
  }
}

TEST_CASE("a step input may have levels below: its sub-sequences go with the rows of another") {
  const RunResult result = on_cpu(built_program([] {
                                    const Var words = ragged("words", 2), weight = ragged("weight");
                                    DynamicRNN rnn;
                                    {
                                      const auto block = rnn.block();
                                      rnn.step_input(weight);
                                      rnn.output(rnn.step_input(words));
                                    }
                                    output("y", rnn.outputs()[0]);
                                  }),
                                  {{"words", rows({1, 2, 3, 4, 5, 6}, {{2, 1}, {3, 1, 2}})}, {"weight", rows({1, 2, 3}, {{2, 1}})}});
  CHECK(of(result, "y") == Floats{1, 2, 3, 4, 5, 6});
  CHECK(result["y"].lod() == LoD::from_lengths({{2, 1}, {3, 1, 2}}));
}

// ---- Nested ----

namespace {

Program nested(bool sort_outer, bool sort_inner) {
  return built_program([&] {
    const Var x = ragged("x", 2);
    const Var boot = plain("boot");
    DynamicRNN outer({.sort_by_length = sort_outer});
    Var h;
    {
      const auto block = outer.block();
      const Var sentence = outer.step_input(x);
      h = outer.memory(boot);
      DynamicRNN inner({.sort_by_length = sort_inner});
      Var state;
      {
        const auto inside = inner.block();
        const Var word = inner.step_input(sentence);
        state = inner.memory(h);
        const Var next = state * 0.5 + word;
        inner.update_memory(state, next);
        inner.output(next);
      }
      outer.update_memory(h, inner.last(state));
      outer.output(inner.outputs()[0]);
    }
    output("y", outer.outputs()[0]);
    output("last", outer.last(h));
  });
}

}  // namespace

TEST_CASE("an inner RNN over sub-sequences that boots from the outer memory is the flat RNN") {
  for (const std::uint64_t seed : seeds(40)) {
    INFO("seed ", seed);
    Random random(seed);
    Lengths outer;
    Lengths inner;
    Lengths flat;
    Floats x;
    Floats boot;
    for (std::int64_t s = random.between(0, 3); s >= 0; --s) {
      outer.push_back(random.between(0, 3));
      flat.push_back(0);
      boot.push_back(random.real());
      for (std::int64_t t = 0; t < outer.back(); ++t) {
        inner.push_back(random.between(0, 4));
        flat.back() += inner.back();
        for (std::int64_t w = 0; w < inner.back(); ++w) x.push_back(random.real());
      }
    }
    const Walked wanted = walk(x, flat, boot, 0.5f, false);
    const Program program = nested(random.coin(), random.coin());
    const Feeds feeds{{"x", rows(x, {outer, inner})}, {"boot", column(boot)}};
    const RunResult result = on_cpu(program, feeds);
    CHECK(of(result, "y") == wanted.y);
    CHECK(of(result, "last") == wanted.last);
    CHECK(result["y"].lod() == LoD::from_lengths({outer, inner}));
    const RunResult flat_result = on_cpu(decaying(0.5f, {}), {{"x", rows(x, {flat})}, {"boot", column(boot)}});
    CHECK(of(flat_result, "y") == of(result, "y"));
    Schedule schedule(seed, policy_of(seed));
    const RunResult on_device = on_sim(schedule, program, feeds);
    CHECK(of(on_device, "y") == wanted.y);
    CHECK(of(on_device, "last") == wanted.last);
  }
}

TEST_CASE("a program with DynamicRNNs prints, and its text parses to the same") {
  const Program program = nested(true, false);
  check(program);
  CHECK(print(millrace::parse_program(print(program), {})) == print(program));
}

TEST_CASE("a boot or static input with a row too few is an error, never a neighbour's row") {
  const std::string what = [] {
    try {
      on_cpu(decaying(1, {}), {{"x", rows({1, 2, 3}, {{2, 1}})}, {"boot", column({1})}});
    } catch (const LoDError& error) {
      return std::string(error.what());
    }
    return std::string();
  }();
  INFO(what);
  CHECK(says(what, {"boot", "one for each sequence", "2 rows", "found"}));
  CHECK_THROWS_AS(on_cpu(decaying(1, {}), {{"x", rows({}, {{0, 0}})}, {"boot", column({1})}}), LoDError);
}
