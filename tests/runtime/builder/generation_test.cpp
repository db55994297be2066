// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/builder/generation.h>

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <set>

#include <reference/reference.h>

#include "support/built.h"
#include "support/random.h"

using namespace millrace;
using namespace millrace::testing;

namespace {

namespace b = millrace::build;
using Ints = std::vector<std::int64_t>;

/// A small language model: h ← tanh(h·R + E[token]), log-probabilities log_softmax(h·W).
struct Toy {
  explicit Toy(std::uint64_t seed, std::int64_t vocabulary = 4, std::int64_t units = 3) : tokens(vocabulary), hidden(units) {
    Random random(seed);
    const auto make = [&](std::int64_t rows, std::int64_t columns) {
      reference::Values made{DDim{rows, columns}, {}};
      for (std::int64_t i = 0; i < rows * columns; ++i) made.at.push_back(2 * static_cast<double>(random.real()));
      return made;
    };
    e = make(tokens, hidden);
    r = make(hidden, hidden);
    w = make(hidden, tokens);
  }

  /// The weights are parameters, or, `fed`, inputs of the program: those are not packed.
  b::Model model(bool fed) const {
    const auto weight = [fed](const char* name, const reference::Values& value) {
      return fed ? b::input(name, VarType(DType::f32, value.dims)) : b::parameter(name, reference::tensor(value, DType::f32));
    };
    const b::Var E = weight("E", e), R = weight("R", r), W = weight("W", w);
    return [=](const b::Var& last, const std::vector<b::Var>& states, const b::Var&) -> b::ModelStep {
      const b::Var h = b::tanh(b::matmul(states.at(0), R) + b::embedding(E, b::reshape(last, {-1})));
      return {b::call1("log_softmax", {b::matmul(h, W)}, {{"axis", std::int64_t{-1}}}), {h}};
    };
  }

  /// In f64: from a state and the last token to the log-probabilities; the state moves on.
  std::vector<double> step(reference::Values& h, std::int64_t token) const {
    h = reference::matmul(h, r);
    for (std::int64_t i = 0; i < hidden; ++i) {
      double& at = h.at[static_cast<std::size_t>(i)];
      at = std::tanh(at + e.at[static_cast<std::size_t>(token * hidden + i)]);
    }
    std::vector<double> said = reference::matmul(h, w).at;
    double sum = 0;
    for (const double score : said) sum += std::exp(score);
    for (double& score : said) score -= std::log(sum);
    return said;
  }

