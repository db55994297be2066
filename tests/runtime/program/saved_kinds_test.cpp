// SPDX-License-Identifier: Apache-2.0
// Programs of every kind, saved and loaded: the same text, the same bits on the same feeds.
#include <millrace/runtime/program/storage.h>

#include <filesystem>

#include <unistd.h>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/decoding.h>
#include <millrace/runtime/builder/dynamic_rnn.h>
#include <millrace/runtime/builder/generation.h>
#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/builder/sequence_ops.h>
#include <millrace/runtime/builder/static_rnn.h>
#include <millrace/runtime/layers/conv1d.h>
#include <millrace/runtime/layers/embedding.h>
#include <millrace/runtime/layers/gru.h>
#include <millrace/runtime/layers/layer_norm.h>
#include <millrace/runtime/layers/linear.h>
#include <millrace/runtime/layers/lstm.h>
#include <millrace/runtime/layers/rnn.h>
#include <millrace/runtime/program/check.h>

#include "support/program_runs.h"
#include "support/random_tensor.h"

using namespace millrace;
using namespace millrace::testing;
using build::Var;

namespace {

constexpr std::int64_t open = DDim::unknown;

Tensor whole(Random& random, std::int64_t count, std::int64_t bound) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(count));
  for (std::int64_t& value : values) value = random.between(0, bound - 1);
  return Tensor::from(values, DDim{count, 1});
}

/// Lengths of 1 … 4 sequences, some of them perhaps empty.
LoD::Level lengths_of(Random& random) {
  LoD::Level lengths;
  for (std::int64_t left = random.between(1, 4); left > 0; --left) lengths.push_back(random.between(0, 5));
  lengths.push_back(random.between(1, 5));
  return lengths;
}
std::int64_t sum_of(const LoD::Level& lengths) {
  std::int64_t sum = 0;
  for (const std::int64_t length : lengths) sum += length;
  return sum;
}

/// Saves, loads and runs both.
void check_saved(const std::string& kind, const std::function<Feeds()>& building) {
  INFO(kind);
  Program program;
  Feeds feeds;
  {
    const build::Guard guard(program);
    feeds = building();
  }
  const std::filesystem::path path = std::filesystem::temp_directory_path() / ("saved_" + std::to_string(getpid()) + "_" + kind + ".mr");
  save_program(program, path);
  const Program loaded = load_program(path);
  std::filesystem::remove(path);
  std::filesystem::remove(path.parent_path() / (path.stem().string() + ".safetensors"));
  check(loaded);
  CHECK(loaded.to_string() == program.to_string());
  CHECK(bits(on_cpu(loaded, feeds)) == bits(on_cpu(program, feeds)));
}

Var rows(std::int64_t width, int levels = 1) { return build::input("x", VarType(DType::f32, {open, width}, levels)); }

Feeds ragged(Random& random, std::int64_t width) {
  const LoD::Level lengths = lengths_of(random);
  return {{"x", LoDTensor(random_tensor(random, {sum_of(lengths), width}), LoD::from_lengths({lengths}))}};
}

Feeds layers_of_all_kinds(Random& random) {
  const LoD::Level lengths = lengths_of(random);
  const Var words = layers::embedding(build::input("x", VarType(DType::i64, {open, 1}, 1)), random_tensor(random, {11, 3}));
  const Var wide = layers::conv1d({words}, {random_tensor(random, {2, 3, 4}), random_tensor(random, {4})});
  layers::LstmOptions lstm;
  lstm.direction = layers::Direction::bidirectional;
  lstm.cell_clip = 0.7;
  lstm.forget_bias = 1;
  const auto cell = [&] {
    return layers::LstmWeights{random_tensor(random, {4, 12}), random_tensor(random, {2, 12}), random_tensor(random, {12}),
                               random_tensor(random, {9}), random_tensor(random, {3, 2})};
  };
  const auto first = layers::lstm({wide}, {cell(), cell()}, lstm);
  layers::GruOptions gru;
  gru.reset = layers::GruReset::before;
  gru.candidate = {"leaky_relu", 0.1};
  const auto second =
      layers::gru({first.y}, {{random_tensor(random, {4, 9}), random_tensor(random, {3, 9}), random_tensor(random, {9}), {}}}, gru);
  layers::RnnOptions rnn;
  rnn.direction = layers::Direction::reverse;
  const auto third = layers::rnn({second.y}, {{random_tensor(random, {3, 3}), random_tensor(random, {3, 3}), {}}}, rnn);
  const Var normed = layers::layer_norm(third.y, {random_tensor(random, {3}), random_tensor(random, {3})});
  build::output("y", layers::linear(normed, {random_tensor(random, {3, 5}), random_tensor(random, {5})}));
  build::output("c", first.c[1]);
  return {{"x", LoDTensor(whole(random, sum_of(lengths), 11), LoD::from_lengths({lengths}))}};
}

