// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/export/onnx.h>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/dynamic_rnn.h>
#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/builder/static_rnn.h>
#include <millrace/runtime/layers/gru.h>
#include <millrace/runtime/layers/lstm.h>
#include <millrace/runtime/layers/rnn.h>

#include "runtime/models/export/with_onnx/round_trip.h"
#include "support/built.h"
#include "support/listing.h"

using namespace millrace;
using namespace millrace::testing;
using build::Var;

TEST_CASE("The canonical listing becomes a Scan and gives its numbers again, also for a sequence without rows") {
  Random random(1);
  const Tensor u = random_tensor(random, {3, 3});
  const Tensor w = random_tensor(random, {4, 3});
  const auto building = [&] {
    const Var x = rows(4);
    const Var boot_state = build::input("boot", VarType(DType::f32, {open, 3}));
    build::output("y", listing(x, boot_state, build::parameter("U", u), build::parameter("W", w)));
  };
  for (const std::int64_t length : {5, 1, 0})
    check_round_trip("listing_" + std::to_string(length), building,
                     {{"x", one_sequence(random_tensor(random, {length, 4}))}, {"boot", random_tensor(random, {1, 3})}});
}

TEST_CASE("What streams is imported as a recurrence again: layers with last states, several step inputs, boots, convolutions") {
  Random random(2);
  const auto check_streams = [](const std::function<void()>& building, std::size_t at_end) {
    const Program program = built_program(building);
    const Recurrence wanted = make_recurrence(program);
    const Recurrence found = make_recurrence(parse_onnx(format_onnx(program), "again"));
    CHECK(found.outputs.size() == wanted.outputs.size());
    CHECK(found.inputs.size() == wanted.inputs.size());
    CHECK(found.given.size() == wanted.given.size());
    CHECK(found.states.size() == wanted.states.size());
    CHECK(found.at_end.size() == at_end);
  };
  check_streams(
      [&] {
        const auto made = layers::gru({rows(4)}, {gru_weights(random, 4, 3), gru_weights(random, 3, 3)});
        build::output("y", made.y);
        build::output("h", made.h[1]);
      },
      1);
  check_streams(
      [&] {
        using namespace build;
        DynamicRNN rnn;
        const Var x = rows(2);
        const Var y = rows(2, "y");
        const Var first = input("first", VarType(DType::f32, {open, 2}));
        {
          const auto block = rnn.block();
          const Var a = rnn.step_input(x);
          const Var b = rnn.step_input(y);
          const Var memory = rnn.memory(first);
          const Var next = build::tanh(memory * b + a);
          rnn.update_memory(memory, next);
          rnn.output(next);
        }
        output("z", rnn.outputs()[0]);
      },
      0);
  check_streams(
      [&] {
        using namespace build;
        StaticRNN rnn;
        const Var x = input("x", VarType(DType::f32, {open, 1, 2}));
        Var memory;
        {
          const auto block = rnn.block();
          const Var a = rnn.step_input(x);
          memory = rnn.memory(constant(Tensor::from<float>({0.5f, 0.25f}).reshape({1, 2})));
          rnn.update_memory(memory, sigmoid(memory + a));
          rnn.output(memory);
        }
        output("z", rnn.outputs()[0]);
        output("last", rnn.last(memory));
      },
      1);
}

TEST_CASE("Layers over one sequence, in both directions and several deep, keep their numbers") {
  Random random(3);
  for (const std::int64_t length : {6, 1}) {
    check_round_trip(
        "gru_stack_" + std::to_string(length),
        [&] {
          Random weights(4);
          layers::GruOptions options;
          options.direction = layers::Direction::bidirectional;
          options.reset = layers::GruReset::before;
          options.keeps = layers::GruKeeps::complement;
          const Var words = build::embedding(build::parameter("table", random_tensor(weights, {20, 5})),
                                             build::input("words", VarType(DType::i64, {open}, 1)));
          const auto both = layers::gru(
              {words}, {gru_weights(weights, 5, 4), gru_weights(weights, 5, 4), gru_weights(weights, 8, 4), gru_weights(weights, 8, 4)},
              options);
          build::output("y", both.y);
          for (std::size_t i = 0; i < both.h.size(); ++i) build::output("h" + std::to_string(i), both.h[i]);
        },
        {{"words", one_sequence(length == 1 ? Tensor::from<std::int64_t>({7}) : Tensor::from<std::int64_t>({3, 1, 4, 1, 5, 19}))}});
    check_round_trip("lstm_projection_" + std::to_string(length),
                     [&] {
                       Random weights(5);
                       layers::LstmOptions options;
                       options.cell_clip = 0.5;
                       options.gate_clip = 2;
                       const auto made =
                           layers::lstm({rows(3)},
                                        {{random_tensor(weights, {3, 16}), random_tensor(weights, {2, 16}), random_tensor(weights, {16}),
                                          random_tensor(weights, {12}), random_tensor(weights, {4, 2})}},
                                        options);
                       build::output("y", made.y);
                       build::output("c", made.c[0]);
                     },
                     {{"x", one_sequence(random_tensor(random, {length, 3}))}});
  }
}