  std::int64_t tokens, hidden;
  reference::Values e, r, w;
};

struct Hypothesis {
  Ints tokens;
  double total = 0;
};

/// Every sequence that ends with token 0 or has `left` more tokens.
void enumerate(const Toy& toy, const reference::Values& h, std::int64_t last, std::size_t left, const Hypothesis& sofar,
               std::vector<Hypothesis>& all) {
  if (left == 0 || (!sofar.tokens.empty() && sofar.tokens.back() == 0)) return all.push_back(sofar);
  reference::Values next = h;
  const std::vector<double> said = toy.step(next, last);
  for (std::int64_t token = 0; token < toy.tokens; ++token) {
    Hypothesis longer = sofar;
    longer.tokens.push_back(token);
    longer.total += said[static_cast<std::size_t>(token)];
    enumerate(toy, next, token, left - 1, longer, all);
  }
}

std::vector<Hypothesis> enumerated(const Toy& toy, const Tensor& state, std::int64_t start, std::size_t length) {
  std::vector<Hypothesis> all;
  enumerate(toy, reference::values(state), start, length, {}, all);
  return all;
}

double ranked(const Hypothesis& of, double penalty) { return of.total / std::pow(static_cast<double>(of.tokens.size()), penalty); }

enum class Way { beam, greedy, sampled };

struct Plan {
  Way way = Way::beam;
  std::int64_t width = 3;
  bool fed = false;
  b::Sampling sampling;
  b::GenerationOptions options;
};

Program program_of(const Toy& toy, const Plan& plan) {
  Program program;
  const b::Guard guard(program);
  const b::Var start = b::input("start", VarType(DType::i64, DDim{DDim::unknown}));
  const b::Var state = b::input("state", VarType(DType::f32, DDim{DDim::unknown, toy.hidden}));
  const b::Model model = toy.model(plan.fed);
  const b::Generated made = [&] {
    if (plan.way == Way::greedy) return b::generate_greedy(model, start, {state}, plan.options);
    if (plan.way == Way::beam) return b::generate_beam(model, start, {state}, plan.width, plan.options);
    return b::generate_sampled(model, start, {state}, b::input("keys", VarType(DType::i64, DDim{DDim::unknown})), plan.sampling,
                               plan.options);
  }();
  b::output("tokens", made.tokens);
  b::output("scores", made.scores);
  b::output("totals", made.totals);
  return program;
}

/// The starts of N sources.
struct Sources {
  Sources(const Toy& toy, std::uint64_t seed, std::int64_t n) {
    Random random(seed);
    Ints first, key;
    reference::Values h{DDim{n, toy.hidden}, {}};
    for (std::int64_t i = 0; i < n; ++i) {
      first.push_back(random.between(0, toy.tokens - 1));
      key.push_back(1000 + i);
    }
    for (std::int64_t i = 0; i < n * toy.hidden; ++i) h.at.push_back(static_cast<double>(random.real()));
    start = Tensor::from(first, DDim{n});
    keys = Tensor::from(key, DDim{n});
    state = reference::tensor(h, DType::f32);
  }
  Feeds feeds(const Plan& plan, std::int64_t begin, std::int64_t end) const {
    Feeds made{{"start", start.rows(begin, end)}, {"state", state.rows(begin, end)}};
    if (plan.way == Way::sampled) made["keys"] = keys.rows(begin, end);
    return made;
  }
  Feeds feeds(const Plan& plan) const { return feeds(plan, 0, start.dim(0)); }
  Tensor start, keys, state;
};

bool same(const LoDTensor& a, const LoDTensor& b) {
  return a.dims() == b.dims() && a.lod() == b.lod() && a.dtype() == b.dtype() &&
         (a.tensor().bytes() == 0 || std::memcmp(a.tensor().raw(), b.tensor().raw(), a.tensor().bytes()) == 0);
}

std::vector<Ints> hypotheses(const LoDTensor& tokens) {
  std::vector<Ints> all;
  const Ints flat = tokens.tensor().to_vector<std::int64_t>();
  const auto offsets = tokens.lod().offsets(1);
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) all.emplace_back(flat.begin() + offsets[i], flat.begin() + offsets[i + 1]);
  return all;
}

}  // namespace

TEST_CASE("a beam that holds everything finds every sequence, the best first, with and without a length penalty") {
  for (const std::uint64_t seed : seeds(8)) {
    for (const double penalty : {0.0, 0.7}) {
      INFO("seed ", seed, ", penalty ", penalty);
      const Toy toy(seed, 3);
      Plan plan;
      plan.width = 200;
      plan.options.max_length = 4;
      plan.options.length_penalty = penalty;
      const Sources sources(toy, seed, 2);
      const RunResult found = run_fifo(run(program_of(toy, plan), sources.feeds(plan)));
      const std::vector<Ints> sequences = hypotheses(found["tokens"]);
      const std::vector<float> totals = found["totals"].tensor().to_vector<float>();
      for (std::int64_t n = 0; n < 2; ++n) {
        std::vector<Hypothesis> all =
            enumerated(toy, sources.state.rows(n, n + 1), sources.start.to_vector<std::int64_t>()[static_cast<std::size_t>(n)], 4);
        const auto [begin, end] = found["totals"].lod().row_range(0, n, n + 1);
        REQUIRE(end - begin == static_cast<std::int64_t>(all.size()));
        std::set<Ints> seen;
        for (std::int64_t at = begin; at < end; ++at) {
          const Ints& tokens = sequences[static_cast<std::size_t>(at)];
          seen.insert(tokens);
          const auto known = std::find_if(all.begin(), all.end(), [&](const Hypothesis& one) { return one.tokens == tokens; });
          REQUIRE(known != all.end());
          CHECK(totals[static_cast<std::size_t>(at)] == doctest::Approx(known->total).epsilon(1e-5));
        }
        CHECK(seen.size() == all.size());
        double best = -std::numeric_limits<double>::infinity();
        for (const Hypothesis& one : all) best = std::max(best, ranked(one, penalty));
        const auto first = static_cast<std::size_t>(begin);
        CHECK(ranked({sequences[first], totals[first]}, penalty) == doctest::Approx(best).epsilon(1e-5));
      }
    }
  }
}