Feeds nested_rnn(Random& random) {
  using namespace build;
  const Var x = rows(2, 2);
  const Var w = parameter("w", random_tensor(random, {2, 2}));
  DynamicRNN outer({.level = 0});
  Var memory;
  {
    const auto block = outer.block();
    const Var sentence = outer.step_input(x);
    memory = outer.memory(DType::f32, {2}, 0.25);
    DynamicRNN inner({.reverse = random.coin()});
    Var state;
    {
      const auto inside = inner.block();
      const Var row = inner.step_input(sentence);
      state = inner.memory(memory);
      const Var next = build::tanh(matmul(state, w) + row);
      inner.update_memory(state, next);
      inner.output(next);
    }
    outer.update_memory(memory, inner.last(state));
    outer.output(inner.outputs()[0]);
  }
  output("y", outer.outputs()[0]);
  output("last", outer.last(memory));
  const LoD lod = LoD::from_lengths({{2, 1}, {3, 1, 2}});
  return {{"x", LoDTensor(random_tensor(random, {6, 2}), lod)}};
}

Feeds sequence_ops(Random& random) {
  using namespace build;
  const Var x = rows(3);
  for (const char* kind : {"average", "max", "last"}) output(kind, sequence_pool(x, kind, 0.5));
  output("soft", sequence_softmax(x));
  output("backwards", sequence_reverse(x));
  output("around", sequence_conv(x, parameter("f", random_tensor(random, {9, 2})), -1, 3));
  output("ahead", row_conv(x, parameter("g", random_tensor(random, {2, 3}))));
  const PaddedSequences padded = sequence_pad(x);
  output("padded", padded.rows);
  output("again", sequence_unpad(padded.rows, padded.length));
  output("best", sequence_top_k(x, 2).index);
  output("both", sequence_concat({x, sequence_reverse(x)}));
  return ragged(random, 3);
}

Feeds decoders(Random& random) {
  using namespace build;
  const Var x = rows(4);
  const CrfDecoded tags = crf_decoding(x, parameter("transition", random_tensor(random, {6, 4})));
  output("path", tags.path);
  output("score", tags.score);
  output("greedy", ctc_greedy_decode(x, 0).labels);
  output("beam", ctc_beam_search_decode(log(softmax(x)), 0, 3).labels);
  return ragged(random, 4);
}

Feeds generation(Random& random) {
  using namespace build;
  const Var w = parameter("w", random_tensor(random, {3, 3}));
  const Var table = parameter("table", random_tensor(random, {5, 3}));
  const Var out = parameter("out", random_tensor(random, {3, 5}));
  const Model model = [&](const Var& tokens, const std::vector<Var>& states, const Var&) {
    const Var h = build::tanh(matmul(states[0], w) + reshape(embedding(table, tokens), {-1, 3}));
    return ModelStep{log(softmax(matmul(h, out))), {h}};
  };
  GenerationOptions options;
  options.end_token = 2;
  options.max_length = 6;
  const Var start = input("start", VarType(DType::i64, {open, 1}));
  const Var state = input("h", VarType(DType::f32, {open, 3}));
  const Generated beam = generate_beam(model, start, {state}, 3, options);
  output("tokens", beam.tokens);
  output("totals", beam.totals);
  output("sampled", generate_sampled(model, start, {state}, start, {.seed = 5, .temperature = 0.8, .top = 3}, options).tokens);
  const std::int64_t sources = random.between(1, 4);
  return {{"start", whole(random, sources, 5)}, {"h", random_tensor(random, {sources, 3})}};
}

Feeds loops_and_branches(Random& random) {
  using namespace build;
  const Var x = input("x", VarType(DType::f32, {open, 3}));
  const ArrayVar kept = ArrayVar::growable("kept");
  const ArrayVar steps = ArrayVar::unstack(x);
  const Var n = steps.size();
  Var step = constant(0);
  Var total = constant(Tensor::from<float>({0, 0, 0}));
  auto loop = while_loop({step, total}, {.max_trips = 50});
  {
    auto frame = loop.frame();
    loop.break_if(equal(step, n));
    const Var row = steps.read(step);
    total.update(
        if_else(greater(sum(row), 0.0), [&] { return std::vector<Var>{total + row}; }, [&] { return std::vector<Var>{total * 0.5}; })[0]);
    kept.append(total);
    loop.break_if(greater(sum(total), 4.0));
    step.update(step + 1);
  }
  output("kept", kept.stack());
  output("mapped", map_fn([](const Var& row) { return sigmoid(row); }, x));
  return {{"x", random_tensor(random, {random.between(1, 7), 3})}};
}

}  // namespace

TEST_CASE("programs of every kind are loaded as they were saved, and give the same bits") {
  const std::pair<const char*, Feeds (*)(Random&)> kinds[] = {
      {"layers", layers_of_all_kinds}, {"nested_rnn", nested_rnn}, {"sequence_ops", sequence_ops},
      {"decoders", decoders},          {"generation", generation}, {"loops", loops_and_branches},
  };
  for (const std::uint64_t seed : seeds(4)) {
    INFO("seed ", seed);
    for (const auto& [kind, building] : kinds) {
      Random random(seed);
      check_saved(kind, [&, make = building] { return make(random); });
    }
  }
}