TEST_CASE("Layers over a dense batch with lengths keep their numbers") {
  Random random(6);
  check_round_trip("lstm_dense",
                   [] {
                     Random weights(7);
                     layers::LstmOptions options;
                     options.direction = layers::Direction::bidirectional;
                     options.couple_input_forget = true;
                     options.candidate = {"scaled_tanh", 1.5, 0.7};
                     const Var lengths = build::input("lengths", VarType(DType::i64, {2}));
                     const auto cell = [&] {
                       return layers::LstmWeights{
                           random_tensor(weights, {3, 16}), random_tensor(weights, {4, 16}), random_tensor(weights, {16}), {}, {}};
                     };
                     const auto made = layers::lstm({dense(3), lengths}, {cell(), cell()}, options);
                     build::output("y", made.y);
                     build::output("h", made.h[1]);
                   },
                   {{"x", random_tensor(random, {5, 2, 3})}, {"lengths", Tensor::from<std::int64_t>({5, 3})}});
  check_round_trip("rnn_dense_reverse",
                   [] {
                     Random weights(8);
                     layers::RnnOptions options;
                     options.direction = layers::Direction::reverse;
                     options.activation = {"hard_sigmoid", 0.3, 0.4};
                     options.clip = 0.8;
                     const auto made =
                         layers::rnn({dense(3)}, {{random_tensor(weights, {3, 4}), random_tensor(weights, {4, 4}), {}}}, options);
                     build::output("y", made.y);
                     build::output("h", made.h[0]);
                   },
                   {{"x", random_tensor(random, {5, 2, 3})}});
}

TEST_CASE("A DynamicRNN with two step inputs, a static input and last states keeps its numbers") {
  Random random(9);
  for (const bool reverse : {false, true})
    check_round_trip(reverse ? "dynamic_rnn_reverse" : "dynamic_rnn",
                     [&] {
                       using namespace build;
                       const Var x = rows(2);
                       const Var y = rows(2, "y");
                       const Var each = input("each", VarType(DType::f32, {open, 2}));
                       DynamicRNN rnn({.reverse = reverse});
                       Var memory;
                       {
                         const auto block = rnn.block();
                         const Var a = rnn.step_input(x);
                         const Var b = rnn.step_input(y);
                         memory = rnn.memory(DType::f32, {2}, 0.5);
                         const Var next = build::tanh(memory * b + a + rnn.static_input(each));
                         rnn.update_memory(memory, next);
                         rnn.output(next * 2.0);
                       }
                       output("z", rnn.outputs()[0]);
                       output("last", rnn.last(memory));
                     },
                     {{"x", one_sequence(random_tensor(random, {4, 2}))},
                      {"y", one_sequence(random_tensor(random, {4, 2}))},
                      {"each", random_tensor(random, {1, 2})}});
}