TEST_CASE("greedy generation takes the best token at each step until the end token or the most there may be") {
  for (const std::uint64_t seed : seeds(20)) {
    INFO("seed ", seed);
    const Toy toy(seed, 5);
    Plan plan;
    plan.way = Way::greedy;
    plan.options.max_length = 7;
    const Sources sources(toy, seed, 3);
    const RunResult found = run_fifo(run(program_of(toy, plan), sources.feeds(plan)));
    const std::vector<Ints> sequences = hypotheses(found["tokens"]);
    REQUIRE(sequences.size() == 3);
    for (std::int64_t n = 0; n < 3; ++n) {
      reference::Values h = reference::values(sources.state.rows(n, n + 1));
      std::int64_t last = sources.start.to_vector<std::int64_t>()[static_cast<std::size_t>(n)];
      Ints wanted;
      do {
        const std::vector<double> said = toy.step(h, last);
        last = std::max_element(said.begin(), said.end()) - said.begin();
        wanted.push_back(last);
      } while (last != 0 && wanted.size() < 7);
      CHECK(sequences[static_cast<std::size_t>(n)] == wanted);
    }
  }
}

TEST_CASE("a source gets the same tokens and bits alone and among others, with 1 or 2 threads, whatever the way of choosing") {
  const Toy toy(4, 6, 5);
  const Sources sources(toy, 5, 7);
  for (const Way way : {Way::beam, Way::greedy, Way::sampled}) {
    Plan plan;
    plan.way = way;
    plan.options.max_length = 12;
    const Program program = program_of(toy, plan);
    const RunResult whole = run_fifo(run(program, sources.feeds(plan)));
    const RunResult again = run_fifo(run(Executable(program, std::make_shared<CpuDevice>(2)), sources.feeds(plan)));
    for (const char* name : {"tokens", "scores", "totals"}) CHECK(same(again[name], whole[name]));
    for (std::int64_t n = 0; n < 7; ++n) {
      INFO("source ", n);
      const RunResult alone = run_fifo(run(program, sources.feeds(plan, n, n + 1)));
      for (const char* name : {"tokens", "scores", "totals"}) CHECK(same(alone[name], whole[name].slice(0, n, n + 1)));
    }
  }
}

TEST_CASE("generation gives the same on a device whose streams complete in any order") {
  const Toy toy(6);
  const Sources sources(toy, 6, 3);
  for (const Way way : {Way::beam, Way::sampled}) {
    Plan plan;
    plan.way = way;
    plan.fed = true;
    plan.options.max_length = 5;
    const Program program = program_of(toy, plan);
    Feeds feeds = sources.feeds(plan);
    for (const auto& [name, value] : {std::pair("E", &toy.e), std::pair("R", &toy.r), std::pair("W", &toy.w)})
      feeds[name] = reference::tensor(*value, DType::f32);
    const RunResult wanted = run_fifo(run(program, feeds));
    for (const std::uint64_t seed : seeds(20)) {
      INFO("seed ", seed);
      Schedule schedule(seed);
      const RunResult found = schedule.run(run(Executable(program, std::shared_ptr<Device>(&schedule.device, [](Device*) {})), feeds));
      CHECK(found["tokens"].tensor().copy_to(CpuPlace{}).to_vector<std::int64_t>() == wanted["tokens"].tensor().to_vector<std::int64_t>());
      CHECK(found["totals"].tensor().copy_to(CpuPlace{}).to_vector<float>() == wanted["totals"].tensor().to_vector<float>());
      CHECK(found["tokens"].lod() == wanted["tokens"].lod());
    }
  }
}

TEST_CASE("what is drawn follows the model, and seed and key alone say which") {
  const Toy toy(9, 3);
  Plan plan;
  plan.way = Way::sampled;
  plan.options.max_length = 2;
  const std::int64_t n = 6000;
  Sources one(toy, 9, 1);
  Sources many = one;
  Ints start(static_cast<std::size_t>(n), one.start.to_vector<std::int64_t>()[0]), keys;
  std::vector<float> state;
  for (std::int64_t i = 0; i < n; ++i) {
    keys.push_back(i);
    for (const float h : one.state.to_vector<float>()) state.push_back(h);
  }
  many.start = Tensor::from(start, DDim{n});
  many.keys = Tensor::from(keys, DDim{n});
  many.state = Tensor::from(state, DDim{n, toy.hidden});
  const RunResult found = run_fifo(run(program_of(toy, plan), many.feeds(plan)));
  std::map<Ints, double> count;
  for (const Ints& tokens : hypotheses(found["tokens"])) count[tokens] += 1.0 / static_cast<double>(n);
  for (const Hypothesis& each : enumerated(toy, one.state, start[0], 2)) CHECK(std::abs(count[each.tokens] - std::exp(each.total)) < 0.03);
  Plan other = plan;
  other.sampling.seed = 1;
  CHECK_FALSE(same(run_fifo(run(program_of(toy, other), many.feeds(other)))["tokens"], found["tokens"]));
}

