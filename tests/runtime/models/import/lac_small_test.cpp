// SPDX-License-Identifier: Apache-2.0
// The parameters of a real Fluid network, LAC-small of Debian's python3-jieba, through the plainest form of that network
// in f64, and through the CRF of this library.
#include <millrace/kernels/crf.h>
#include <millrace/runtime/models/import/fluid.h>

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

#include <millrace/tensor/device.h>
#include <reference/reference.h>

namespace millrace {
namespace {

namespace fs = std::filesystem;
using reference::Values;

const fs::path folder = "/usr/lib/python3/dist-packages/jieba/lac_small";
constexpr std::int64_t hidden = 128;

/// Lines of "number<TAB>text", by text or by number.
std::map<std::string, std::int64_t> numbers_of(const fs::path& path) {
  std::map<std::string, std::int64_t> numbers;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t tab = line.find('\t');
    if (tab != std::string::npos) numbers[line.substr(tab + 1)] = std::stoll(line.substr(0, tab));
  }
  return numbers;
}

std::vector<std::string> characters(const std::string& utf8) {
  std::vector<std::string> all;
  for (const char byte : utf8) {
    if ((byte & 0xc0) != 0x80) all.emplace_back();
    all.back() += byte;
  }
  return all;
}

Values parameter(const std::string& name) { return reference::values(read_fluid_tensor(folder / "model_baseline" / name).tensor()); }

/// Elements [begin, begin + rows·columns) as a matrix.
Values piece(const Values& from, std::int64_t begin, std::int64_t rows, std::int64_t columns) {
  return {DDim{rows, columns}, {from.at.begin() + begin, from.at.begin() + begin + rows * columns}};
}

Values row(const Values& from, std::int64_t at) { return piece(from, at * from.dims[1], 1, from.dims[1]); }

Values linear(const Values& x, const std::string& name) {
  const auto add = [](double a, double b) { return a + b; };
  return reference::map(add, reference::matmul(x, parameter(name + ".w_0")), parameter(name + ".b_0"));
}

/// dynamic_gru: gates u r c, the weight [H, 2H] of u and r and behind it [H, H] of c; the reset comes before the matmul.
Values gru(const Values& x, const std::string& name, bool reverse) {
  const Values weight = parameter(name + ".w_0"), bias = parameter(name + ".b_0");
  const Values of_gates = piece(weight, 0, hidden, 2 * hidden), of_candidate = piece(weight, 2 * hidden * hidden, hidden, hidden);
  const auto sigmoid = [](double a) { return 1 / (1 + std::exp(-a)); };
  Values h{DDim{1, hidden}, std::vector<double>(hidden, 0)}, out{DDim{x.dims[0], hidden}, {}};
  out.at.resize(static_cast<std::size_t>(x.dims[0] * hidden));
  for (std::int64_t t = 0; t < x.dims[0]; ++t) {
    const std::int64_t at = reverse ? x.dims[0] - 1 - t : t;
    const Values input = reference::map([](double a, double b) { return a + b; }, row(x, at), bias);
    const Values recurrent = reference::matmul(h, of_gates);
    Values reset = h, update = h;
    for (std::size_t i = 0; i < hidden; ++i) {
      update.at[i] = sigmoid(input.at[i] + recurrent.at[i]);
      reset.at[i] *= sigmoid(input.at[hidden + i] + recurrent.at[hidden + i]);
    }
    const Values candidate = reference::matmul(reset, of_candidate);
    for (std::size_t i = 0; i < hidden; ++i)
      h.at[i] = (1 - update.at[i]) * h.at[i] + update.at[i] * std::tanh(input.at[2 * hidden + i] + candidate.at[i]);
    std::copy(h.at.begin(), h.at.end(), out.at.begin() + at * hidden);
  }
  return out;
}

Values beside(const Values& a, const Values& b) {
  Values out{DDim{a.dims[0], a.dims[1] + b.dims[1]}, {}};
  for (std::int64_t t = 0; t < a.dims[0]; ++t)
    for (const Values& half : {row(a, t), row(b, t)}) out.at.insert(out.at.end(), half.at.begin(), half.at.end());
  return out;
}

Values emissions(const std::vector<std::string>& text) {
  const auto words = numbers_of(folder / "word.dic");
  const Values table = parameter("word_emb");
  Values x{DDim{static_cast<std::int64_t>(text.size()), table.dims[1]}, {}};
  for (const std::string& character : text) {
    const auto known = words.find(character);
    const Values embedded = row(table, known == words.end() ? words.at("OOV") : known->second);
    x.at.insert(x.at.end(), embedded.at.begin(), embedded.at.end());
  }
  for (const int layer : {0, 2}) {
    const std::string forward = std::to_string(layer), backward = std::to_string(layer + 1);
    x = beside(gru(linear(x, "fc_" + forward), "gru_" + forward, false), gru(linear(x, "fc_" + backward), "gru_" + backward, true));
  }
  return linear(x, "fc_4");
}

/// "我/r 爱/v": a word ends before a tag that ends with -B, and before the first O of a run of them.
std::string tagged(const std::vector<std::string>& text, const std::vector<std::int64_t>& path) {
  std::map<std::int64_t, std::string> names;
  for (const auto& [name, number] : numbers_of(folder / "tag.dic")) names[number] = name;
  std::string out, kind;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::string& tag = names.at(path[i]);
    if (i == 0 || tag.ends_with("-B") || (tag == "O" && names.at(path[i - 1]) != "O")) {
      if (i > 0) out += "/" + kind + " ";
      kind = tag.substr(0, tag.find('-'));
    }
    out += text[i];
  }
  return out + "/" + kind;
}

TEST_CASE("LAC-small tags its two sentences, with the scores that Fluid gives, alone and in one ragged batch") {
  if (!fs::exists(folder / "model_baseline")) {
    MESSAGE("skipped: Debian's python3-jieba is not installed");
    return;
  }
  const std::vector<std::string> sentences[] = {characters("我爱北京天安门"), characters("李小福是创新办主任也是云计算方面的专家")};
  const double scores[] = {51.639, 168.876};
  const char* begins[] = {"我/r 爱/v 北京/LOC 天安门/LOC", "李小福/PER "};
  CpuDevice device(2);
  const Tensor weights = read_fluid_tensor(folder / "model_baseline" / "crfw").tensor();
  Values both{DDim{0, weights.dim(1)}, {}};
  for (int i = 0; i < 2; ++i) {
    const Values e = emissions(sentences[i]);
    const Tensor rows = reference::tensor(e, DType::f32);
    const CrfPath best = crf_viterbi(rows, weights, LoD::from_lengths({{rows.dim(0)}}), device.stream(0));
    CHECK(tagged(sentences[i], best.tags.to_vector<std::int64_t>()).starts_with(begins[i]));
    CHECK(std::abs(best.scores.item() - scores[i]) < 1e-3);
    both.dims[0] += rows.dim(0);
    both.at.insert(both.at.end(), e.at.begin(), e.at.end());
  }
  const LoD lod = LoD::from_lengths({{7, both.dims[0] - 7}});
  const CrfPath together = crf_viterbi(reference::tensor(both, DType::f32), weights, lod, device.stream(0));
  CHECK(std::abs(together.scores[DDim{0, 0}] - scores[0]) < 1e-3);
  CHECK(std::abs(together.scores[DDim{1, 0}] - scores[1]) < 1e-3);
}

}  // namespace
}  // namespace millrace