TEST_CASE("Loops that are no recurrence become Loops: conditions, late exits, nesting, trip limits") {
  using namespace build;
  check_round_trip("double_until",
                   [] {
                     Var v = input("v", VarType(DType::f32, {}));
                     Var more = less(v, 100.0);
                     auto loop = while_op(more, {v, more});
                     {
                       auto frame = loop.frame();
                       v.update(v * v);
                       more.update(less(v, 100.0));
                     }
                     output("v_out", v);
                   },
                   {{"v", Tensor::scalar(2.0f)}});
  for (const float first : {1.0f, 500.0f})
    check_round_trip("late_exit_" + std::to_string(static_cast<int>(first)),
                     [] {
                       Var v = input("v", VarType(DType::f32, {}));
                       Var iterations = constant(0);
                       auto loop = while_loop({v, iterations}, {.max_trips = 20});
                       {
                         auto frame = loop.frame();
                         iterations.update(iterations + 1);
                         v.update(v * 3.0);
                         loop.break_if(greater(v, 1000.0));
                         v.update(v + 1.0);
                         loop.break_if(greater_equal(iterations, 30));
                         v.update(v + 0.5);
                       }
                       output("v_out", v);
                       output("iterations", iterations);
                     },
                     {{"v", Tensor::scalar(first)}});
  check_round_trip("nested",
                   [] {
                     Var outer = input("v", VarType(DType::i64, {}));
                     auto loop = while_loop({outer});
                     {
                       auto frame = loop.frame();
                       loop.break_if(greater_equal(outer, 3000));
                       Var inner = identity(outer);
                       auto more = while_loop({inner});
                       {
                         auto inside = more.frame();
                         more.break_if(greater_equal(inner, 20));
                         inner.update(inner + inner);
                       }
                       outer.update(inner * inner);
                     }
                     output("v_out", outer);
                   },
                   {{"v", Tensor::scalar<std::int64_t>(2)}});
}

TEST_CASE("Arrays that are written backwards, before a loop, or read further back keep their slots") {
  using namespace build;
  Random random(10);
  const Feeds feeds{{"x", random_tensor(random, {6, 3})}};
  const auto x_input = [] { return input("x", VarType(DType::f32, {open, 3})); };
  check_round_trip(
      "backwards",
      [&] {
        const ArrayVar steps = ArrayVar::unstack(x_input());
        const Var n = steps.size();
        const ArrayVar out(n, "out");
        Var step = constant(0);
        auto loop = while_loop({step});
        {
          auto frame = loop.frame();
          loop.break_if(equal(step, n));
          out.write(n - 1 - step, steps.read(step) * 2.0);
          step.update(step + 1);
        }
        output("y", out.stack());
      },
      feeds);
  check_round_trip(
      "two_back",
      [&] {
        const ArrayVar steps = ArrayVar::unstack(x_input());
        const Var n = steps.size();
        const ArrayVar out(n, "out");
        out.write(0, steps.read(0));
        out.write(1, steps.read(1));
        Var step = constant(2);
        auto loop = while_loop({step});
        {
          auto frame = loop.frame();
          loop.break_if(equal(step, n));
          out.write(step, out.read(step - 2) * 0.5 + out.read(step - 1) + steps.read(step));
          step.update(step + 1);
        }
        output("y", out.stack(1));
        output("third", out.read(2));
      },
      feeds);
}

TEST_CASE("Arrays that a branch writes, that grow, or that are made in a loop keep their slots") {
  using namespace build;
  Random random(18);
  const Feeds feeds{{"x", random_tensor(random, {6, 3})}};
  check_round_trip(
      "growing",
      [] {
        const ArrayVar steps = ArrayVar::unstack(input("x", VarType(DType::f32, {open, 3})));
        const ArrayVar kept = ArrayVar::growable("kept");
        const Var n = steps.size();
        Var step = constant(0);
        auto loop = while_loop({step});
        {
          auto frame = loop.frame();
          loop.break_if(equal(step, n));
          const Var row = steps.read(step);
          const Var total = if_else(
              greater(sum(row), 0.0),
              [&] {
                kept.append(row);
                return std::vector<Var>{sum(row)};
              },
              [&] { return std::vector<Var>{constant(0.0)}; })[0];
          kept.append(row * total);
          const ArrayVar own(constant(2), "own");
          own.write(0, row);
          own.write(1, row * 2.0);
          kept.append(own.read(1) - own.read(0));
          step.update(step + 1);
        }
        output("kept", kept.stack());
        output("count", kept.size());
      },
      feeds, false);
  check_round_trip(
      "longer_each_iteration",
      [] {
        const Var x = input("x", VarType(DType::f32, {open, 3}));
        Var all = identity(x);
        Var step = constant(0);
        auto loop = while_loop({all, step});
        {
          auto frame = loop.frame();
          loop.break_if(equal(step, 3));
          all.update(concat({all, x * 0.5}, 0));
          step.update(step + 1);
        }
        output("all", all);
      },
      feeds);
}

