// SPDX-License-Identifier: Apache-2.0
// What single ops become in ONNX.
#include <doctest/doctest.h>

#include <millrace/runtime/builder/decoding.h>
#include <millrace/runtime/builder/sequence_ops.h>

#include "runtime/export/with_onnx/round_trip.h"
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
                       output("spread", sequence_expand_as(input("each", VarType(DType::f32, {open, 2})), x));
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

TEST_CASE("What ONNX does not have is refused by name, all at once, and deeper LoD too") {
  Program program;
  program.set_title("tagger");
  {
    const build::Guard guard(program);
    Random random(16);
    const Var x = rows(5);
    build::output("path", build::call("crf_decoding", {x, build::parameter("t", random_tensor(random, {7, 5}))})[0]);
    build::output("labels", build::call("ctc_greedy", {x}, {{"blank", std::int64_t{0}}})[0]);
  }
  try {
    format_onnx(program);
    FAIL("expected a refusal");
  } catch (const UnsupportedError& error) {
    const std::string text = error.what();
    INFO(text);
    CHECK(text.starts_with("program 'tagger'"));
    CHECK(text.find("crf_decoding") != text.npos);
    CHECK(text.find("ctc_greedy") != text.npos);
    CHECK(text.find("sequence_pool") == text.npos);
  }
  Program deep;
  {
    const build::Guard guard(deep);
    build::output("y", build::tanh(build::input("x", VarType(DType::f32, {open, 2}, 2))));
  }
  CHECK_THROWS_WITH_AS(format_onnx(deep), doctest::Contains("at most one level of LoD"), UnsupportedError);
}
