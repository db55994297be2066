// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include <doctest/doctest.h>

#include <millrace/runtime/program/check.h>
#include <millrace/runtime/training/extract.h>
#include <millrace/runtime/training/model_spec.h>

#include "support/program_runs.h"
#include "support/random_tensor.h"

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::training;
using Kind = LayerSpec::Kind;

namespace {

ModelSpec of(std::vector<LayerSpec> layers) {
  ModelSpec spec;
  spec.layers = std::move(layers);
  return spec;
}

DataShape data(std::int64_t features, std::int64_t outputs, bool per_row = false) {
  DataShape shape;
  shape.features = features;
  shape.outputs = outputs;
  shape.per_row = per_row;
  return shape;
}

LayerSpec layer(Kind kind, std::int64_t units, layers::Direction direction = layers::Direction::forward) {
  LayerSpec made;
  made.kind = kind;
  made.units = units;
  made.direction = direction;
  return made;
}

std::vector<std::string> names(const Tensors& tensors) {
  std::vector<std::string> all;
  for (const auto& [name, tensor] : tensors) all.push_back(name);
  return all;
}

}  // namespace

TEST_CASE("each use of a model has the same weights") {
  const ModelSpec spec = of({layer(Kind::lstm, 4), layer(Kind::gru, 5), layer(Kind::linear, 3)});
  const Program train = build_model(spec, data(2, 3), ModelUse::train);
  check(train);
  for (const ModelUse use : {ModelUse::score, ModelUse::infer, ModelUse::live}) {
    const Program other = build_model(spec, data(2, 3), use);
    check(other);
    CHECK(names(weights_of(other)) == names(weights_of(train)));
    for (const auto& [name, weight] : weights_of(other)) CHECK(weight.to_vector<float>() == weights_of(train).at(name).to_vector<float>());
  }
  CHECK(weights_of(train).contains("lstm1_0_input"));
  CHECK(weights_of(train).contains("scores_bias"));
}

TEST_CASE("the live form gives at each sequence's last row the bits that the whole gives for it") {
  Random random(5);
  const LoD lod = LoD::from_lengths({{4, 1, 7}});
  const Feeds feeds{{"x", LoDTensor(random_tensor(random, {12, 2}), lod)}};
  const ModelSpec spec = of({layer(Kind::linear, 3), layer(Kind::lstm, 4), layer(Kind::linear, 3)});
  const Tensor whole = on_cpu(build_model(spec, data(2, 3), ModelUse::infer), feeds)["scores"].tensor();
  const Tensor live = on_cpu(build_model(spec, data(2, 3), ModelUse::live), feeds)["scores"].tensor();
  const std::int64_t last[] = {3, 4, 11};
  for (std::int64_t i = 0; i < 3; ++i) CHECK(live.rows(last[i], last[i] + 1).to_vector<float>() == whole.rows(i, i + 1).to_vector<float>());
}

TEST_CASE("sequences become rows by their last states, averages or maxima, and without recurrence too") {
  Random random(6);
  const LoD lod = LoD::from_lengths({{3, 0, 2}});
  const Feeds feeds{{"x", LoDTensor(random_tensor(random, {5, 2}), lod)}};
  for (const auto pooling : {ModelSpec::Pooling::last, ModelSpec::Pooling::average, ModelSpec::Pooling::max})
    for (const auto& layers : {std::vector{layer(Kind::rnn, 4, layers::Direction::bidirectional)}, {layer(Kind::linear, 4)}, {}}) {
      ModelSpec spec = of(layers);
      spec.pooling = pooling;
      CHECK(on_cpu(build_model(spec, data(2, 3), ModelUse::infer), feeds)["scores"].dims() == DDim{3, 3});
      CHECK(on_cpu(build_model(spec, data(2, 3, true), ModelUse::infer), feeds)["scores"].dims() == DDim{5, 3});
    }
}