/// A loop over the rows of x that carries `grown` beside the sum of the rows; `grow` gives its next value.
Program growing(Var (*first)(), Var (*grow)(const Var& grown, const Var& h), Var (*result)(const Var& grown)) {
  return built_program([&] {
    const build::ArrayVar steps = build::ArrayVar::unstack(build::input("x", VarType(DType::f32, {open, 3})));
    const Var n = steps.size();
    Var step = build::constant(0), h = build::constant(Tensor::from<float>({0, 0, 0}).reshape({1, 3})), grown = first();
    auto loop = build::while_loop({step, h, grown});
    {
      auto frame = loop.frame();
      loop.break_if(equal(step, n));
      h.update(h + steps.read(step));
      grown.update(grow(grown, h));
      step.update(step + 1);
    }
    build::output("y", result(grown));
  });
}

TEST_CASE("A loop over rows that carries a list, or a tensor that grows, becomes a Loop, since a Scan has neither") {
  Random random(31);
  const Program list = growing([] { return build::call1("list_of", {build::constant(Tensor::from<float>({7, 8, 9}).reshape({1, 3}))}); },
                               [](const Var& grown, const Var& h) { return build::call1("list_insert", {grown, h}); },
                               [](const Var& grown) { return build::call1("list_concat", {grown}, {{"axis", std::int64_t{0}}}); });
  const Program tensor =
      growing([] { return build::varying(build::constant(Tensor(DType::f32, DDim{0, 3}))); },
              [](const Var& grown, const Var& h) { return build::concat({grown, h}, 0); }, [](const Var& grown) { return grown; });
  const Program past =
      growing([] { return build::varying(build::input("past", VarType(DType::f32, {open, 3}))); },
              [](const Var& grown, const Var& h) { return build::concat({grown, h}, 0); }, [](const Var& grown) { return grown; });
  for (const Program* program : {&list, &tensor, &past}) {
    const std::string model = format_onnx(*program);
    CHECK(model.find("Loop") != model.npos);
    CHECK(model.find("Scan") == model.npos);
  }
  check_again("grown_list", list, {{"x", random_tensor(random, {4, 3})}});
  for (const std::int64_t length : {4, 0}) {
    check_again("grown_tensor_" + std::to_string(length), tensor, {{"x", random_tensor(random, {length, 3})}});
    check_again("grown_past_" + std::to_string(length), past,
                {{"x", random_tensor(random, {length, 3})}, {"past", random_tensor(random, {2, 3})}});
  }
}

TEST_CASE("A recurrent layer over a dense batch of no steps keeps the extent of the batch") {
  Random random(32);
  for (const std::int64_t length : {3, 0})
    check_round_trip("gru_open_batch_" + std::to_string(length),
                     [] {
                       Random weights(33);
                       const Var x = build::input("x", VarType(DType::f32, {open, open, 4}));
                       const auto made = layers::gru({x}, {gru_weights(weights, 4, 3)});
                       build::output("y", made.y);
                       build::output("h", made.h[0]);
                     },
                     {{"x", random_tensor(random, {length, 2, 4})}});
}

TEST_CASE("Slots of different rows are a sequence of ONNX") {
  using namespace build;
  Random random(20);
  check_round_trip(
      "uneven",
      [] {
        const Var x = input("x", VarType(DType::f32, {open, 3}));
        const ArrayVar pieces = ArrayVar::of(call1("tensor_array_split", {x, constant(Tensor::from<std::int64_t>({1, 3, 2}))}));
        const Var n = pieces.size();
        const ArrayVar out(n, "out");
        Var step = constant(0);
        auto loop = while_loop({step});
        {
          auto frame = loop.frame();
          loop.break_if(equal(step, n));
          out.write(step, sigmoid(pieces.read(step)) + cast(step, DType::f32));
          step.update(step + 1);
        }
        output("y", out.concat());
      },
      {{"x", random_tensor(random, {6, 3})}}, false);
}

