// SPDX-License-Identifier: Apache-2.0
// The ONNX nodes of single ops.
#include <doctest/doctest.h>

#include <millrace/runtime/builder/decoding.h>
#include <millrace/runtime/builder/dynamic_rnn.h>
#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/sequence_ops.h>
#include <millrace/runtime/layers/embedding.h>

#include "runtime/models/export/with_onnx/round_trip.h"
#include "support/built.h"
#include "support/op_cases.h"

using namespace millrace;
using namespace millrace::testing;
using build::Var;

TEST_CASE("Convolution, layer norm and what stands around them keep their numbers") {
  using namespace build;
  Random random(12);
  check_round_trip(
      "conv_norm",
      [] {
        Random weights(13);
        const Var x = input("x", VarType(DType::f32, {2, 3, open}));
        const Var y =
            conv1d(x, parameter("w", random_tensor(weights, {4, 3, 3})), parameter("b", random_tensor(weights, {4})), 2, 1, {1, 1});
        const Var t = transpose(y, {0, 2, 1});
        const Var z = layer_norm(t, parameter("s", random_tensor(weights, {4})), parameter("o", random_tensor(weights, {4})));
        output("y", softmax(z));
        output("gelu", call1("gelu", {z}, {{"approximate", std::string("tanh")}}));
        output("most", call1("argmax", {z}, {{"axis", std::int64_t{-1}}}));
        output("sums", reduce(z, "log_sum_exp", {1}, true));
        output("running", call1("cumsum", {z}, {{"axis", std::int64_t{1}}, {"reverse", true}}));
        output("cut", slice(z, 1, 1, 3));
        output("padded", call1("pad", {z}, {{"pads", std::vector<std::int64_t>{0, 1, 0, 0, 0, 2}}, {"mode", std::string("reflect")}}));
        output("turned", call1("reverse", {z}, {{"axis", std::int64_t{1}}}));
        const std::vector<Var> parts = split(z, 2, {1, 3});
        output("joined", concat({parts[1], parts[0]}, 2));
        output("chosen", where(greater(z, 0.0), z, call1("leaky_relu", {z}, {{"alpha", 0.3}})));
      },
      {{"x", random_tensor(random, {2, 3, 11})}});
}

TEST_CASE("Ops over whole sequences are what they are for one sequence, empty or not") {
  using namespace build;
  Random random(14);
  for (const std::int64_t length : {4, 0})
    check_round_trip("sequences_" + std::to_string(length),
                     [] {
                       Random weights(15);
                       const Var x = rows(3);
                       for (const char* kind : {"average", "sum", "sqrt", "max", "first", "last"})
                         output(kind, sequence_pool(x, kind, -1.0));
                       output("backwards", sequence_reverse(x));
                       output("soft", sequence_softmax(x));
                       output("around", sequence_conv(x, parameter("f", random_tensor(weights, {9, 2})), -1, 3));
                       output("ahead", row_conv(x, parameter("g", random_tensor(weights, {2, 3}))));
                       output("twice", sequence_concat({x, x}));
                       const Var each = input("each", VarType(DType::f32, {open, 2}));
                       output("spread", sequence_expand_as(each, x));
                       output("repeated", sequence_expand(each, x));
                       const auto padded = call("sequence_pad", {x, constant(-1.0f)}, {{"padded_length", std::int64_t{6}}});
                       output("padded", padded[0]);
                       output("length", padded[1]);
                       output("unpadded", call1("sequence_unpad", {padded[0], padded[1]}));
                       const auto best = call("sequence_top_k", {x}, {{"k", std::int64_t{2}}});
                       output("best", best[0]);
                       output("at", best[1]);
                       const Var mask = greater(reduce(x, "sum", {1}, true), 0.0);
                       const auto sides = call("split_by_mask", {x, mask}, {{"level", std::int64_t{1}}});
                       output("above", sides[0]);
                       output("below", sides[1]);
                       output("merged", call1("merge_by_mask", {sides[0], sides[1], mask}, {{"level", std::int64_t{1}}}));
                     },
                     {{"x", one_sequence(random_tensor(random, {length, 3}))}, {"each", random_tensor(random, {1, 2})}});
}