TEST_CASE("a hook forbids tokens, and may look at the last ones and the step") {
  const Toy toy(3, 5);
  Plan plan;
  plan.options.max_length = 6;
  plan.options.hook = [](const b::Var& scores, const b::Var& last, const b::Var& step) {
    // Token 2 never, the last token not again, and no end before step 3.
    const float never = -std::numeric_limits<float>::infinity();
    const b::Var columns = b::constant(Tensor::from<std::int64_t>({0, 1, 2, 3, 4}));
    const b::Var early = b::logical_and(b::equal(columns, b::constant(0)), b::less(step, b::constant(3)));
    const b::Var bad = b::logical_or(b::logical_or(b::equal(columns, b::constant(2)), early), b::equal(columns, last));
    return b::where(bad, b::constant(Tensor::scalar(never)), scores);
  };
  const Sources sources(toy, 3, 4);
  const RunResult found = run_fifo(run(program_of(toy, plan), sources.feeds(plan)));
  for (const Ints& tokens : hypotheses(found["tokens"])) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      CHECK(tokens[i] != 2);
      if (i > 0) CHECK(tokens[i] != tokens[i - 1]);
      if (i < 3) CHECK(tokens[i] != 0);
    }
  }
}

TEST_CASE("no sources give no sequences, and one more iteration is not made once all are finished") {
  const Toy toy(1);
  Plan plan;
  plan.options.max_length = 50;
  const Sources sources(toy, 1, 3);
  const RunResult none = run_fifo(run(program_of(toy, plan), sources.feeds(plan, 0, 0)));
  CHECK(none["tokens"].dims() == DDim{0, 1});
  CHECK(none["tokens"].lod() == LoD::from_lengths({LoD::Level{}, LoD::Level{}}));
  plan.way = Way::greedy;
  plan.options.hook = [](const b::Var& scores, const b::Var&, const b::Var& step) {
    // From step 2 on the end token alone.
    const b::Var columns = b::constant(Tensor::from<std::int64_t>({0, 1, 2, 3}));
    const b::Var late = b::logical_and(b::greater(columns, b::constant(0)), b::greater_equal(step, b::constant(2)));
    const b::Var soon = b::logical_and(b::equal(columns, b::constant(0)), b::less(step, b::constant(2)));
    return b::where(b::logical_or(late, soon), b::constant(Tensor::scalar(-std::numeric_limits<float>::infinity())), scores);
  };
  const RunResult found = run_fifo(run(program_of(toy, plan), sources.feeds(plan)));
  for (const Ints& tokens : hypotheses(found["tokens"])) CHECK(tokens.size() == 3);
  CHECK(found.iterations == 3);
}

TEST_CASE("a model that forgets a state, a length of 0, an end token that is none and a width of 0 are refused when the program is built") {
  const Toy toy(1);
  const auto refused = [&](const Plan& plan) { return build_refusal([&] { program_of(toy, plan); }); };
  Plan length;
  length.options.max_length = 0;
  CHECK(says(refused(length), {"generate: expected a max_length of 1 or more, found 0"}));
  for (const Way way : {Way::beam, Way::greedy, Way::sampled}) {
    Plan end;
    end.way = way;
    end.options.end_token = toy.tokens;
    CHECK(says(refused(end), {"generate: expected an end_token among the 4 tokens of the model, found 4"}));
  }
  Plan width;
  width.width = 0;
  CHECK(says(refused(width), {"beam_search_step", "expected a beam_size of 1 or more, found 0"}));
  CHECK(says(build_refusal([&] {
               const b::Var start = b::input("start", VarType(DType::i64, DDim{DDim::unknown}));
               const b::Var state = b::input("state", VarType(DType::f32, DDim{DDim::unknown, 4}));
               b::generate_greedy(
                   [](const b::Var&, const std::vector<b::Var>& states, const b::Var&) -> b::ModelStep { return {states[0], {}}; }, start,
                   {state}, {});
             }),
             {"generate: expected 1 states from the model, found 0"}));
}
