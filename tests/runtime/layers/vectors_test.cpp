// SPDX-License-Identifier: Apache-2.0
// Values that an oracle gave just now for random layers, in the folder that MILLRACE_LAYER_VECTORS names: see tests/python/layer_vectors.py.
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/files/safetensors.h>
#include <millrace/runtime/layers/gru.h>
#include <millrace/runtime/layers/lstm.h>
#include <millrace/runtime/layers/rnn.h>

#include "support/program_runs.h"
#include "support/sequence_walk.h"

using namespace millrace;
using namespace millrace::testing;
using build::Var;
using layers::Direction;

namespace {

/// "onnx lstm bidirectional clip=0.4 gate=hard_sigmoid,0.3,0.4" with its tensors.
struct Case {
  Case(const SafeTensors& file, const std::string& number, const std::string& line) : tensors(file), prefix(number + ".") {
    std::istringstream all(line);
    all >> source >> kind >> way;
    for (std::string word; all >> word;) words[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
  }
  std::optional<Tensor> tensor(const std::string& name) const {
    const Tensor* found = tensors.find(prefix + name);
    return found == nullptr ? std::nullopt : std::optional(*found);
  }
  Tensor at(const std::string& name) const { return tensor(name).value(); }
  double number(const std::string& word) const { return words.contains(word) ? std::stod(words.at(word)) : 0; }
  Direction direction() const {
    return way == "forward" ? Direction::forward : way == "reverse" ? Direction::reverse : Direction::bidirectional;
  }
  void set(const std::string& word, layers::Activation& activation) const {
    if (!words.contains(word)) return;
    std::istringstream all(words.at(word));
    std::string part;
    std::getline(all, activation.name, ',');
    if (std::getline(all, part, ',')) activation.alpha = std::stod(part);
    if (std::getline(all, part, ',')) activation.beta = std::stod(part);
  }
  std::size_t count() const { return source == "torch" ? static_cast<std::size_t>(number("count")) : layers::directions(direction()); }

  const SafeTensors& tensors;
  std::string prefix, source, kind, way;
  std::map<std::string, std::string> words;
};

struct Made {
  Var y;
  std::vector<Var> h, c;
};

std::vector<Var> initial(const Case& one, const std::string& name) {
  std::vector<Var> made;
  if (const auto all = one.tensor(name))
    for (std::int64_t k = 0; k < all->dim(0); ++k) made.push_back(build::constant(all->select(0, k)));
  return made;
}

/// The weights of each k, by what makes them from ONNX's tensors and what from PyTorch's.
template <class Weights, class FromOnnx, class FromTorch>
std::vector<Weights> weights_of(const Case& one, FromOnnx&& from_onnx, FromTorch&& from_torch) {
  std::vector<Weights> made;
  for (std::size_t k = 0; k < one.count(); ++k)
    made.push_back(one.source == "onnx" ? from_onnx(static_cast<std::int64_t>(k)) : from_torch("." + std::to_string(k)));
  return made;
}

Made lstm_of(const Case& one, const layers::Sequences& over) {
  layers::LstmOptions options;
  options.direction = one.direction();
  options.gate_clip = one.number("clip");
  options.couple_input_forget = one.number("coupled") != 0;
  one.set("gate", options.gate);
  one.set("candidate", options.candidate);
  one.set("output", options.output);
  const auto weights = weights_of<layers::LstmWeights>(
      one, [&](std::int64_t k) { return layers::lstm_from_onnx(one.at("w"), one.at("r"), one.tensor("b"), one.tensor("p"), k); },
      [&](const std::string& k) {
        return layers::lstm_from_pytorch(one.at("weight_ih" + k), one.at("weight_hh" + k), one.tensor("bias_ih" + k),
                                         one.tensor("bias_hh" + k), one.tensor("weight_hr" + k));
      });
  const auto made = layers::lstm(over, weights, options, initial(one, "h0"), initial(one, "c0"));
  return {made.y, made.h, made.c};
}

Made gru_of(const Case& one, const layers::Sequences& over) {
  layers::GruOptions options;
  options.direction = one.direction();
  options.clip = one.number("clip");
  if (one.source == "onnx" && one.number("after") == 0) options.reset = layers::GruReset::before;
  const auto weights = weights_of<layers::GruWeights>(
      one, [&](std::int64_t k) { return layers::gru_from_onnx(one.at("w"), one.at("r"), one.tensor("b"), k); },
      [&](const std::string& k) {
        return layers::gru_from_pytorch(one.at("weight_ih" + k), one.at("weight_hh" + k), one.tensor("bias_ih" + k),
                                        one.tensor("bias_hh" + k));
      });
  const auto made = layers::gru(over, weights, options, initial(one, "h0"));
  return {made.y, made.h, {}};
}

Made rnn_of(const Case& one, const layers::Sequences& over) {
  layers::RnnOptions options;
  options.direction = one.direction();
  options.clip = one.number("clip");
  one.set("activation", options.activation);
  const auto weights = weights_of<layers::RnnWeights>(
      one, [&](std::int64_t k) { return layers::rnn_from_onnx(one.at("w"), one.at("r"), one.tensor("b"), k); },
      [&](const std::string& k) {
        return layers::rnn_from_pytorch(one.at("weight_ih" + k), one.at("weight_hh" + k), one.tensor("bias_ih" + k),
                                        one.tensor("bias_hh" + k));
      });
  const auto made = layers::rnn(over, weights, options, initial(one, "h0"));
  return {made.y, made.h, {}};
}

/// ONNX's Y, [T, D, N, H], as ours, [T, N, D·H].
Tensor ours(const Case& one, const Tensor& y) {
  if (one.source != "onnx") return y;
  return y.permute({0, 2, 1, 3}).copy_to(CpuPlace{}).reshape({y.dim(0), y.dim(2), y.dim(1) * y.dim(3)});
}

void check_case(const Case& one) {
  const Tensor x = one.at("x");
  Feeds feeds{{"x", x}};
  Program program;
  {
    const build::Guard guard(program);
    Var lengths;
    if (const auto given = one.tensor("lens")) {
      lengths = build::input("lengths", VarType(DType::i64, {given->dim(0)}));
      feeds.emplace("lengths", *given);
    }
    const layers::Sequences over(build::input("x", VarType(DType::f32, {DDim::unknown, DDim::unknown, x.dim(2)})), lengths);
    const Made made = one.kind == "lstm" ? lstm_of(one, over) : one.kind == "gru" ? gru_of(one, over) : rnn_of(one, over);
    build::output("y", made.y);
    for (std::size_t k = 0; k < made.h.size(); ++k) build::output("h_" + std::to_string(k), made.h[k]);
    for (std::size_t k = 0; k < made.c.size(); ++k) build::output("c_" + std::to_string(k), made.c[k]);
  }
  const RunResult result = on_cpu(program, feeds);
  check_close(result["y"].tensor(), ours(one, one.at("want_y")));
  for (const std::string state : {"h", "c"}) {
    const auto wanted = one.tensor("want_" + state);
    for (std::int64_t k = 0; wanted && k < wanted->dim(0); ++k)
      check_close(result[state + "_" + std::to_string(k)].tensor(), wanted->select(0, k).copy_to(CpuPlace{}));
  }
}

}  // namespace

TEST_CASE("layers give what an oracle's vectors say") {
  const char* named = std::getenv("MILLRACE_LAYER_VECTORS");
  if (named == nullptr || !std::filesystem::exists(named)) {
    MESSAGE("skipped: MILLRACE_LAYER_VECTORS names no folder; the tests python.layers and python.layers_torch fill one");
    return;
  }
  std::size_t cases = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(named)) {
    if (!entry.is_regular_file()) continue;
    const SafeTensors file = read_safetensors(entry.path());
    for (const auto& [number, line] : file.metadata) {
      INFO(entry.path().string(), ", case ", number, ": ", line);
      check_case(Case(file, number, line));
      ++cases;
    }
  }
  CHECK(cases > 0);
}
