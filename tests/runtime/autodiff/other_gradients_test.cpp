// SPDX-License-Identifier: Apache-2.0
// Gradients of layers beside those that tests/python/gradients_test.py writes for another library.
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/autodiff/append_backward.h>
#include <millrace/runtime/builder/losses.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/files/npz.h>
#include <millrace/runtime/layers/gru.h>
#include <millrace/runtime/layers/lstm.h>
#include <millrace/runtime/layers/rnn.h>

#include "support/program_runs.h"
#include "support/with_gradients.h"

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::build;

namespace {

/// Outputs of layers, and the last states of each layer and direction.
struct Net {
  Var y;
  std::vector<Var> h, c;
};

/// The layers over x.
Net build_net(const NpzTensors& tensors, const std::string& title, const Var& x) {
  const auto direction = title.find("bidirectional") != std::string::npos ? layers::Direction::bidirectional : layers::Direction::forward;
  std::vector<layers::LstmWeights> lstm;
  std::vector<layers::GruWeights> gru;
  std::vector<layers::RnnWeights> rnn;
  for (int k = 0; tensors.contains("weight_ih." + std::to_string(k)); ++k) {
    const auto at = [&](const std::string& name) { return tensors.at(name + "." + std::to_string(k)); };
    std::optional<Tensor> projection;
    if (tensors.contains("weight_hr." + std::to_string(k))) projection = at("weight_hr");
    if (title.find("lstm") != std::string::npos)
      lstm.push_back(layers::lstm_from_pytorch(at("weight_ih"), at("weight_hh"), at("bias_ih"), at("bias_hh"), projection));
    else if (title.find("gru") != std::string::npos)
      gru.push_back(layers::gru_from_pytorch(at("weight_ih"), at("weight_hh"), at("bias_ih"), at("bias_hh")));
    else
      rnn.push_back(layers::rnn_from_pytorch(at("weight_ih"), at("weight_hh"), at("bias_ih"), at("bias_hh")));
  }
  if (!lstm.empty()) {
    layers::LstmOptions options;
    options.direction = direction;
    const layers::LstmResult made = layers::lstm({x}, lstm, options);
    return {made.y, made.h, made.c};
  }
  if (!gru.empty()) {
    layers::GruOptions options;
    options.direction = direction;
    if (title.find("before") != std::string::npos) options.reset = layers::GruReset::before;
    const layers::GruResult made = layers::gru({x}, gru, options);
    return {made.y, made.h, {}};
  }
  layers::RnnOptions options;
  options.direction = direction;
  const layers::RnnResult made = layers::rnn({x}, rnn, options);
  return {made.y, made.h, {}};
}

/// Element [i, j] of a gradient of ours is element [j, i] of torch's.
std::vector<float> transposed(const Tensor& x) {
  if (x.rank() < 2) return x.to_vector<float>();
  const std::vector<float> values = x.to_vector<float>();
  const auto rows = static_cast<std::size_t>(x.dim(0));
  const auto columns = static_cast<std::size_t>(x.dim(1));
  std::vector<float> made(values.size());
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < columns; ++j) made[j * rows + i] = values[i * columns + j];
  return made;
}

void expect_near(const std::string& name, const std::vector<float>& found, const std::vector<float>& wanted) {
  INFO(name);
  REQUIRE(found.size() == wanted.size());
  double greatest = 1e-3;
  for (const float each : wanted) greatest = std::max(greatest, std::abs(static_cast<double>(each)));
  for (std::size_t i = 0; i < found.size(); ++i)
    CHECK(std::abs(static_cast<double>(found[i]) - static_cast<double>(wanted[i])) <= 1e-5 * greatest);
}

LoD lod_of(const NpzTensors& tensors, const std::string& lengths) {
  return LoD::from_lengths({tensors.at(lengths).to_vector<std::int64_t>()});
}

Var input_like(const NpzTensors& tensors, Feeds& feeds, const std::string& name) {
  feeds.emplace(name, tensors.at(name));
  return input(name, VarType(DType::f32, tensors.at(name).dims()));
}

/// Σ y·dy, and the same of the last states.
Var sums_loss(const NpzTensors& tensors, Feeds& feeds, const Net& net) {
  Var loss = sum(net.y * input_like(tensors, feeds, "dy"));
  for (const auto& [name, states] : {std::pair{"dh.", net.h}, std::pair{"dc.", net.c}})
    for (std::size_t k = 0; k < states.size(); ++k) loss = loss + sum(states[k] * input_like(tensors, feeds, name + std::to_string(k)));
  return loss;
}

