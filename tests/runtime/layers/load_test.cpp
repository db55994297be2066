// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/layers/load.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include <unistd.h>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/ops.h>

#include "support/program_runs.h"
#include "support/random.h"
#include "support/sequence_walk.h"

using namespace millrace;
using namespace millrace::testing;

namespace {

Tensor numbers(Random& random, const DDim& dims) {
  std::vector<float> values(static_cast<std::size_t>(dims.elements()));
  for (float& value : values) value = random.real();
  return Tensor::from(values, dims);
}

bool same_bits(const Tensor& a, const Tensor& b) {
  const Tensor x = a.copy_to(CpuPlace{});
  const Tensor y = b.copy_to(CpuPlace{});
  return x.dtype() == y.dtype() && x.dims() == y.dims() && std::memcmp(x.raw(), y.raw(), x.bytes()) == 0;
}
bool same_bits(const std::optional<Tensor>& a, const std::optional<Tensor>& b) {
  return a.has_value() == b.has_value() && (!a || same_bits(*a, *b));
}

/// A file of the script: the weights as their source has them, `raw.`, as the script made them, `net_`, an input and what is wanted.
struct Converted {
  explicit Converted(SafeTensors made) : file(std::move(made)) {}
  Tensor raw(const std::string& name) const { return *file.find("raw." + name); }
  std::optional<Tensor> perhaps(const std::string& name) const {
    const Tensor* found = file.find("raw." + name);
    return found == nullptr ? std::nullopt : std::optional(*found);
  }
  const std::string& word(const std::string& name) const { return file.metadata.at(name); }
  bool torch() const { return word("source") == "torch"; }
  layers::Direction direction() const { return word("directions") == "2" ? layers::Direction::bidirectional : layers::Direction::forward; }

  SafeTensors file;
};

/// Loads the layer and holds each weight against what the conversions of this library make of the source's.
template <class Weights, class Convert, class Same>
std::vector<Weights> checked(const std::vector<Weights>& loaded, Convert&& convert, Same&& same) {
  for (std::size_t k = 0; k < loaded.size(); ++k) {
    INFO("k ", k);
    const Weights ours = convert("." + std::to_string(k));
    CHECK(same_bits(loaded[k].input, ours.input));
    CHECK(same_bits(loaded[k].recurrent, ours.recurrent));
    CHECK(same_bits(loaded[k].bias, ours.bias));
    CHECK(same(loaded[k], ours));
  }
  return loaded;
}

build::Var lstm_of(const Converted& one, const layers::Sequences& x) {
  const auto convert = [&](const std::string& k) {
    return one.torch() ? layers::lstm_from_pytorch(one.raw("weight_ih" + k), one.raw("weight_hh" + k), one.perhaps("bias_ih" + k),
                                                   one.perhaps("bias_hh" + k), one.perhaps("weight_hr" + k))
                       : layers::lstm_from_keras(one.raw("kernel" + k), one.raw("recurrent_kernel" + k), one.perhaps("bias" + k));
  };
  const auto same = [](const auto& a, const auto& b) { return same_bits(a.projection, b.projection); };
  layers::LstmOptions options;
  options.direction = one.direction();
  return layers::lstm(x, checked(layers::load_lstm(one.file, "net"), convert, same), options).y;
}

build::Var gru_of(const Converted& one, const layers::Sequences& x) {
  const auto convert = [&](const std::string& k) {
    return one.torch() ? layers::gru_from_pytorch(one.raw("weight_ih" + k), one.raw("weight_hh" + k), one.perhaps("bias_ih" + k),
                                                  one.perhaps("bias_hh" + k))
                       : layers::gru_from_keras(one.raw("kernel" + k), one.raw("recurrent_kernel" + k), one.perhaps("bias" + k));
  };
  const auto same = [](const auto& a, const auto& b) { return same_bits(a.recurrent_bias, b.recurrent_bias); };
  layers::GruOptions options;
  options.direction = one.direction();
  if (one.word("reset") == "before") options.reset = layers::GruReset::before;
  return layers::gru(x, checked(layers::load_gru(one.file, "net"), convert, same), options).y;
}

build::Var rnn_of(const Converted& one, const layers::Sequences& x) {
  const auto convert = [&](const std::string& k) {
    return one.torch() ? layers::rnn_from_pytorch(one.raw("weight_ih" + k), one.raw("weight_hh" + k), one.perhaps("bias_ih" + k),
                                                  one.perhaps("bias_hh" + k))
                       : layers::rnn_from_keras(one.raw("kernel" + k), one.raw("recurrent_kernel" + k), one.perhaps("bias" + k));
  };
  const auto same = [](const auto&, const auto&) { return true; };
  layers::RnnOptions options;
  options.direction = one.direction();
  return layers::rnn(x, checked(layers::load_rnn(one.file, "net"), convert, same), options).y;
}

}  // namespace

TEST_CASE("a file's layers are loaded by name, as many levels and directions as it has") {
  Random random(1);
  SafeTensors file;
  for (const char* name :
       {"enc_0_input", "enc_0_recurrent", "enc_1_input", "enc_1_recurrent", "enc_1_bias", "out_weight", "norm_scale", "words_table"})
    file.tensors.emplace_back(name, numbers(random, {2, 4}));
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
    file.tensors.emplace_back(name, numbers(random, dims));
  const std::filesystem::path path = std::filesystem::temp_directory_path() / ("load_test_" + std::to_string(getpid()) + ".safetensors");
  write_safetensors(path, file);
  const Program program = tagger_of(path);
  std::filesystem::remove(path);
  const LoDTensor x(numbers(random, {5, 3}), LoD::from_lengths({{2, 0, 3}}));
  const LoDTensor scores = on_cpu(program, {{"x", x}})["scores"];
  CHECK(scores.lod() == x.lod());
  CHECK(scores.dims() == DDim{5, 2});
}

TEST_CASE("a layer that the file does not have is named, with what it has") {
  SafeTensors file;
  Random random(2);
  file.tensors.emplace_back("enc_0_input", numbers(random, {2, 4}));
  CHECK_THROWS_WITH_AS(layers::load_gru(file, "dec"), "expected a tensor 'dec_0_input', found 'enc_0_input'", ArgumentError);
  CHECK_THROWS_WITH_AS(layers::load_gru(file, "enc"), doctest::Contains("'enc_0_recurrent'"), ArgumentError);
  CHECK_THROWS_WITH_AS(layers::load_embedding({}, "words"), "expected a tensor 'words_table', found none", ArgumentError);
}

TEST_CASE("weights that the script converted have the bits of our conversions, and give what their source gives") {
  const char* folder = std::getenv("MILLRACE_CONVERTED_WEIGHTS");
  if (folder == nullptr) {
    MESSAGE("skipped: MILLRACE_CONVERTED_WEIGHTS names no folder; the test python.weights makes one");
    return;
  }
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    INFO(entry.path().string());
    const Converted one(read_safetensors(entry.path()));
    const Tensor x = *one.file.find("x");
    Program program;
    {
      const build::Guard guard(program);
      const layers::Sequences over(build::input("x", VarType(DType::f32, {DDim::unknown, DDim::unknown, x.dim(2)})));
      build::output("y", one.word("kind") == "lstm"  ? lstm_of(one, over)
                         : one.word("kind") == "gru" ? gru_of(one, over)
                                                     : rnn_of(one, over));
    }
    check_close(on_cpu(program, {{"x", x}})["y"].tensor(), *one.file.find("want"));
    ++files;
  }
  CHECK(files > 0);
}
