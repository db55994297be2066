// SPDX-License-Identifier: Apache-2.0
#include <tuple>

#include <doctest/doctest.h>

#include <support/random_tensor.h>
#include <support/step_by_step.h>

#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/builder/sequence_ops.h>
#include <millrace/runtime/task/seeded_executor.h>
#include <millrace/runtime/task/sync_wait.h>

using namespace millrace;
using millrace::testing::bytes_of;
using millrace::testing::Random;
using millrace::testing::random_tensor;
using millrace::testing::StepByStep;

namespace {

/// h' = sigmoid(h·U + x·W), over sequences of f32 rows, in the ways of writing the loop that designs and users have.
enum class Form { listing, memories_ahead, carried, condition };

Program rnn(Form form, const Tensor& u, const Tensor& w) {
  Program program;
  const build::Guard guard(program);
  const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, w.dim(0)}, 1));
  const build::Var boot = build::input("boot", VarType(DType::f32, {DDim::unknown, u.dim(0)}));
  const build::Var U = build::parameter("U", u);
  const build::Var W = build::parameter("W", w);
  auto [steps, order] = build::unpack(x, 0, build::sort_by_length);
  const build::Var n = steps.size();
  build::ArrayVar states(n, order, "states"), outputs(n, order, "outputs");
  const auto cell = [&](const build::Var& h, const build::Var& row) { return build::sigmoid(build::matmul(h, U) + build::matmul(row, W)); };
  build::Var step = build::constant(0);
  if (form == Form::carried) {
    build::Var h = build::identity(boot);
    build::WhileLoop loop = build::while_loop({step, h});
    {
      const auto frame = loop.frame();
      loop.break_if(build::greater_equal(step, n));
      h.update(cell(h, steps.read(step)));
      outputs.write(step, h);
      step.update(step + 1);
    }
  } else if (form == Form::condition) {
    build::Var go = build::less(step, n);
    build::WhileLoop loop = build::while_op(go, {step});
    {
      const auto frame = loop.frame();
      const build::Var row = steps.read(step);
      const build::Var h = cell(build::shrink(states.read(step - 1, boot), row), row);
      states.write(step, h);
      outputs.write(step, h);
      step.update(step + 1);
      go.update(build::less(step, n));
    }
  } else {
    const bool ahead = form == Form::memories_ahead;
    const build::ArrayVar memories(n + 1, "memories");
    if (ahead) memories.write(build::constant(0), boot);
    build::WhileLoop loop = build::while_loop({step});
    {
      const auto frame = loop.frame();
      loop.break_if(build::equal(step, n));
      const build::Var row = steps.read(step);
      const build::Var h = ahead ? cell(memories.read(step), row) : cell(build::shrink(states.read(step - 1, boot), row), row);
      if (ahead)
        memories.write(step + 1, h);
      else
        states.write(step, h);
      outputs.write(step, h);
      step.update(step + 1);
    }
  }
  build::output("y", build::pack(outputs, 0, order));
  return program;
}

std::vector<std::byte> whole(const Program& program, const Tensor& x, const Tensor& boot) {
  SeededExecutor executor(7);
  const LoDTensor rows(x, LoD::from_lengths({{x.dim(0)}}));
  return bytes_of(sync_wait(executor, run(program, {{"x", rows}, {"boot", boot}}))["y"].tensor());
}

}  // namespace

TEST_CASE("a loop over rows gives the same bits whole, step by step, alone and in a crowd, however it was written") {
  for (const std::uint64_t seed : millrace::testing::seeds(8)) {
    INFO("seed ", seed);
    Random random(seed);
    const std::int64_t c = random.between(1, 40);
    const std::int64_t h = random.between(1, 40);
    const std::int64_t steps = random.between(1, 12);
    const Tensor u = random_tensor(random, {h, h});
    const Tensor w = random_tensor(random, {c, h});
    for (const Form form : {Form::listing, Form::memories_ahead, Form::carried, Form::condition}) {
      INFO("form ", static_cast<int>(form));
      const Program program = rnn(form, u, w);
      const Recurrence recurrence = make_recurrence(program);
      REQUIRE(recurrence.states.size() == 1);
      REQUIRE(recurrence.given.size() == 1);
      std::vector<Tensor> xs;
      std::vector<std::vector<Value>> given;
      for (int s = 0; s < 3; ++s) {
        xs.push_back(random_tensor(random, {steps, c}));
        given.push_back({random_tensor(random, {1, h})});
      }
      const auto crowd = StepByStep(recurrence).run_all(xs, given);
      for (std::size_t s = 0; s < xs.size(); ++s) {
        const auto wanted = whole(program, xs[s], given[s][0].tensor().tensor());
        CHECK(crowd[s] == wanted);
        CHECK(StepByStep(recurrence).run(xs[s], given[s]) == wanted);
      }
    }
  }
}