TEST_CASE("Every op that works on tensors alone is exported, and imported again with its numbers") {
  using Role = OpCase::Input::Role;
  for (const std::uint64_t seed : seeds(3)) {
    INFO("seed ", seed);
    Random random(seed);
    std::size_t number = 0;
    for (const OpCase& one : op_cases(random)) {
      if (one.type == "put_slice" || one.type == "sum_to" || one.type == "layer_norm_gradient")
        continue;  // of backward programs, which are not exported
      INFO(one.to_string());
      const bool known = random.coin();
      Program program;
      Op op{one.type, {}, {}, one.attributes, {}};
      Feeds feeds;
      for (const auto& input : one.inputs) {
        DDim declared = input.dims;
        for (int axis = 0; axis < declared.rank() && !known; ++axis) declared[axis] = open;
        const std::string name = "in" + std::to_string(op.inputs.size());
        if (input.role == Role::fed) feeds.emplace(name, input.make(random));
        op.inputs.push_back(input.role == Role::absent  ? no_var
                            : input.role == Role::fixed ? program.add_parameter("w", input.value)
                                                        : program.add_input(name, VarType(input.dtype, declared)));
      }
      std::size_t count = 0;
      for (const VarId output : program.append(0, std::move(op))) program.add_output("out" + std::to_string(count++), output);
      check_again("op" + std::to_string(seed) + "_" + std::to_string(number++) + "_" + one.type, program, feeds);
    }
  }
}

TEST_CASE("Ops that matter to training alone give their inputs when they are exported") {
  using namespace build;
  Random random(34);
  const auto dropped = [](bool training) {
    const Var x = input("x", VarType(DType::f32, {open, 3}));
    output("y", call1("dropout", {tanh(call1("stop_gradient", {x})), input("sample", VarType(DType::i64, {open}))},
                      {{"rate", 0.5}, {"training", training}}));
  };
  check_round_trip("training_ops", [&] { dropped(false); },
                   {{"x", random_tensor(random, {4, 3})}, {"sample", Tensor::from<std::int64_t>({0, 1, 2, 3})}});
  CHECK_THROWS_WITH_AS(format_onnx(built_program([&] { dropped(true); })),
                       doctest::Contains("dropout: draws numbers, which no op of ONNX draws by a key: expected training = false"),
                       UnsupportedError);
}

TEST_CASE("Ids of one sequence are enumerated, erased, cut and counted as they are here") {
  using namespace build;
  Random random(27);
  for (const bool empty : {false, true}) {
    const Tensor ids = empty ? Tensor(DType::i64, DDim{0, 1}) : Tensor::from<std::int64_t>({4, 1, 1, 7, 2}).reshape({5, 1});
    check_round_trip(std::string("ids_") + (empty ? "none" : "some"),
                     [&] {
                       const Var x = input("x", VarType(DType::i64, {open, 1}, 1));
                       output("windows",
                              call1("sequence_enumerate", {x}, {{"win_size", std::int64_t{3}}, {"pad_value", std::int64_t{-1}}}));
                       output("left", call1("sequence_erase", {x}, {{"tokens", std::vector<std::int64_t>{1, 2}}}));
                       const Var scores = input("scores", VarType(DType::f32, {1, 9}));
                       output("added", call1("sequence_scatter", {scores, x, cast(x, DType::f32)}));
                       const Var some = constant(Tensor::from<std::int64_t>({empty ? 0 : 2}));
                       output("middle", call1("sequence_slice", {x, some, some}));
                     },
                     {{"x", one_sequence(ids)}, {"scores", random_tensor(random, {1, 9})}});
  }
}

