// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/fused_loop.h>

#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include <millrace/runtime/builder/array_var.h>
#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/layers/gru.h>
#include <millrace/runtime/layers/lstm.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/task/thread_executor.h>

#include "support/program_runs.h"
#include "support/random.h"
#include "support/random_lod.h"

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::build;
using layers::CellState, layers::CellStep;

namespace {

Tensor numbers(Random& random, const DDim& dims, DType dtype = DType::f32) {
  Tensor made(dtype, dims);
  for (std::int64_t i = 0; i < made.elements(); ++i) {
    if (dtype == DType::f64)
      made.mutable_data<double>()[i] = static_cast<double>(random.real());
    else
      made.mutable_data<float>()[i] = random.real();
  }
  return made;
}

/// A cell over rows of `c` features, with states of some widths.
struct CellCase {
  std::string name;
  std::int64_t c;
  std::vector<std::int64_t> widths;
  layers::Cell cell;
};

/// Ragged rows through the cell.
Program over_rows(const CellCase& each, bool boots, bool reverse, DType dtype = DType::f32) {
  Program program;
  program.set_title(each.name);
  const Guard guard(program);
  const Var x = input("x", VarType(dtype, {DDim::unknown, each.c}, 1));
  std::vector<CellState> states;
  for (std::size_t i = 0; i < each.widths.size(); ++i) {
    states.push_back({each.widths[i]});
    if (boots) states.back().initial = input("boot" + std::to_string(i), VarType(dtype, {DDim::unknown, each.widths[i]}));
  }
  const layers::Unrolled made = layers::unroll(each.cell, {x}, states, reverse);
  output("y", made.output);
  for (std::size_t i = 0; i < made.last.size(); ++i) output("last" + std::to_string(i), made.last[i]);
  return program;
}

Feeds feeds_for(Random& random, const CellCase& each, const LoD& lod, bool boots, DType dtype = DType::f32) {
  Feeds feeds{{"x", LoDTensor(numbers(random, {lod.rows(), each.c}, dtype), lod)}};
  for (std::size_t i = 0; boots && i < each.widths.size(); ++i)
    feeds.emplace("boot" + std::to_string(i), numbers(random, {lod.sequences(0), each.widths[i]}, dtype));
  return feeds;
}

RunOptions interpreted() {
  RunOptions options;
  options.gear = Gear::interpreted;
  return options;
}

/// Runs in both gears, with one thread and with two: equal bits and turns. Gives how many loops ran in one piece.
std::int64_t compare(const Program& program, const Feeds& feeds) {
  const RunResult wanted = on_cpu(program, feeds, interpreted());
  CHECK(wanted.fused_loops == 0);
  std::int64_t fused = 0;
  for (const int threads : {1, 2}) {
    INFO("threads ", threads);
    const RunResult found = run_fifo(run(Executable(program, make_cpu_device(threads)), feeds));
    CHECK(bits(found) == bits(wanted));
    CHECK(found.turns == wanted.turns);
    fused = found.fused_loops;
  }
  return fused;
}

/// Weights for cells: parameters of the program that is being built, drawn anew in each.
struct Weights {
  Random random;
  DType dtype = DType::f32;
  explicit Weights(std::uint64_t seed, DType of = DType::f32) : random(seed), dtype(of) {}
  Var operator()(const DDim& dims) { return parameter("w", numbers(random, dims, dtype)); }
};

CellCase spelled_lstm(std::int64_t c, std::int64_t h) {
  return {"lstm of its parts", c, {h, h}, [=](const Var& x, const std::vector<Var>& s) {
            Weights w(1);
            const auto gate = [&] { return matmul(s[0], w({h, h})) + w({h}) + matmul(x, w({c, h})); };
            const Var i = sigmoid(gate());
            const Var f = sigmoid(gate());
            const Var next = f * s[1] + i * tanh(gate());
            const Var y = sigmoid(gate()) * tanh(next);
            return CellStep{y, {y, next}};
          }};
}

CellCase peephole_lstm(std::int64_t c, std::int64_t h) {
  return {"peepholes and coupled gates", c, {h, h}, [=](const Var& x, const std::vector<Var>& s) {
            Weights w(2);
            const Var i = sigmoid(matmul(x, w({c, h})) + matmul(s[0], w({h, h})) + w({h}) * s[1]);
            const Var next = (1.0f - i) * s[1] + i * tanh(matmul(x, w({c, h})) + matmul(s[0], w({h, h})));
            const Var y = sigmoid(matmul(x, w({c, h})) + matmul(s[0], w({h, h})) + w({h}) * next) * tanh(next);
            return CellStep{y, {y, next}};
          }};
}

CellCase norm_lstm(std::int64_t c, std::int64_t h) {
  return {"layer norm and a projection", c, {h / 2, h}, [=](const Var& x, const std::vector<Var>& s) {
            Weights w(3);
            const Var all = layer_norm(matmul(s[0], w({h / 2, 4 * h})) + matmul(x, w({c, 4 * h})), w({4 * h}), w({4 * h}));
            const std::vector<Var> a = split(all, -1, {h, h, h, h});
            const Var next = layer_norm(sigmoid(a[1]) * s[1] + sigmoid(a[0]) * tanh(a[2]), w({h}), w({h}));
            const Var y = matmul(sigmoid(a[3]) * tanh(next), w({h, h / 2}));
            return CellStep{y, {y, next}};
          }};
}

/// Exponential gates with a normaliser and a stabiliser: four states.
CellCase exponential_lstm(std::int64_t c, std::int64_t h) {
  return {"exponential gates", c, {h, h, h, h}, [=](const Var& x, const std::vector<Var>& s) {
            Weights w(4);
            const auto pre = [&] { return matmul(x, w({c, h})) + matmul(s[0], w({h, h})) + w({h}); };
            const Var in = pre();
            const Var keep = pre();
            const Var high = maximum(keep + s[3], in);
            const Var i = exp(in - high);
            const Var f = exp(keep + s[3] - high);
            const Var next = f * s[1] + i * tanh(pre());
            const Var norm = f * s[2] + i;
            const Var y = sigmoid(pre()) * (next / maximum(abs(norm), constant(1.0f)));
            return CellStep{y, {y, next, norm, high}};
          }};
}

CellCase minimal_unit(std::int64_t c, std::int64_t h) {
  return {"minimal gated unit", c, {h}, [=](const Var& x, const std::vector<Var>& s) {
            Weights w(5);
            const Var f = sigmoid(matmul(x, w({c, h})) + matmul(s[0], w({h, h})));
            const Var y = (1.0f - f) * s[0] + f * tanh(matmul(x, w({c, h})) + matmul(f * s[0], w({h, h})));
            return CellStep{y, {y}};
          }};
}

/// The output comes of two products that no state needs.
CellCase with_head(std::int64_t c, std::int64_t h) {
  return {"a head behind the state", c, {h}, [=](const Var& x, const std::vector<Var>& s) {
            Weights w(6);
            const Var state = tanh(matmul(x, w({c, h})) + matmul(s[0], w({h, h})));
            return CellStep{softmax(matmul(relu(matmul(state, w({h, 2 * h}))), w({2 * h, 5}))), {state}};
          }};
}

/// Attends over what it carries of three states, and chooses by comparing.
CellCase window_cell(std::int64_t c, std::int64_t h) {
  return {"attention over a window", c, {h, h, h}, [=](const Var& x, const std::vector<Var>& s) {
            Weights w(7);
            const Var query = tanh(matmul(x, w({c, h})));
            std::vector<Var> rows;
            std::vector<Var> scores;
            for (const Var& state : s) {
              rows.push_back(reshape(state, {-1, 1, h}));
              scores.push_back(reduce(state * query, "sum", {-1}, true));
            }
            const Var weights = softmax(concat(scores, -1));
            const Var past = reduce(transpose(concat(rows, 1) * reshape(weights, {-1, 3, 1}), {0, 2, 1}), "sum", {2});
            const Var mixed = past + slice(weights, -1, 0, 1) * s[0] - slice(weights, -1, 2, 3) * s[2];
            const Var y = where(greater(mixed, query), mixed * 0.5f, query - mixed);
            return CellStep{y, {y, s[0], s[1]}};
          }};
}

std::vector<CellCase> cells(std::int64_t c, std::int64_t h) {
  return {spelled_lstm(c, h), peephole_lstm(c, h), norm_lstm(c, h),  exponential_lstm(c, h),
          minimal_unit(c, h), with_head(c, h),     window_cell(c, h)};
}

TEST_CASE("cells of many kinds run in one piece and give the bits of their turns one by one, on ragged batches with empty sequences") {
  for (const std::uint64_t seed : seeds(6)) {
    INFO("seed ", seed);
    Random random(seed);
    const std::int64_t c = random.between(1, 9);
    const std::int64_t h = 2 * random.between(1, 20);
    for (const CellCase& each : cells(c, h)) {
      INFO("cell: ", each.name);
      const bool boots = random.coin();
      const LoD lod = random_lod(random, 1, 12);
      const Feeds feeds = feeds_for(random, each, lod, boots);
      const std::int64_t fused = compare(over_rows(each, boots, random.coin()), feeds);
      CHECK(fused == (lod.rows() > 0 ? 1 : 0));
    }
  }
}

/// A cell drawn at random: a few dozen ops over what there is, then a product for each next state.
class RandomCell {
 public:
  RandomCell(std::uint64_t seed, std::vector<std::int64_t> widths) : weights_(seed), widths_(std::move(widths)) {}