TEST_CASE("rows that fit two open axes alike do not choose between them") {
  Program program;
  {
    const build::Guard guard(program);
    const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, DDim::unknown, 2}));
    const build::ArrayVar steps = build::ArrayVar::unstack(x, 1);
    const build::Var n = steps.size();
    const build::ArrayVar out(n, "out");
    build::Var step = build::constant(0), h = build::gather(x, build::constant(0), 1) * 0.0f;
    build::WhileLoop loop = build::while_loop({step, h});
    {
      const auto frame = loop.frame();
      loop.break_if(build::equal(step, n));
      const build::Var next = h * 0.5f + steps.read(step);
      out.write(step, next);
      h.update(next);
      step.update(step + 1);
    }
    build::output("y", out.stack(1));
  }
  RecurrenceOptions options;
  CHECK_THROWS_WITH_AS(make_recurrence(program, options), doctest::Contains("say what a row is"), UnsupportedError);
  options.rows = {{"x", DDim{1, 2}}};  // a sequence of one step, or a step of one sequence
  CHECK_THROWS_WITH_AS(make_recurrence(program, options), doctest::Contains("The rows that were given fit both"), UnsupportedError);
  options.rows = {{"x", DDim{3, 2}}};
  CHECK(make_recurrence(program, options).axis == 0);
}

TEST_CASE("row-wise ops before and after the loop, and stacked loops, are part of the step") {
  Random random(3);
  Program program;
  const Tensor u = random_tensor(random, {5, 5});
  {
    const build::Guard guard(program);
    const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, 4}, 1));
    const build::Var U = build::parameter("U", u);
    const build::Var zero = build::constant(random_tensor(random, {1, 5}));
    build::Var rows = build::tanh(build::matmul(x, build::parameter("W", random_tensor(random, {4, 5}))));
    for (int layer = 0; layer < 2; ++layer) {
      auto [steps, order] = build::unpack(rows, 0, build::unsorted);
      const build::Var n = steps.size();
      const build::ArrayVar outputs(n, order, "outputs");
      build::Var step = build::constant(0);
      build::Var h = build::identity(zero);
      build::WhileLoop loop = build::while_loop({step, h});
      {
        const auto frame = loop.frame();
        loop.break_if(build::equal(step, n));
        h.update(build::tanh(build::matmul(h, U) + steps.read(step)));
        outputs.write(step, h);
        step.update(step + 1);
      }
      rows = build::pack(outputs, 0, order);
    }
    build::output("y", build::softmax(rows));
  }
  const Recurrence recurrence = make_recurrence(program);
  CHECK(recurrence.states.size() == 2);
  const Tensor x = random_tensor(random, {9, 4});
  SeededExecutor executor(1);
  const LoDTensor fed(x, LoD::from_lengths({{9}}));
  const RunResult result = sync_wait(executor, run(program, {{"x", fed}}));
  CHECK(StepByStep(recurrence).run(x) == bytes_of(result["y"].tensor()));
}

TEST_CASE("a causal convolution carries its left context, and one that looks ahead is named") {
  Random random(5);
  const auto conv = [&](const std::vector<std::int64_t>& pads, std::int64_t dilation) {
    Program program;
    const build::Guard guard(program);
    const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, 3}));
    const build::Var w = build::parameter("w", random_tensor(random, {6, 3, 3}));
    const build::Var b = build::parameter("b", random_tensor(random, {6}));
    const build::Var columns = build::transpose(build::reshape(x, {1, -1, 3}), {0, 2, 1});
    const build::Var y = build::transpose(build::conv1d(columns, w, b, 1, dilation, pads), {0, 2, 1});
    build::output("y", build::reshape(y, {-1, 6}));
    return program;
  };
  for (const std::int64_t dilation : {1, 2}) {
    const Program program = conv({2 * dilation, 0}, dilation);
    const Recurrence recurrence = make_recurrence(program);
    REQUIRE(recurrence.states.size() == 1);
    CHECK(recurrence.states[0].dims == DDim{1, 3, 2 * dilation});
    const Tensor x = random_tensor(random, {11, 3});
    SeededExecutor executor(1);
    const RunResult result = sync_wait(executor, run(program, {{"x", x}}));
    CHECK(StepByStep(recurrence).run(x) == bytes_of(result["y"].tensor()));
  }
  CHECK_THROWS_WITH_AS(make_recurrence(conv({1, 1}, 1)), doctest::Contains("needs 1 rows to the right"), UnsupportedError);
}