TEST_CASE("Tags, labels and distances of one sequence are those of ONNX ops, empty sequences too") {
  using namespace build;
  Random random(21);
  for (const std::int64_t length : {7, 1, 0}) {
    const auto ids = [&](std::int64_t rows) {
      std::vector<std::int64_t> values;
      for (std::int64_t i = 0; i < rows; ++i) values.push_back(random.between(0, 3));
      return one_sequence(Tensor::from(values, DDim{rows, 1}));
    };
    check_round_trip("decoding_" + std::to_string(length),
                     [] {
                       Random weights(22);
                       const Var x = rows(4);
                       const Var label = input("label", VarType(DType::i64, {open, 1}, 1));
                       const Var transition = parameter("t", random_tensor(weights, {6, 4}));
                       const auto tags = crf_decoding(x, transition);
                       output("path", tags.path);
                       output("score", tags.score);
                       output("likelihood", linear_chain_crf(x, transition, label));
                       const auto greedy = ctc_greedy_decode(x, 1);
                       output("labels", greedy.labels);
                       output("sum", greedy.score);
                       output("filled", call("ctc_greedy", {x}, {{"blank", std::int64_t{3}}})[0]);
                       const Var other = input("other", VarType(DType::i64, {open, 1}, 1));
                       output("changes", edit_distance(label, other));
                       output("per", edit_distance(label, other, true, {2}));
                     },
                     {{"x", one_sequence(random_tensor(random, {length, 4}))}, {"label", ids(length)}, {"other", ids(length / 2 + 2)}});
  }
}

TEST_CASE("Lists and optionals are ONNX sequences and optionals, given, carried, chosen and taken") {
  using namespace build;
  Random random(23);
  check_round_trip(
      "lists",
      [] {
        const Var x = input("x", VarType(DType::f32, {open, 3}));
        const Var given = input("given", VarType::list_of(VarType(DType::f32, {open, 3})));
        output("longer", call1("list_insert", {given, x, constant(1)}));
        output("shorter", call1("list_erase", {given}));
        output("count", call1("list_length", {given}));
        output("second", call1("list_at", {given, constant(-1)}));
        output("rows", call1("list_concat", {given}, {{"axis", std::int64_t{0}}}));
        const Var parts = call1("list_split", {x}, {{"axis", std::int64_t{1}}, {"keepdims", false}});
        output("columns", call1("list_stack", {parts}, {{"axis", std::int64_t{1}}}));
        output("pair", call1("list_of", {x, neg(x)}));
        const Var held = call1("optional_of", {parts});
        output("there", call1("optional_has", {held}));
        output("taken", call1("optional_get", {held}));
        Var step = constant(0);
        Var built = call1("list_of", {x});
        auto loop = while_loop({step, built});
        {
          auto frame = loop.frame();
          loop.break_if(equal(step, 3));
          built.update(call1("list_insert", {built, x * cast(step, DType::f32)}));
          step.update(step + 1);
        }
        output("built", built);
      },
      {{"x", random_tensor(random, {2, 3})}, {"given", TensorList({random_tensor(random, {1, 3}), random_tensor(random, {2, 3})})}});
}

TEST_CASE("A tagger over a ragged batch is exported whole: embedding, GRUs in both directions, tags, with empty sequences and none") {
  using namespace build;
  Random random(24);
  const std::vector<std::vector<std::int64_t>> batches{{3, 0, 5, 1}, {2}, {0, 0}, {}};
  for (const std::vector<std::int64_t>& lengths : batches) {
    std::vector<std::int64_t> drawn;
    for (const std::int64_t length : lengths)
      for (std::int64_t i = 0; i < length; ++i) drawn.push_back(random.between(0, 19));
    const auto count = static_cast<std::int64_t>(drawn.size());
    check_batch("tagger_" + std::to_string(lengths.size()),
                [] {
                  Random weights(25);
                  layers::GruOptions options;
                  options.direction = layers::Direction::bidirectional;
                  options.reset = layers::GruReset::before;
                  const Var words = input("words", VarType(DType::i64, {open, 1}, 1));
                  const Var x = layers::embedding(words, random_tensor(weights, {20, 5}));
                  const auto made = layers::gru({x}, {gru_weights(weights, 5, 4), gru_weights(weights, 5, 4)}, options);
                  const auto tags = crf_decoding(matmul(made.y, parameter("w", random_tensor(weights, {8, 3}))),
                                                 parameter("t", random_tensor(weights, {5, 3})));
                  output("path", tags.path);
                  output("score", tags.score);
                  output("h", made.h[1]);
                  output("mean", sequence_pool(made.y, "average"));
                },
                {{"words", LoDTensor(Tensor::from(drawn, DDim{count, 1}), LoD::from_lengths({lengths}))}});
  }
}