TEST_CASE("layers that cannot be where they are are refused by number") {
  const auto refused = [](const ModelSpec& spec, const DataShape& shape, ModelUse use, const char* why) {
    CHECK_THROWS_WITH_AS(build_model(spec, shape, use), doctest::Contains(why), Error);
  };
  refused(of({layer(Kind::lstm, 0)}), data(2, 3), ModelUse::train, "layer 1 (lstm): expected at least 1 unit");
  refused(of({layer(Kind::lstm, 2), layer(Kind::embedding, 2)}), data(2, 3), ModelUse::train,
          "layer 2 (embedding): expected an embedding as the first layer alone");
  refused(of({layer(Kind::embedding, 2)}), data(2, 3), ModelUse::train,
          "layer 1 (embedding): expected rows that are numbers of words, i64, found 2 features of f32");
  LayerSpec unknown = layer(Kind::linear, 2);
  unknown.activation = "rleu";
  refused(of({unknown}), data(2, 3), ModelUse::train, "layer 1 (linear): activation: op registry: expected a registered op, found 'rleu'");
  unknown.activation = "drop_lod";
  refused(of({unknown}), data(2, 3), ModelUse::train,
          "layer 1 (linear): activation: expected an op that gives rows as it takes them, f32[?, 2] lod=1, found 'drop_lod', which gives "
          "f32[?, 2]");
  unknown.activation = "argmax";
  refused(of({layer(Kind::lstm, 2), unknown}), data(2, 3), ModelUse::train, "layer 2 (linear): activation: expected an op that gives rows");
  refused(of({layer(Kind::lstm, 2, layers::Direction::bidirectional)}), data(2, 3), ModelUse::live, "go forward");
  DataShape words = data(9, 3);
  words.dtype = DType::i64;
  refused(of({layer(Kind::lstm, 2)}), words, ModelUse::train, "an embedding as the first layer");
}

TEST_CASE("errors of layers begin with their place in a configuration, and memory that is refused names the layer") {
  ModelSpec spec = of({layer(Kind::linear, std::int64_t{1} << 25)});
  spec.layers[0].place = "c.toml:5";
  CHECK_THROWS_WITH_AS(build_model(spec, data(std::int64_t{1} << 25, 3), ModelUse::train),
                       doctest::Contains("(c.toml:5: layer 1 (linear))"), OutOfMemoryError);
  spec.layers[0].activation = "rleu";
  spec.layers[0].units = 2;
  CHECK_THROWS_WITH_AS(build_model(spec, data(2, 3), ModelUse::train), doctest::Contains("c.toml:5: layer 1 (linear): activation: "),
                       ArgumentError);
  DataShape words = data(9, 3);
  words.dtype = DType::i64;
  CHECK_THROWS_WITH_AS(build_model(spec, words, ModelUse::train), doctest::Contains("c.toml:5: model: expected an embedding"),
                       ArgumentError);
}

TEST_CASE("rows without a feature are refused by source") {
  const Dataset none{LoDTensor(Tensor(DType::f32, {3, 0}), LoD::from_lengths({{3}})), Tensor::from<std::int64_t>({0}), false, {}, "a.npz"};
  CHECK_THROWS_WITH_AS(shape_of(none), "a.npz, rows: expected at least one feature, found f32[3, 0] on cpu", ShapeError);
}

namespace {

ModelSpec of_decoder(std::int64_t beam) {
  ModelSpec spec = of({layer(Kind::embedding, 3), layer(Kind::gru, 4, layers::Direction::bidirectional)});
  spec.decoder = DecoderSpec{5, 3, beam, 6, 0.0};
  return spec;
}

DataShape of_tokens() {
  DataShape shape = data(6, 4);
  shape.dtype = DType::i64;
  shape.tokens = true;
  return shape;
}

/// Sequences of 3, 0, 1 and 5 rows, with 2, 3, 0 and 1 tokens.
Dataset words_and_tokens() {
  Dataset made;
  made.x = LoDTensor(Tensor::from<std::int64_t>({0, 5, 2, 3, 1, 1, 4, 0, 5}), LoD::from_lengths({{3, 0, 1, 5}}));
  made.targets = Tensor::from<std::int64_t>({2, 0, 1, 1, 3, 2});
  made.target_lod = LoD::from_lengths({{2, 3, 0, 1}});
  return made;
}

}  // namespace