TEST_CASE("a context window that reads no later row keeps its left context, and one that does is refused") {
  Random random(7);
  const auto conv = [&](std::int64_t start, std::int64_t length, bool padded = false) {
    Program program;
    const build::Guard guard(program);
    const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, 3}, 1));
    const build::Var filter = build::parameter("w", random_tensor(random, {3 * length, 6}));
    const build::Var before = padded ? build::parameter("before", random_tensor(random, {-start, 3})) : build::Var();
    build::output("y", build::sequence_conv(build::tanh(build::sequence_conv(x, filter, start, length, before)),
                                            build::parameter("v", random_tensor(random, {12, 2})), -1, 2));
    return program;
  };
  for (const auto& [start, length, padded] : {std::tuple{-2, 3, false}, {-3, 2, false}, {0, 1, false}, {-4, 1, false}, {-3, 2, true}}) {
    INFO("start ", start, ", length ", length, padded ? ", padded" : "");
    const Program program = conv(start, length, padded);
    const Recurrence recurrence = make_recurrence(program);
    REQUIRE(recurrence.states.size() == (start < 0 ? 2 : 1));
    if (start < 0) CHECK(recurrence.states[0].dims == DDim{-start, 3});
    std::vector<Tensor> xs;
    std::vector<std::vector<std::byte>> wholes;
    for (int n = 0; n < 3; ++n) {
      xs.push_back(random_tensor(random, {11, 3}));
      SeededExecutor executor(1);
      const LoDTensor whole(xs.back(), LoD::from_lengths({{11}}));
      const RunResult result = sync_wait(executor, run(program, {{"x", whole}}));
      wholes.push_back(bytes_of(result["y"].tensor()));
    }
    CHECK(StepByStep(recurrence).run_all(xs, std::vector<std::vector<Value>>(3)) == wholes);
  }
  CHECK_THROWS_WITH_AS(make_recurrence(conv(-1, 3)), doctest::Contains("needs 1 rows after its own"), UnsupportedError);
}

TEST_CASE("running sums along the rows carry the sum so far, with and without the row itself, and one from the end is refused") {
  Random random(6);
  const auto sums = [&](const DDim& dims, std::int64_t axis, bool exclusive, bool reverse, DType dtype = DType::f32) {
    Program program;
    const build::Guard guard(program);
    const build::Var x = build::input("x", VarType(dtype, dims));
    build::output("y", build::call1("cumsum", {x}, {{"axis", axis}, {"exclusive", exclusive}, {"reverse", reverse}}));
    return program;
  };
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const bool exclusive : {false, true}) {
      for (const std::int64_t axis : {0, -2}) {
        const Program program = sums({DDim::unknown, 3}, axis, exclusive, false, dtype);
        const Recurrence recurrence = make_recurrence(program);
        CHECK(recurrence.states.size() == 1);
        const Tensor x = random_tensor(random, {11, 3}, 1, dtype);
        SeededExecutor executor(1);
        const RunResult result = sync_wait(executor, run(program, {{"x", x}}));
        CHECK(StepByStep(recurrence).run(x) == bytes_of(result["y"].tensor()));
      }
    }
  }
  CHECK(make_recurrence(sums({DDim::unknown, 3}, 1, false, true)).states.empty());  // along a row
  CHECK_THROWS_WITH_AS(make_recurrence(sums({DDim::unknown, 3}, 0, false, true)), doctest::Contains("adds up the rows"), UnsupportedError);
  CHECK_THROWS_WITH_AS(make_recurrence(sums({DDim::unknown, 3}, 0, false, false, DType::f16)), doctest::Contains("adds up the rows"),
                       UnsupportedError);
}

