// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/layers/load.h>

#include <filesystem>

#include <unistd.h>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/ops.h>

#include "support/program_runs.h"
#include "support/random_tensor.h"
#include "support/same_bits.h"

using namespace millrace;
using namespace millrace::testing;

TEST_CASE("a file's layers are loaded by name, as many levels and directions as it has") {
  Random random(1);
  SafeTensors file;
  for (const char* name :
       {"enc_0_input", "enc_0_recurrent", "enc_1_input", "enc_1_recurrent", "enc_1_bias", "out_weight", "norm_scale", "words_table"})
    file.tensors.emplace_back(name, random_tensor(random, {2, 4}));
  const auto lstm = layers::load_lstm(file, "enc");
  REQUIRE(lstm.size() == 2);
  CHECK(same_bits(lstm[1].input, *file.find("enc_1_input")));
  CHECK_FALSE(lstm[0].bias.has_value());
  CHECK(same_bits(*lstm[1].bias, *file.find("enc_1_bias")));
  CHECK_FALSE(lstm[1].projection.has_value());
  CHECK(layers::load_gru(file, "enc").size() == 2);
  CHECK(layers::load_rnn(file, "enc").size() == 2);
  CHECK(same_bits(layers::load_linear(file, "out").weight, *file.find("out_weight")));
  CHECK(same_bits(layers::load_conv1d(file, "out").weight, *file.find("out_weight")));
  CHECK(same_bits(layers::load_layer_norm(file, "norm").scale, *file.find("norm_scale")));
  CHECK(same_bits(layers::load_embedding(file, "words"), *file.find("words_table")));
}

namespace {

// [torch lstm]
Program tagger_of(const std::filesystem::path& path) {
  using namespace millrace::build;
  const SafeTensors file = read_safetensors(path);
  Program program;
  const Guard guard(program);
  const Var x = input("x", VarType(DType::f32, {DDim::unknown, 3}, 1));  // rows of sequences of any lengths
  const Var y = layers::lstm({x}, layers::load_lstm(file, "lstm")).y;
  output("scores", layers::linear(y, layers::load_linear(file, "out")));
  return program;
}
// [torch lstm]

}  // namespace

TEST_CASE("the example of docs/import_weights.md runs ragged rows through what a file holds") {
  Random random(3);
  SafeTensors file;
  for (const auto& [name, dims] : std::vector<std::pair<std::string, DDim>>{
           {"lstm_0_input", {3, 16}}, {"lstm_0_recurrent", {4, 16}}, {"lstm_0_bias", {16}}, {"out_weight", {4, 2}}, {"out_bias", {2}}})
    file.tensors.emplace_back(name, random_tensor(random, dims));
  const std::filesystem::path path = std::filesystem::temp_directory_path() / ("load_test_" + std::to_string(getpid()) + ".safetensors");
  write_safetensors(path, file);
  const Program program = tagger_of(path);
  std::filesystem::remove(path);
  const LoDTensor x(random_tensor(random, {5, 3}), LoD::from_lengths({{2, 0, 3}}));
  const LoDTensor scores = on_cpu(program, {{"x", x}})["scores"];
  CHECK(scores.lod() == x.lod());
  CHECK(scores.dims() == DDim{5, 2});
}

TEST_CASE("a layer that the file does not have is named, with what it has") {
  SafeTensors file;
  Random random(2);
  file.tensors.emplace_back("enc_0_input", random_tensor(random, {2, 4}));
  CHECK_THROWS_WITH_AS(layers::load_gru(file, "dec"), "expected a tensor 'dec_0_input', found 'enc_0_input'", ArgumentError);
  CHECK_THROWS_WITH_AS(layers::load_gru(file, "enc"), doctest::Contains("'enc_0_recurrent'"), ArgumentError);
  CHECK_THROWS_WITH_AS(layers::load_embedding({}, "words"), "expected a tensor 'words_table', found none", ArgumentError);
}
