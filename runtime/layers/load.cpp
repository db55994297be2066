// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/layers/load.h>

#include <millrace/runtime/files/internal/printable.h>
#include <millrace/tensor/error.h>

namespace millrace::layers {
namespace {

/// The first names of a file, for an error.
std::string names_of(const SafeTensors& file) {
  constexpr std::size_t most = 12;
  std::string text;
  for (std::size_t i = 0; i < file.tensors.size() && i < most; ++i)
    text += (i == 0 ? "" : ", ") + millrace::internal::printable(file.tensors[i].first);
  if (file.tensors.size() > most) text += " and " + std::to_string(file.tensors.size() - most) + " more";
  return text.empty() ? "none" : text;
}

std::optional<Tensor> perhaps(const SafeTensors& file, const std::string& name) {
  const Tensor* found = file.find(name);
  return found == nullptr ? std::nullopt : std::optional(*found);
}

Tensor needed(const SafeTensors& file, const std::string& name) {
  if (const Tensor* found = file.find(name)) return *found;
  throw ArgumentError("expected a tensor " + millrace::internal::printable(name) + ", found " + names_of(file));
}

/// The weights that `make` gives of NAME_0_, NAME_1_, … as far as the file goes.
template <class Weights, class Make>
std::vector<Weights> each_of(const SafeTensors& file, const std::string& name, Make&& make) {
  std::vector<Weights> all;
  for (std::size_t k = 0; k == 0 || file.find(name + "_" + std::to_string(k) + "_input") != nullptr; ++k)
    all.push_back(make(name + "_" + std::to_string(k) + "_"));
  return all;
}

}  // namespace

std::vector<LstmWeights> load_lstm(const SafeTensors& file, const std::string& name) {
  return each_of<LstmWeights>(file, name, [&](const std::string& at) {
    return LstmWeights{needed(file, at + "input"), needed(file, at + "recurrent"), perhaps(file, at + "bias"),
                       perhaps(file, at + "peepholes"), perhaps(file, at + "projection")};
  });
}

std::vector<GruWeights> load_gru(const SafeTensors& file, const std::string& name) {
  return each_of<GruWeights>(file, name, [&](const std::string& at) {
    return GruWeights{needed(file, at + "input"), needed(file, at + "recurrent"), perhaps(file, at + "bias"),
                      perhaps(file, at + "recurrent_bias")};
  });
}

std::vector<RnnWeights> load_rnn(const SafeTensors& file, const std::string& name) {
  return each_of<RnnWeights>(file, name, [&](const std::string& at) {
    return RnnWeights{needed(file, at + "input"), needed(file, at + "recurrent"), perhaps(file, at + "bias")};
  });
}

LinearWeights load_linear(const SafeTensors& file, const std::string& name) {
  return {needed(file, name + "_weight"), perhaps(file, name + "_bias")};
}

Conv1dWeights load_conv1d(const SafeTensors& file, const std::string& name) {
  return {needed(file, name + "_weight"), perhaps(file, name + "_bias")};
}

LayerNormWeights load_layer_norm(const SafeTensors& file, const std::string& name) {
  return {needed(file, name + "_scale"), perhaps(file, name + "_bias")};
}

Tensor load_embedding(const SafeTensors& file, const std::string& name) { return needed(file, name + "_table"); }

}  // namespace millrace::layers