TEST_CASE("an op over whole sequences is refused on live rows, by name and with the reason") {
  const auto refusal = [](const std::function<build::Var(const build::Var&)>& f) {
    Program program;
    {
      const build::Guard guard(program);
      build::output("y", f(build::input("x", VarType(DType::f32, {DDim::unknown, 3}, 1))));
    }
    try {
      make_recurrence(program);
    } catch (const UnsupportedError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto says = [](const std::string& message, const char* op, const char* reason) {
    return message.find(op) != std::string::npos && message.find(reason) != std::string::npos;
  };
  CHECK(says(refusal([](const build::Var& x) { return build::sequence_pool(x, "sum"); }), "sequence_pool", "pools over the rows"));
  CHECK(says(
      refusal([](const build::Var& x) { return build::row_conv(x, build::constant(Tensor::from<float>({1, 2, 3}).reshape(DDim{1, 3}))); }),
      "row_conv", "rows that come after each row"));
  CHECK(says(refusal([](const build::Var& x) { return build::sequence_reverse(x); }), "sequence_reverse", "last row"));
  CHECK(says(refusal([](const build::Var& x) { return build::sequence_softmax(x); }), "sequence_softmax", "normalises"));
  CHECK(says(refusal([](const build::Var& x) { return build::sequence_pad(x).rows; }), "sequence_pad", "whole sequences"));
}

TEST_CASE("an op that needs other rows than its own is named, with the reason") {
  const auto with = [](const std::function<build::Var(const build::Var&)>& f) {
    Program program;
    const build::Guard guard(program);
    const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, 3}));
    build::output("y", f(x));
    return program;
  };
  CHECK_THROWS_WITH_AS(
      make_recurrence(with([](const build::Var& x) { return build::call1("reverse", {x}, {{"axis", std::int64_t{0}}}, "back"); })),
      doctest::Contains("reverse"), UnsupportedError);
  CHECK_THROWS_WITH_AS(make_recurrence(with([](const build::Var& x) { return build::sum(x, {0}); })), doctest::Contains("reduce"),
                       UnsupportedError);
  CHECK_THROWS_WITH_AS(make_recurrence(with([](const build::Var& x) { return build::softmax(x, 0); })), doctest::Contains("softmax"),
                       UnsupportedError);
}

TEST_CASE("what a loop leaves is known only at the end, and is not streamed") {
  Program program;
  {
    const build::Guard guard(program);
    const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, 2}));
    const build::Var last =
        build::fold([](const build::Var& s, const build::Var& row) { return s + row; }, x, build::constant(Tensor::from<float>({0, 0})));
    build::output("total", last * 2.0);
    build::output("twice", x + x);
  }
  const Recurrence recurrence = make_recurrence(program);
  REQUIRE(recurrence.at_end == std::vector<std::string>{"total"});
  REQUIRE(recurrence.outputs.size() == 1);
  CHECK(recurrence.outputs[0].name == "twice");
}

TEST_CASE("loops and branches that the last state decides are known only at the end, and leave the other outputs live") {
  Program program;
  {
    const build::Guard guard(program);
    const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, 2}));
    const build::Var last =
        build::fold([](const build::Var& s, const build::Var& row) { return s + row; }, x, build::constant(Tensor::from<float>({0, 0})));
    const auto large = [](const build::Var& s) { return build::greater(build::sum(s), build::constant(Tensor::scalar(5.0f))); };
    const build::ArrayVar kept(build::constant(4), "kept");
    build::Var s = build::identity(last), step = build::constant(0);
    {
      build::WhileLoop loop = build::while_loop({step, s}, {.max_trips = 4});
      const auto frame = loop.frame();
      kept.write(step, s);
      loop.break_if(large(s));
      s.update(s + s);
      step.update(step + 1);
    }
    build::output("grown", s);
    build::output("all", kept.stack());
    build::output(
        "chosen",
        build::if_else(large(last), [&] { return std::vector<build::Var>{last}; }, [&] { return std::vector<build::Var>{last * 2.0}; })[0]);
    build::output("twice", x + x);
  }
  const Recurrence recurrence = make_recurrence(program);
  CHECK(recurrence.at_end == std::vector<std::string>{"grown", "all", "chosen"});
  REQUIRE(recurrence.outputs.size() == 1);
  CHECK(recurrence.outputs[0].name == "twice");
}

TEST_CASE("a second loop over the rows that reads the last state of the first is known only at the end") {
  Program program;
  {
    const build::Guard guard(program);
    const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, 2}));
    const build::Var zero = build::constant(Tensor::from<float>({0, 0}));
    const auto plus = [](const build::Var& s, const build::Var& row) { return s + row; };
    const build::Var last = build::fold(plus, x, zero);
    build::output("centred", build::map_fn([&](const build::Var& row) { return row - last; }, x));
    build::output("again", build::fold([&](const build::Var& s, const build::Var& row) { return s + row * last; }, x, zero));
    build::output("further", build::fold(plus, x, last));
    build::output("twice", x + x);
  }
  const Recurrence recurrence = make_recurrence(program);
  CHECK(recurrence.at_end == std::vector<std::string>{"centred", "again", "further"});
  REQUIRE(recurrence.outputs.size() == 1);
  CHECK(recurrence.outputs[0].name == "twice");
}