TEST_CASE("A StaticRNN inside a DynamicRNN, and arrays of one loop that another one reads, keep their numbers") {
  using namespace build;
  Random random(19);
  check_round_trip("chained",
                   [] {
                     const ArrayVar steps = ArrayVar::unstack(input("x", VarType(DType::f32, {open, 3})));
                     const Var n = steps.size();
                     const ArrayVar first(n, "first");
                     const ArrayVar second(n, "second");
                     for (const auto& [from, to] : {std::pair(steps, first), std::pair(first, second)}) {
                       Var step = constant(0);
                       Var total = constant(Tensor::from<float>({0, 0, 0}));
                       auto loop = while_loop({step, total});
                       {
                         auto frame = loop.frame();
                         loop.break_if(greater_equal(step, n));
                         total.update(build::tanh(total + from.read(step)));
                         to.write(step, total * cast(step, DType::f32));
                         step.update(step + 1);
                       }
                       output(to.var().name() + "_total", total);
                     }
                     output("y", second.stack());
                     output("some", second.gather(constant(Tensor::from<std::int64_t>({2, 0}))));
                   },
                   {{"x", random_tensor(random, {5, 3})}});
  check_round_trip("inner_rnn",
                   [] {
                     const Var x = rows(3);
                     const Var table = parameter("table", Tensor::from<float>({1, 2, 3, 4, 5, 6}).reshape({2, 1, 3}));
                     DynamicRNN outer;
                     {
                       const auto block = outer.block();
                       const Var row = outer.step_input(x);
                       const Var memory = outer.memory(DType::f32, {3});
                       StaticRNN inner;
                       Var state;
                       {
                         const auto inside = inner.block();
                         const Var key = inner.step_input(table);
                         state = inner.memory(memory);
                         const Var next = sigmoid(state * key + row);
                         inner.update_memory(state, next);
                         inner.output(next);
                       }
                       outer.update_memory(memory, inner.last(state));
                       outer.output(sum(inner.outputs()[0], {0}));
                     }
                     output("y", outer.outputs()[0]);
                   },
                   {{"x", one_sequence(random_tensor(random, {4, 3}))}});
}

TEST_CASE("map, fold and scan keep their numbers") {
  using namespace build;
  Random random(11);
  check_round_trip("map_fold_scan",
                   [] {
                     const Var x = input("x", VarType(DType::f32, {open, 3}));
                     const Var zero = constant(Tensor::from<float>({0, 0, 0}));
                     output("mapped", map_fn([](const Var& row) { return sigmoid(row); }, x));
                     output("folded", fold([](const Var& state, const Var& row) { return state * 0.5 + row; }, x, zero));
                     output("scanned", scan([](const Var& state, const Var& row) { return state * 0.5 + row; }, x, zero));
                   },
                   {{"x", random_tensor(random, {5, 3})}});
}

TEST_CASE("One step with named states gives, step after step, the rows of the whole") {
  Random random(17);
  Program program;
  {
    const build::Guard guard(program);
    build::output("y", layers::gru({rows(4)}, {gru_weights(random, 4, 3), gru_weights(random, 3, 3)}).y);
  }
  const Tensor x = random_tensor(random, {5, 4});
  const Tensor wanted = on_cpu(program, {{"x", one_sequence(x)}})["y"].tensor();
  const Recurrence recurrence = make_recurrence(program);
  const Program step = parse_onnx(format_onnx_step(recurrence), "step");
  const Program start = parse_onnx(format_onnx_start(recurrence), "start");
  std::map<std::string, Tensor> states;
  const RunResult first = on_cpu(start);
  for (const auto& [name, value] : first.outputs()) states[name] = value.tensor().tensor();
  CHECK(states.size() == recurrence.states.size());
  for (std::int64_t t = 0; t < 5; ++t) {
    Feeds feeds{{"x", x.rows(t, t + 1)}};
    for (const auto& [name, value] : states) feeds.emplace(name, value);
    const RunResult result = on_cpu(step, feeds);
    check_same_values(result["y"].tensor(), wanted.rows(t, t + 1));
    for (auto& [name, value] : states) value = result["next_" + name].tensor();
  }
}

