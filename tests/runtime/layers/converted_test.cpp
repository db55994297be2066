// SPDX-License-Identifier: Apache-2.0
// Files that apps/convert/weights.py made just now of weights of PyTorch and Keras, in the folder that MILLRACE_CONVERTED_WEIGHTS names: see
// tests/python/weights_test.py.
#include <cstdlib>
#include <filesystem>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/layers/load.h>

#include "support/program_runs.h"
#include "support/same_bits.h"
#include "support/sequence_walk.h"

using namespace millrace;
using namespace millrace::testing;

namespace {

bool same_bits(const std::optional<Tensor>& a, const std::optional<Tensor>& b) {
  return a.has_value() == b.has_value() && (!a || testing::same_bits(*a, *b));
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

TEST_CASE("weights that the script converted have the bits of our conversions, and give what their source gives") {
  const char* folder = std::getenv("MILLRACE_CONVERTED_WEIGHTS");
  if (folder == nullptr || !std::filesystem::exists(folder)) {
    MESSAGE("skipped: MILLRACE_CONVERTED_WEIGHTS names no folder; the test python.weights fills one");
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