TEST_CASE("an array that holds the last state, or is taken apart from it, is known only at the end") {
  Program program;
  {
    const build::Guard guard(program);
    const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, 2}));
    const build::Var last =
        build::fold([](const build::Var& s, const build::Var& row) { return s + row; }, x, build::constant(Tensor::from<float>({0, 0})));
    const build::ArrayVar both(build::constant(2), "both");
    both.write(build::constant(0), last * 2.0);
    both.write(build::constant(1), last);
    build::output("both", both.stack());
    build::output("element", build::ArrayVar::unstack(last).read(build::constant(0)));
    build::output("twice", x + x);
  }
  const Recurrence recurrence = make_recurrence(program);
  CHECK(recurrence.at_end == std::vector<std::string>{"both", "element"});
  REQUIRE(recurrence.outputs.size() == 1);
}

TEST_CASE("a graph that is one step takes its states by name") {
  Program program;
  {
    const build::Guard guard(program);
    const build::Var x = build::input("x", VarType(DType::f32, {1, 3}));
    const build::Var h = build::input("h", VarType(DType::f32, {1, 3}));
    const build::Var next = build::tanh(x + h);
    build::output("y", next * 2.0);
    build::output("hn", next);
  }
  RecurrenceOptions options;
  options.states = {{"h", "hn"}};
  const Recurrence recurrence = make_recurrence(program, options);
  CHECK(recurrence.inputs[0].row == DDim{3});
  CHECK(recurrence.outputs.size() == 1);
  options.states = {{"h", "nothing"}};
  CHECK_THROWS_WITH_AS(make_recurrence(program, options), doctest::Contains("nothing"), ArgumentError);
  options.states = {{"h", "hn"}, {"h", "y"}};
  CHECK_THROWS_WITH_AS(make_recurrence(program, options), doctest::Contains("state h:y: expected each input once, found 'h' twice"),
                       ArgumentError);
  options.states = {{"h", "hn"}, {"x", "hn"}};
  CHECK_THROWS_WITH_AS(make_recurrence(program, options), doctest::Contains("state x:hn: expected each output once, found 'hn' twice"),
                       ArgumentError);
}

TEST_CASE("a value without a row for each step is put beside rows by no step, as by no whole run") {
  for (const bool ragged : {false, true})
    for (const std::int64_t extent : {DDim::unknown, std::int64_t{1}}) {
      INFO("ragged ", ragged, ", extent ", extent);
      Program program;
      {
        const build::Guard guard(program);
        const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, 3}, ragged ? 1 : 0));
        const build::Var given =
            ragged ? build::input("g", VarType(DType::f32, {extent, 2})) : build::constant(Tensor::from<float>({1, 2}, DDim{1, 2}));
        build::output("y", build::concat({x, given}, 1));
      }
      CHECK_THROWS_WITH_AS(make_recurrence(program), doctest::Contains("has no row for each step, beside rows"), UnsupportedError);
      SeededExecutor executor(7);
      const Tensor rows = Tensor::from<float>({1, 2, 3, 4, 5, 6}, DDim{2, 3});
      Feeds feeds{{"x", ragged ? LoDTensor(rows, LoD::from_lengths({{2}})) : LoDTensor(rows)}};
      if (ragged) feeds.emplace("g", Tensor::from<float>({1, 2}, DDim{1, 2}));
      CHECK_THROWS_AS(sync_wait(executor, run(program, feeds)), ShapeError);
    }
}

TEST_CASE("truths that are the same in every step lie beside those of a step, for many sequences at once") {
  Program program;
  {
    const build::Guard guard(program);
    const build::Var x = build::input("x", VarType(DType::f32, {1, 3}));
    const build::Var h = build::input("h", VarType(DType::f32, {1, 3}));
    const build::Var always = build::greater(build::constant(Tensor::from<float>({1, 0}, DDim{1, 2})), 0.0);
    build::output("y", build::cast(build::concat({build::greater(x, 0.0), always}, 1), DType::f32));
    build::output("hn", x + h);
  }
  RecurrenceOptions options;
  options.states = {{"h", "hn"}};
  const Recurrence recurrence = make_recurrence(program, options);
  const Tensor x = Tensor::from<float>({1, -1, 1, -1, 1, 1}, DDim{2, 3});
  CHECK(StepByStep(recurrence).run(x, {Tensor::from<float>({0, 0, 0}, DDim{1, 3})}) ==
        bytes_of(Tensor::from<float>({1, 0, 1, 1, 0, 0, 1, 1, 1, 0})));
}

