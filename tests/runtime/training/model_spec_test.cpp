// SPDX-License-Identifier: Apache-2.0
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
  refused(of({layer(Kind::lstm, 2), layer(Kind::embedding, 2)}), data(2, 3), ModelUse::train, "layer 2 (embedding)");
  refused(of({layer(Kind::lstm, 2, layers::Direction::bidirectional)}), data(2, 3), ModelUse::live, "go forward");
  DataShape words = data(9, 3);
  words.dtype = DType::i64;
  refused(of({layer(Kind::lstm, 2)}), words, ModelUse::train, "an embedding as the first layer");
}