TEST_CASE("In a ragged batch boots have a row for each sequence, and labels are as many as they are") {
  using namespace build;
  Random random(26);
  const LoD lod = LoD::from_lengths({{4, 1, 6}});
  check_batch("batch_boots",
              [] {
                const Var x = rows(3);
                DynamicRNN rnn;
                Var memory;
                const Var boot = build::tanh(input("boot", VarType(DType::f32, {open, 3})));
                {
                  const auto block = rnn.block();
                  const Var now = rnn.step_input(x);
                  memory = rnn.memory(boot);
                  rnn.update_memory(memory, build::tanh(memory + now));
                  rnn.output(memory);
                }
                output("y", rnn.outputs()[0]);
                output("last", rnn.last(memory) * input("factor", VarType(DType::f32, {3})));
                const auto labels = ctc_greedy_decode(x, 0);
                output("labels", labels.labels);
                output("sum", labels.score);
              },
              {{"x", LoDTensor(random_tensor(random, {11, 3}), lod)},
               {"boot", random_tensor(random, {3, 3})},
               {"factor", random_tensor(random, {3})}});
  const auto refusal = [](const std::function<void(const Var&)>& building) -> std::string {
    Program program;
    {
      const build::Guard guard(program);
      building(rows(3));
    }
    try {
      format_onnx_batch(program);
    } catch (const UnsupportedError& error) {
      return error.what();
    }
    return "";
  };
  const std::string joins = refusal([](const Var& x) { output("y", reduce(sequence_pool(x, "sum"), "sum", {0})); });
  CHECK_MESSAGE(joins.find("op 'reduce'") != joins.npos, joins);
  const std::string alone = refusal([](const Var&) { output("y", input("z", VarType(DType::f32, {2})) + 1.0); });
  CHECK_MESSAGE(alone.find("output 'y': expected one that the sequences decide") != alone.npos, alone);
}

TEST_CASE("What ONNX does not have is refused by name, all at once, and deeper LoD too") {
  Program program;
  program.set_title("tagger");
  {
    const build::Guard guard(program);
    Random random(16);
    const Var x = rows(5);
    build::output("tags", build::crf_decoding(x, build::parameter("t", random_tensor(random, {7, 5}))).path);
    build::output("labels", build::call("ctc_beam_search", {x}, {{"blank", std::int64_t{0}}})[0]);
    build::output("drawn", build::call("sample_tokens", {build::call1("drop_lod", {x}), build::input("keys", VarType(DType::i64, {open})),
                                                         build::constant(0)})[0]);
  }
  try {
    format_onnx(program);
    FAIL("expected a refusal");
  } catch (const UnsupportedError& error) {
    const std::string text = error.what();
    INFO(text);
    CHECK(text.starts_with("program 'tagger'"));
    CHECK(text.find("ctc_beam_search: keeps prefixes in a tree") != text.npos);
    CHECK(text.find("sample_tokens: draws numbers") != text.npos);
    CHECK(text.find("crf_decoding") == text.npos);
  }
  Program deep;
  {
    const build::Guard guard(deep);
    build::output("y", build::tanh(build::input("x", VarType(DType::f32, {open, 2}, 2))));
  }
  CHECK_THROWS_WITH_AS(format_onnx(deep), doctest::Contains("at most one level of LoD"), UnsupportedError);
}