TEST_CASE("a graph that is one step, all of whose outputs are states, gives these in every step") {
  Program program;
  {
    const build::Guard guard(program);
    const build::Var x = build::input("x", VarType(DType::f32, {1, 3}));
    const build::Var h = build::input("h", VarType(DType::f32, {1, 3}));
    const build::Var c = build::input("c", VarType(DType::f32, {1, 3}));
    build::output("hn", x + h);
    build::output("cn", x * c);
  }
  RecurrenceOptions options;
  options.states = {{"h", "hn"}, {"c", "cn"}};
  const Recurrence recurrence = make_recurrence(program, options);
  REQUIRE(recurrence.outputs.size() == 2);
  CHECK(recurrence.outputs[0].name == "hn");
  CHECK(recurrence.outputs[1].name == "cn");
  const Tensor zeros = Tensor::from<float>({0, 0, 0}, DDim{1, 3});
  CHECK(StepByStep(recurrence).run(Tensor::from<float>({1, 2, 3, 4, 5, 6}, DDim{2, 3}), {zeros, zeros}) ==
        bytes_of(Tensor::from<float>({1, 2, 3, 5, 7, 9})));
}

TEST_CASE("a step whose only output is a state that no input changes is refused, with the reason") {
  Program program;
  {
    const build::Guard guard(program);
    const build::Var x = build::input("x", VarType(DType::f32, {1, 3}));
    build::output("hn", build::constant(Tensor::from<float>({1, 2, 3}, DDim{1, 3})));
    build::input("h", VarType(DType::f32, {1, 3}));
  }
  RecurrenceOptions options;
  options.states = {{"h", "hn"}};
  CHECK_THROWS_WITH_AS(make_recurrence(program, options),
                       doctest::Contains("found none: states take all outputs, and none of them depends on what a step takes"),
                       UnsupportedError);
}

TEST_CASE("a state that is not given begins with its default, which has the type of the input") {
  Program program;
  {
    const build::Guard guard(program);
    const build::Var x = build::input("x", VarType(DType::f32, {1, 3}));
    const build::Var h = build::input("h", VarType(DType::f32, {1, 3}));
    build::output("hn", x + h);
    build::output("y", x * h);
  }
  RecurrenceOptions options;
  options.states = {{"h", "hn"}};
  options.defaults.emplace("h", Tensor::from<float>({1, 2, 3}, DDim{1, 3}));
  const Recurrence recurrence = make_recurrence(program, options);
  REQUIRE(recurrence.given.size() == 1);
  CHECK(recurrence.given[0].otherwise.to_vector<float>() == std::vector<float>{1, 2, 3});
  CHECK(recurrence.to_string().find("given at the start, else its default: 'h'") != std::string::npos);
  options.defaults.at("h") = Tensor::from<float>({1, 2}, DDim{1, 2});
  CHECK_THROWS_WITH_AS(make_recurrence(program, options), doctest::Contains("input 'h': expected a default of f32[1, 3], found f32[1, 2]"),
                       ArgumentError);
}

TEST_CASE("a step number that takes part in the arithmetic becomes a state of its own") {
  Program program;
  {
    const build::Guard guard(program);
    const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, 2}));
    const build::ArrayVar steps = build::ArrayVar::unstack(x);
    const build::Var n = steps.size();
    const build::ArrayVar outputs(n, "outputs");
    build::Var step = build::constant(0);
    build::WhileLoop loop = build::while_loop({step});
    {
      const auto frame = loop.frame();
      loop.break_if(build::equal(step, n));
      outputs.write(step, steps.read(step) * build::cast(step, DType::f32));
      step.update(step + 1);
    }
    build::output("y", outputs.stack());
  }
  const Recurrence recurrence = make_recurrence(program);
  REQUIRE(recurrence.states.size() == 1);
  CHECK(recurrence.states[0].dtype == DType::i64);
  Random random(2);
  const Tensor x = random_tensor(random, {6, 2});
  SeededExecutor executor(1);
  CHECK(StepByStep(recurrence).run(x) == bytes_of(sync_wait(executor, run(program, {{"x", x}}))["y"].tensor()));
}