  CellStep operator()(const Var& x, const std::vector<Var>& states) {
    made_ = states;
    made_.push_back(x);
    const std::int64_t ops = random().between(3, 25);
    for (std::int64_t i = 0; i < ops; ++i) made_.push_back(draw());
    std::vector<Var> next;
    for (const std::int64_t width : widths_) next.push_back(tanh(sized(any(), width)));
    return {sized(any(), random().between(1, 7)), next};
  }

 private:
  Random& random() { return weights_.random; }
  Var any() { return made_[static_cast<std::size_t>(random().between(0, static_cast<std::int64_t>(made_.size()) - 1))]; }
  static std::int64_t width(const Var& x) { return (*x.type().shape)[1]; }
  Var sized(const Var& x, std::int64_t columns) { return matmul(x, weights_({width(x), columns})); }
  /// Another of the same width, or one column, or weights.
  Var beside(const Var& x) {
    const Var other = any();
    if (width(other) == width(x)) return other;
    switch (random().between(0, 3)) {
      case 0: return weights_({width(x)});
      case 1: return reduce(other, random().coin() ? "sum" : "max", {-1}, true);
      case 2: return weights_({1});
      default: return sized(other, width(x));
    }
  }
  Var draw() {
    static const std::vector<std::string> unaries{"sigmoid", "tanh", "relu", "abs", "neg", "softsign", "hard_sigmoid", "floor"};
    static const std::vector<std::string> binaries{"add", "sub", "mul", "minimum", "maximum"};
    const auto one_of = [this](const std::vector<std::string>& names) {
      return names[static_cast<std::size_t>(random().between(0, static_cast<std::int64_t>(names.size()) - 1))];
    };
    const Var x = any();
    const std::int64_t n = width(x);
    switch (random().between(0, 9)) {
      case 0: return call1(one_of(unaries), {x});
      case 1: {
        const Var other = beside(x);
        return random().coin() ? call1(one_of(binaries), {x, other}) : call1(one_of(binaries), {other, x});
      }
      case 2: return sized(x, random().between(1, 20));
      case 3: {
        const std::int64_t begin = random().between(0, n - 1);
        return slice(x, -1, begin, random().between(begin + 1, n));
      }
      case 4: return concat({x, tanh(any())}, 1);
      case 5: return softmax(x);
      case 6: return layer_norm(x, weights_({n}), weights_({n}));
      case 7: return where(greater(x, beside(x)), x, beside(x));
      case 8: return n % 2 != 0 ? exp(-abs(x)) : reshape(transpose(reshape(x, {-1, 2, n / 2}), {0, 2, 1}), {-1, n});
      default: return n % 2 != 0 ? x * 0.5f : reduce(reshape(x, {-1, n / 2, 2}) * weights_({n / 2, 1}), "mean", {-1});
    }
  }