TEST_CASE("Steps of sentences in a dialogue lie between boundaries, which set states anew") {
  Random random(28);
  Program program;
  {
    const build::Guard guard(program);
    const Var x = build::input("x", VarType(DType::f32, {open, 4}, 2));
    build::output("y", layers::gru({x}, {gru_weights(random, 4, 3)}).y);
  }
  const Tensor x = random_tensor(random, {5, 4});
  const std::vector<std::int64_t> sentences{2, 0, 3};
  const LoDTensor dialogue(x, LoD::from_lengths({{3}, sentences}));
  const Tensor wanted = on_cpu(program, {{"x", dialogue}})["y"].tensor();
  const Recurrence recurrence = make_recurrence(program);
  REQUIRE(recurrence.levels == 2);
  const Program step = parse_onnx(format_onnx_step(recurrence), "step");
  const Program opens = parse_onnx(format_onnx_boundary(recurrence, recurrence.opening(1)), "opens");
  std::map<std::string, Tensor> states;
  const RunResult first = on_cpu(parse_onnx(format_onnx_start(recurrence), "start"));
  for (const auto& [name, value] : first.outputs()) states[name] = value.tensor().tensor();
  const auto run_with = [&](const Program& part, Feeds feeds) {
    for (const Program::Port& port : part.inputs())
      if (states.contains(port.name)) feeds.emplace(port.name, states.at(port.name));
    RunResult result = on_cpu(part, feeds);
    for (const auto& [name, value] : result.outputs())
      if (name.starts_with("next_")) states[name.substr(5)] = value.tensor().tensor();
    return result;
  };
  std::int64_t t = 0;
  for (const std::int64_t length : sentences) {
    run_with(opens, {});
    for (std::int64_t i = 0; i < length; ++i, ++t)
      check_same_values(run_with(step, {{"x", x.rows(t, t + 1)}})["y"].tensor(), wanted.rows(t, t + 1));
  }
}

TEST_CASE("The start of a graph that is one step takes the first value of a state by another name than it gives it by") {
  Program program;
  {
    const build::Guard guard(program);
    const Var h = build::input("h", VarType(DType::f32, {1, 3}));
    const Var next = sigmoid(h + build::input("x", VarType(DType::f32, {1, 3})));
    build::output("y", next * 2.0f);
    build::output("hn", next);
  }
  RecurrenceOptions options;
  options.states = {{"h", "hn"}};
  const Recurrence recurrence = make_recurrence(program, options);
  const Program start = parse_onnx(format_onnx_start(recurrence), "start");
  REQUIRE(start.inputs().size() == start.outputs().size());
  for (std::size_t i = 0; i < start.inputs().size(); ++i) CHECK(start.inputs()[i].name == "initial_" + start.outputs()[i].name);
  const Program step = parse_onnx(format_onnx_step(recurrence), "step");
  for (const Program::Port& port : start.outputs())
    CHECK(std::any_of(step.inputs().begin(), step.inputs().end(), [&](const Program::Port& input) { return input.name == port.name; }));
}

TEST_CASE("Names of extents are those of the file, and stay when it is imported and exported again") {
  Program program;
  {
    const build::Guard guard(program);
    const auto named = [&](const char* name, std::vector<std::string> extents) {
      return Var::of(program.add_input(name, VarType(DType::f32, {open, open}), std::move(extents)));
    };
    const Var x = named("x", {"batch", "y_1"}), y = named("y", {"batch", ""}), z = named("z", {});
    build::output("sum", build::matmul(x, build::transpose(y, {1, 0})) + z);
  }
  Program again = program;
  for (int turn = 0; turn < 2; ++turn) {
    again = parse_onnx(format_onnx(again), "again");
    REQUIRE(again.inputs().size() == 3);
    CHECK(again.inputs()[0].extents == std::vector<std::string>{"batch", "y_1"});
    CHECK(again.inputs()[1].extents == std::vector<std::string>{"batch", "y_1_"});  // another extent than y_1
    CHECK(again.inputs()[2].extents == std::vector<std::string>{"z_0", "z_1"});
  }
}

TEST_CASE("A choice between truths is written as logic, which ONNX Runtime has for bool") {
  Program program;
  {
    const build::Guard guard(program);
    const VarType truth(DType::boolean, {open, 2});
    const Var chosen = build::where(build::input("c", truth), build::input("a", truth), build::input("b", VarType(DType::boolean, {2})));
    build::output("y", chosen);
  }
  const Program again = parse_onnx(format_onnx(program), "choice");
  for (const Block& block : again.blocks())
    for (const Op& op : block.ops) CHECK(op.type != "where");
  const auto truths = [](std::vector<bool> values, const DDim& dims) {
    Tensor made(DType::boolean, dims);
    for (std::size_t i = 0; i < values.size(); ++i) made.mutable_data<bool>()[i] = values[i];
    return made;
  };
  const Feeds feeds{{"c", truths({true, true, false, false, true, false}, {3, 2})},
                    {"a", truths({true, false, true, false, true, true}, {3, 2})},
                    {"b", truths({false, true}, {2})}};
  CHECK(on_cpu(again, feeds)["y"].tensor().to_vector<bool>() == std::vector<bool>{true, false, false, true, true, true});
}