/// CTC's loss of a product of y.
Var ctc_loss_of(const NpzTensors& tensors, Feeds& feeds, const std::string& title, const Var& y) {
  const Var labels = input("labels", VarType(DType::i64, {DDim::unknown}, 1));
  feeds.emplace("labels", LoDTensor(tensors.at("labels"), lod_of(tensors, "label_lens")));
  const Var said = log_softmax(matmul(y, parameter("product", tensors.at("weight"))));
  return mean_ctc_loss(said, labels, 0, title.find("zero") != std::string::npos);
}

/// The gradients d_KIND_K_NAME of `found` are those of torch, which has several of them in one tensor. Gives how many there are.
int expect_weights(const RunResult& found, const NpzTensors& tensors) {
  const std::map<std::string, std::string> names{{"input", "weight_ih"},
                                                 {"recurrent", "weight_hh"},
                                                 {"bias", "bias_ih"},
                                                 {"recurrent_bias", "bias_hh"},
                                                 {"projection", "weight_hr"},
                                                 {"recurrent_gates", "weight_hh"},
                                                 {"recurrent_gates_bias", "bias_hh"},
                                                 {"recurrent_candidate", "weight_hh"},
                                                 {"recurrent_candidate_bias", "bias_hh"}};
  int compared = 0;
  for (const auto& [name, value] : found.outputs()) {
    // d_lstm_0_recurrent_bias
    const std::size_t begin = name.find('_', 2);
    if (name.rfind("d_", 0) != 0 || begin == std::string::npos) continue;
    const std::size_t end = name.find('_', begin + 1);
    INFO(name);
    const auto known = names.find(name.substr(end + 1));
    REQUIRE(known != names.end());
    // Gates r z of a GRU stand before its candidate n.
    const std::vector<float> mine = transposed(value.tensor().tensor());
    std::vector<float> theirs = tensors.at("want_" + known->second + "." + name.substr(begin + 1, end - begin - 1)).to_vector<float>();
    REQUIRE(mine.size() <= theirs.size());
    if (name.find("candidate") != std::string::npos) theirs.erase(theirs.begin(), theirs.end() - static_cast<std::ptrdiff_t>(mine.size()));
    if (name.find("gates") != std::string::npos) theirs.resize(mine.size());
    expect_near(name, mine, theirs);
    ++compared;
  }
  return compared;
}

void check_case(const std::filesystem::path& path) {
  const std::string title = path.filename().string();
  INFO("case ", title);
  const NpzTensors tensors = read_npz(path);
  const bool ctc = title.find("ctc") != std::string::npos;
  Program program;
  BackwardOptions options;
  VarId loss = no_var;
  Feeds feeds{{"x", LoDTensor(tensors.at("x"), lod_of(tensors, "lens"))}};
  {
    const Guard guard(program);
    const Var x = input("x", VarType(DType::f32, {DDim::unknown, tensors.at("x").dim(1)}, 1));
    Net net = build_net(tensors, title, x);
    const Var ragged = std::exchange(net.y, drop_lod(net.y));
    const Var total = ctc ? ctc_loss_of(tensors, feeds, title, ragged) : sums_loss(tensors, feeds, net);
    output("loss", total);
    if (!ctc) output("y", net.y);
    loss = total.id();
    options.with_respect_to.push_back(x.id());
  }
  for (const auto& [var, value] : program.parameters()) options.with_respect_to.push_back(var);
  with_gradients(program, loss, options);
  const RunResult found = on_cpu(program, feeds);
  CHECK(found.iteration_by_iteration.empty());
  for (const auto& [ours, theirs] : {std::pair{"y", "want_y"}, {"loss", "want_loss"}, {"d_x", "want_x"}, {"d_product", "want_weight"}})
    if (tensors.contains(theirs)) expect_near(ours, found[ours].tensor().to_vector<float>(), tensors.at(theirs).to_vector<float>());
  CHECK(expect_weights(found, tensors) >= 3);
}

TEST_CASE("gradients of layers are those that another library found") {
  const char* folder = std::getenv("MILLRACE_GRADIENT_CASES");
  if (folder == nullptr) return;
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    check_case(entry.path());
    ++count;
  }
  CHECK(count > 0);
  MESSAGE(count, " cases");
}

}  // namespace