  Weights weights_;
  std::vector<std::int64_t> widths_;
  std::vector<Var> made_;
};

TEST_CASE("cells drawn at random give the bits of their turns one by one") {
  for (const std::uint64_t seed : seeds(40)) {
    INFO("seed ", seed);
    Random random(seed * 7919);
    CellCase each{"random", random.between(1, 9), {}, {}};
    for (std::int64_t states = random.between(1, 3); states > 0; --states) each.widths.push_back(random.between(1, 18));
    each.cell = [&](const Var& x, const std::vector<Var>& states) { return RandomCell(seed, each.widths)(x, states); };
    const bool boots = random.coin();
    const LoD lod = random_lod(random, 1, 9);
    const std::int64_t fused = compare(over_rows(each, boots, random.coin()), feeds_for(random, each, lod, boots));
    CHECK(fused == (lod.rows() > 0 ? 1 : 0));
  }
}

TEST_CASE("a batch of more sequences than a block holds gives each the bits that it has alone") {
  Random random(11);
  const CellCase each = spelled_lstm(5, 24);
  const Program program = over_rows(each, false, false);
  LoD::Level lengths;
  for (int i = 0; i < 150; ++i) lengths.push_back(random.between(0, 9));
  const LoD lod = LoD::from_lengths({lengths});
  const LoDTensor x(numbers(random, {lod.rows(), 5}), lod);
  CHECK(compare(program, {{"x", x}}) == 1);
  const RunResult whole = on_cpu(program, {{"x", x}});
  const std::vector<LoDTensor> apart = whole["y"].peel();
  const std::vector<LoDTensor> alone = x.peel();
  for (std::size_t i = 0; i < alone.size(); i += 7) {
    if (alone[i].rows() == 0) continue;
    const RunResult one = on_cpu(program, {{"x", LoDTensor(alone[i].tensor(), LoD::from_lengths({{alone[i].rows()}}))}});
    CHECK(one["y"].tensor().to_vector<float>() == apart[i].tensor().to_vector<float>());
  }
}

TEST_CASE("double precision fuses as single does") {
  Random random(5);
  CellCase each{"tanh", 3, {6}, [](const Var& x, const std::vector<Var>& s) {
                  Weights w(9, DType::f64);
                  const Var y = tanh(matmul(x, w({3, 6})) + matmul(s[0], w({6, 6})));
                  return CellStep{y, {y}};
                }};
  const LoD lod = LoD::from_lengths({{4, 0, 2}});
  Program program;
  {
    const Guard guard(program);
    const Var x = input("x", VarType(DType::f64, {DDim::unknown, 3}, 1));
    const Var boot = input("boot0", VarType(DType::f64, {DDim::unknown, 6}));
    output("y", layers::unroll(each.cell, {x}, {{6, boot}}).output);
  }
  CHECK(compare(program, feeds_for(random, each, lod, true, DType::f64)) == 1);
}

TEST_CASE("the built-in layers fuse, in both directions, stacked, ragged and dense") {
  Random random(3);
  const auto matrix = [&](std::int64_t rows, std::int64_t columns) { return numbers(random, {rows, columns}); };
  for (const bool dense : {false, true}) {
    Program program;
    {
      const Guard guard(program);
      const Var x = dense ? input("x", VarType(DType::f32, {DDim::unknown, 3, 4})) : input("x", VarType(DType::f32, {DDim::unknown, 4}, 1));
      std::vector<layers::LstmWeights> lstm;
      for (const std::int64_t c : {4, 4, 12, 12}) lstm.push_back({matrix(c, 24), matrix(6, 24), numbers(random, {24}), {}, {}});
      layers::LstmOptions options;
      options.direction = layers::Direction::bidirectional;
      const Var y = layers::lstm({x}, lstm, options).y;
      for (const auto reset : {layers::GruReset::after, layers::GruReset::before}) {
        layers::GruOptions gru;
        gru.reset = reset;
        gru.name = reset == layers::GruReset::after ? "after" : "before";
        output(gru.name, layers::gru({y}, {layers::gru_from_onnx(numbers(random, {1, 15, 12}), numbers(random, {1, 15, 5}))}, gru).y);
      }
    }
    const LoD lod = LoD::from_lengths({{3, 0, 5, 1}});
    const Feeds feeds = dense ? Feeds{{"x", numbers(random, {7, 3, 4})}} : Feeds{{"x", LoDTensor(numbers(random, {9, 4}), lod)}};
    CHECK(compare(program, feeds) == 6);
  }
}

/// The canonical listing, with weights that are fed.
Program listing(bool sorted, std::int64_t back = 1) {
  Program program;
  program.set_title("listing");
  const Guard guard(program);
  const Var x = input("x", VarType(DType::f32, {DDim::unknown, 3}, 1));
  const Var boot = input("boot", VarType(DType::f32, {DDim::unknown, 4}));
  const Var u = input("U", VarType(DType::f32, {4, 4}));
  const Var w = input("W", VarType(DType::f32, {3, 4}));
  const auto [steps, order] = unpack(x, 0, sorted);
  const Var n = steps.size();
  const build::TensorArray states(n, order, "states");
  const build::TensorArray outputs(n, order, "outputs");
  Var step = 0;
  auto loop = while_loop({step});
  {
    auto frame = loop.frame();
    loop.break_if(equal(step, n));
    const Var now = steps.read(step);
    const Var before = shrink(states.read(step - back, boot), now);
    const Var state = sigmoid(matmul(before, u * 0.5f) + matmul(now, w));
    states.write(step, state);
    outputs.write(step, state, share);
    step.update(step + 1);
  }
  output("y", pack(outputs, 0, order));
  output("step", step);
  return program;
}

TEST_CASE("the canonical listing runs in one piece, sorted and in the caller's order, with weights that a run brings") {
  Random random(8);
  const LoD lod = LoD::from_lengths({{3, 6, 1}});
  const Feeds feeds{{"x", LoDTensor(numbers(random, {10, 3}), lod)},
                    {"boot", numbers(random, {3, 4})},
                    {"U", numbers(random, {4, 4})},
                    {"W", numbers(random, {3, 4})}};
  for (const bool sorted : {true, false}) CHECK(compare(listing(sorted), feeds) == 1);
}

TEST_CASE("what inspect prints of the listing is one product ahead of the turns and one fused loop") {
  const Program program = listing(true);
  const Block& block = program.block(0);
  for (const Op& op : block.ops) {
    if (op.type != "while") continue;
    const std::string text = FusedLoop(program, 0, op).to_string();
    CHECK(text.find("gear: fused") != std::string::npos);
    CHECK(text.find("before them: 1 ops over rows, 1 of them products") != std::string::npos);
    CHECK(text.find("once: 1 ops") != std::string::npos);
    return;
  }
  FAIL("no loop");
}

TEST_CASE("loops that do not fit say why and run turn by turn") {
  const auto reason = [](const std::function<Var(const Var& step, const Var& n, const Var& x)>& body) {
    Program program;
    {
      const Guard guard(program);
      const Var x = input("x", VarType(DType::f32, {2, 2}));
      const Var n = input("n", VarType(DType::i64, {}));
      Var step = 0;
      Var state = x;
      auto loop = while_loop({step, state});
      {
        auto frame = loop.frame();
        loop.break_if(equal(step, n));
        state.update(body(step, n, state));
        step.update(step + 1);
      }
      output("y", state);
    }
    for (const Op& op : program.block(0).ops) {
      if (op.type != "while") continue;
      const Feeds feeds{{"x", Tensor::from<float>({1, 2, 3, 4}, {2, 2})}, {"n", Tensor::scalar<std::int64_t>(3)}};
      CHECK(bits(on_cpu(program, feeds)) == bits(on_cpu(program, feeds, interpreted())));
      try {
        FusedLoop(program, 0, op);
      } catch (const UnsupportedError& error) {
        return std::string(error.what());
      }
    }
    return std::string();
  };
  CHECK(reason([](const Var&, const Var&, const Var& x) { return sigmoid(x); }).empty());
  CHECK(reason([](const Var&, const Var&, const Var& x) { return call1("cumsum", {x}, {{"axis", std::int64_t{0}}}); }).find("cumsum") !=
        std::string::npos);
  CHECK(reason([](const Var&, const Var&, const Var& x) { return reduce(x, "sum", {0}, true) + x; }).find("gives no rows") !=
        std::string::npos);
  CHECK(reason([](const Var& step, const Var&, const Var& x) { return x * cast(step, DType::f32); }).find("a count of turns") !=
        std::string::npos);
  CHECK(reason([](const Var&, const Var&, const Var& x) { return matmul(x, x); }).find("no matrix of weights") != std::string::npos);
  CHECK(reason([](const Var&, const Var&, const Var& x) { return cast(cast(x, DType::f64), DType::f32); }).find("f64") !=
        std::string::npos);
}

TEST_CASE("a window of earlier states is carried") {
  Program program;
  {
    const Guard guard(program);
    const Var x = input("x", VarType(DType::f32, {DDim::unknown, 2, 3}));
    const ArrayVar steps = ArrayVar::unstack(x);
    const Var n = steps.size();
    const ArrayVar states(n + 2, "states");
    states.write(0, constant(Tensor::from<float>({1, 2, 3, 4, 5, 6}, {2, 3})));
    states.write(1, constant(Tensor::from<float>({6, 5, 4, 3, 2, 1}, {2, 3})));
    Var step = 0;
    auto loop = while_loop({step});
    {
      auto frame = loop.frame();
      loop.break_if(equal(step, n));
      states.write(step + 2, tanh(steps.read(step) + states.read(step + 1) - states.read(step)));
      step.update(step + 1);
    }
    output("y", states.stack());
  }
  Random random(2);
  CHECK(compare(program, {{"x", numbers(random, {6, 2, 3})}}) == 1);
}

TEST_CASE("a run that is cancelled while a fused loop turns ends soon") {
  for (const bool product : {true, false}) {
    Program program;
    {
      const Guard guard(program);
      const Var x = input("x", VarType(DType::f32, {8, 64}));
      const Var n = input("n", VarType(DType::i64, {}));
      const Var w = parameter("w", Tensor::from(std::vector<float>(64 * 64, 0.01f), {64, 64}));
      Var step = 0;
      Var state = x;
      auto loop = while_loop({step, state});
      {
        auto frame = loop.frame();
        loop.break_if(equal(step, n));
        state.update(tanh(product ? matmul(state, w) : -state));
        step.update(step + 1);
      }
      output("y", state);
    }
    Random random(4);
    RunOptions options;
    options.deadline = std::chrono::milliseconds(20);
    const Feeds feeds{{"x", numbers(random, {8, 64})}, {"n", Tensor::scalar<std::int64_t>(100'000'000)}};
    ThreadExecutor executor(1);
    CHECK_THROWS_AS(start_run(executor, run(program, feeds, options), "a long loop").get(), DeadlineError);
  }
}

TEST_CASE("runs of one executable at once, on several threads, give the bits of each alone") {
  Random random(8);
  Program program;
  {
    const Guard guard(program);
    const Var x = input("x", VarType(DType::f32, {DDim::unknown, 4}, 1));
    std::vector<layers::GruWeights> weights;
    for (const std::int64_t c : {4, 4, 12, 12})
      weights.push_back({numbers(random, {c, 18}), numbers(random, {6, 18}), numbers(random, {18}), numbers(random, {18})});
    layers::GruOptions options;
    options.direction = layers::Direction::bidirectional;
    const layers::GruResult made = layers::gru({x}, weights, options);
    output("y", made.y);
    output("h", made.h[3]);
  }
  constexpr std::size_t count = 8;
  std::vector<Feeds> feeds;
  std::vector<std::string> wanted;
  for (std::size_t i = 0; i < count; ++i) {
    const LoD lod = random_lod(random, 1, 60);
    feeds.push_back({{"x", LoDTensor(numbers(random, {lod.rows(), 4}), lod)}});
    wanted.push_back(bits(on_cpu(program, feeds.back(), interpreted())));
  }
  const Executable executable(program, make_cpu_device(2, 2));
  ThreadExecutor executor(3);
  for (int round = 0; round < 10; ++round) {
    std::vector<Running<RunResult>> running;
    for (const Feeds& fed : feeds) running.push_back(start_run(executor, run(executable, fed), "one of many"));
    running[static_cast<std::size_t>(round) % count].cancel();
    for (std::size_t i = 0; i < count; ++i) {
      try {
        const RunResult found = running[i].get();
        CHECK(bits(found) == wanted[i]);
      } catch (const CancelledError&) {
        CHECK(i == static_cast<std::size_t>(round) % count);
      }
    }
  }
}

TEST_CASE("a traced run shows its turns, unless the fused gear is asked for by name") {
  Random random(8);
  const Feeds feeds{{"x", LoDTensor(numbers(random, {10, 3}), LoD::from_lengths({{3, 6, 1}}))},
                    {"boot", numbers(random, {3, 4})},
                    {"U", numbers(random, {4, 4})},
                    {"W", numbers(random, {3, 4})}};
  RunOptions kept;
  kept.keep_step_scopes = true;
  const RunResult result = on_cpu(listing(true), feeds, kept);
  CHECK(result.fused_loops == 0);
  CHECK(result.step_scopes().size() == 6);
}

}  // namespace