TEST_CASE("a decoder reads the token before each target, the end at first, and the end is its last target") {
  const DecoderFeeds feeds = decoder_feeds(words_and_tokens(), 4);
  CHECK(feeds.before.lod().to_string() == "[[3,4,1,2]]");
  CHECK(feeds.before.tensor().to_vector<std::int64_t>() == std::vector<std::int64_t>{4, 2, 0, 4, 1, 1, 3, 4, 4, 2});
  CHECK(feeds.target.to_vector<std::int64_t>() == std::vector<std::int64_t>{2, 0, 4, 1, 1, 3, 4, 4, 2, 4});
}

TEST_CASE("hypotheses of a decoder score as much as the same tokens do when they are given, whatever the lengths") {
  const Dataset words = words_and_tokens();
  for (const std::int64_t beam : {1, 3}) {
    const RunResult found = on_cpu(build_model(of_decoder(beam), of_tokens(), ModelUse::infer), {{"x", words.x}});
    const LoD lod = found["tokens"].lod();
    const std::vector<std::int64_t> tokens = found["tokens"].tensor().to_vector<std::int64_t>();
    const std::vector<float> totals = found["totals"].tensor().to_vector<float>();
    // Hypothesis k of each source, as its targets.
    for (std::int64_t k = 0; k < beam; ++k) {
      Dataset given = words;
      std::vector<std::int64_t> targets;
      LoD::Level lengths;
      std::vector<float> wanted;
      std::vector<bool> ended;
      for (std::int64_t source = 0; source < 4; ++source) {
        const std::int64_t hypothesis = lod.offsets(0)[static_cast<std::size_t>(source)] + k;
        REQUIRE(hypothesis < lod.offsets(0)[static_cast<std::size_t>(source) + 1]);
        const auto [begin, end] = lod.row_range(1, hypothesis, hypothesis + 1);
        ended.push_back(tokens[static_cast<std::size_t>(end - 1)] == 4);
        targets.insert(targets.end(), tokens.begin() + begin, tokens.begin() + end - (ended.back() ? 1 : 0));
        lengths.push_back(end - begin - (ended.back() ? 1 : 0));
        wanted.push_back(totals[static_cast<std::size_t>(hypothesis)]);
      }
      given.targets = Tensor::from(targets, {static_cast<std::int64_t>(targets.size())});
      given.target_lod = LoD::from_lengths({lengths});
      const DecoderFeeds feeds = decoder_feeds(given, 4);
      const Tensor scores = on_cpu(build_model(of_decoder(beam), of_tokens(), ModelUse::score),
                                   {{"x", words.x}, {"before", feeds.before}, {"target", feeds.target}})["scores"]
                                .tensor();
      const std::vector<float> all = scores.to_vector<float>();
      const std::vector<std::int64_t> target = feeds.target.to_vector<std::int64_t>();
      std::size_t row = 0;
      for (std::size_t source = 0; source < 4; ++source) {
        double total = 0;
        for (std::int64_t at = 0; at <= lengths[source]; ++at, ++row) {
          if (at == lengths[source] && !ended[source]) continue;  // cut at the greatest length
          double sum = 0;
          for (std::size_t i = 0; i < 5; ++i) sum += std::exp(static_cast<double>(all[row * 5 + i]));
          total += static_cast<double>(all[row * 5 + static_cast<std::size_t>(target[row])]) - std::log(sum);
        }
        CHECK(total == doctest::Approx(wanted[source]).epsilon(1e-4));
      }
    }
  }
}

TEST_CASE("a decoder belongs to targets that are tokens, behind a recurrent layer, and is not fed live") {
  const auto refused = [](const ModelSpec& spec, const DataShape& shape, ModelUse use, const char* why) {
    CHECK_THROWS_WITH_AS(build_model(spec, shape, use), doctest::Contains(why), Error);
  };
  DataShape classes = of_tokens();
  classes.tokens = false;
  refused(of_decoder(1), classes, ModelUse::train, "expected targets that are tokens with a decoder");
  ModelSpec spec = of_decoder(1);
  refused(spec, of_tokens(), ModelUse::live, "a decoder, which reads the whole sequence first");
  spec.layers.pop_back();
  refused(spec, of_tokens(), ModelUse::train, "decoder: expected a recurrent layer in front of it, found none");
  spec = of_decoder(1);
  spec.decoder.reset();
  refused(spec, of_tokens(), ModelUse::train, "expected a decoder of targets that are tokens, found none");
}
