// SPDX-License-Identifier: Apache-2.0
#include <lac_tagger/library/model.h>

#include <charconv>
#include <string_view>

#include <fmt/format.h>

#include <millrace/runtime/builder/decoding.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/files/file.h>
#include <millrace/runtime/layers/embedding.h>
#include <millrace/runtime/models/import/fluid.h>

namespace millrace::lac {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t most_dictionary = std::uint64_t{64} << 20;

/// "number<TAB>text" in each line, no text twice.
std::map<std::string, std::int64_t> read_dictionary(const fs::path& path) {
  const std::string text = read_file(path, most_dictionary);
  std::map<std::string, std::int64_t> made;
  std::size_t line = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view entry(text.data() + at, end - at);
    at = end + 1;
    ++line;
    const std::size_t tab = std::min(entry.find('\t'), entry.size());
    std::int64_t number = -1;
    const auto [stop, error] = std::from_chars(entry.data(), entry.data() + tab, number);
    if (error != std::errc() || stop != entry.data() + tab || number < 0 || tab + 1 >= entry.size())
      throw ParseError(fmt::format("{}:{}: expected a number from 0, a tab and a text, found {} bytes that are not so", path.string(), line,
                                   entry.size()));
    if (!made.emplace(std::string(entry.substr(tab + 1)), number).second)
      throw ParseError(fmt::format("{}:{}: expected each text once, found the one of number {} again", path.string(), line, number));
  }
  return made;
}

/// Parameters of one folder, whose extents must be as they are asked for; −1: any.
class Parameters {
 public:
  explicit Parameters(fs::path folder) : folder_(std::move(folder)) {}

  Tensor read(const std::string& name, const DDim& wanted) const {
    const fs::path path = folder_ / name;
    const Tensor made = read_fluid_tensor(path).tensor();
    bool fits = made.dtype() == DType::f32 && made.rank() == wanted.rank();
    for (int axis = 0; fits && axis < wanted.rank(); ++axis) fits = wanted[axis] < 0 || made.dim(axis) == wanted[axis];
    if (!fits) throw ShapeError(fmt::format("{}: expected f32{}, found {}", path.string(), wanted.to_string(), made.to_string()));
    return made;
  }
  /// A bias: [n], or [1, n] as dynamic_gru has it.
  Tensor bias(const std::string& name, const DDim& wanted) const { return read(name, wanted).reshape({wanted[wanted.rank() - 1]}); }

 private:
  fs::path folder_;
};

Tensor sum(const Tensor& a, const Tensor& b) {
  std::vector<float> values = a.to_vector<float>();
  const std::vector<float> others = b.to_vector<float>();
  for (std::size_t i = 0; i < values.size(); ++i) values[i] += others[i];
  return Tensor::from(values, a.dims());
}

std::vector<std::string> tags_of(const fs::path& path) {
  const std::map<std::string, std::int64_t> numbers = read_dictionary(path);
  std::vector<std::string> tags(numbers.size());
  for (const auto& [tag, number] : numbers) {
    if (number >= static_cast<std::int64_t>(tags.size()) || !tags[static_cast<std::size_t>(number)].empty())
      throw ParseError(
          fmt::format("{}: expected the numbers 0 to {}, each once, found {} of '{}'", path.string(), tags.size() - 1, number, tag));
    tags[static_cast<std::size_t>(number)] = tag;
  }
  if (tags.empty()) throw ParseError(path.string() + ": expected tags, found none");
  return tags;
}

}  // namespace

fs::path default_folder() { return "/usr/lib/python3/dist-packages/jieba/lac_small"; }

Model read_model(const fs::path& folder) {
  Model model;
  model.ids = read_dictionary(folder / "word.dic");
  model.tags = tags_of(folder / "tag.dic");
  const Parameters parameters(folder / "model_baseline");
  const auto classes = static_cast<std::int64_t>(model.tags.size());
  model.embedding = parameters.read("word_emb", {-1, -1});
  for (const auto& [text, id] : model.ids)
    if (id >= model.embedding.dim(0))
      throw ParseError(fmt::format("{}: expected numbers below {}, the rows of word_emb, found {}", (folder / "word.dic").string(),
                                   model.embedding.dim(0), id));
  const auto unknown = model.ids.find("OOV");
  if (unknown == model.ids.end()) throw ParseError((folder / "word.dic").string() + ": expected the word OOV, found none");
  model.unknown = unknown->second;
  const Tensor output = parameters.read("fc_4.w_0", {-1, classes});
  const std::int64_t hidden = output.dim(0) / 2;
  for (std::size_t k = 0; k < 2 * layers_of_model; ++k) {
    const std::int64_t inputs = k < 2 ? model.embedding.dim(1) : 2 * hidden;
    const std::string fc = fmt::format("fc_{}", k), gru = fmt::format("gru_{}", k);
    const Tensor projection = parameters.read(fc + ".w_0", {inputs, 3 * hidden});
    const Tensor weight = parameters.read(gru + ".w_0", {hidden, 3 * hidden});
    const Tensor bias = sum(parameters.bias(fc + ".b_0", {3 * hidden}), parameters.bias(gru + ".b_0", {1, 3 * hidden}));
    model.gru.push_back(layers::gru_from_fluid(projection, weight, bias));
  }
  model.emission = {output, parameters.read("fc_4.b_0", {classes})};
  model.transition = parameters.read("crfw", {classes + 2, classes});
  return model;
}

namespace {

layers::GruOptions fluid_gru(const std::string& name, layers::Direction direction) {
  return {.direction = direction, .reset = layers::GruReset::before, .keeps = layers::GruKeeps::complement, .name = name};
}

}  // namespace

Program tagging_program(const Model& model) {
  Program program;
  program.set_title("LAC-small");
  const build::Guard guard(program);
  const build::Var words = build::input("words", VarType(DType::i64, {DDim::unknown, 1}, 1));
  const build::Var x = layers::embedding(words, model.embedding, {}, "word_emb");
  const build::Var h = layers::gru(x, model.gru, fluid_gru("gru", layers::Direction::bidirectional)).y;
  const build::CrfDecoded best =
      build::crf_decoding(layers::linear(h, model.emission, "emission"), build::parameter("crf", model.transition));
  build::output("path", best.path);
  build::output("score", best.score);
  return program;
}

Program live_program(const Model& model) {
  Program program;
  program.set_title("LAC-small, forward");
  const build::Guard guard(program);
  const std::int64_t classes = model.emission.weight.dim(1);
  const build::Var words = build::input("words", VarType(DType::i64, {DDim::unknown, 1}, 2));
  const build::Var prior = build::input("prior", VarType(DType::f32, {DDim::unknown, classes}, 2));
  build::Var h = layers::embedding(words, model.embedding, {}, "word_emb");
  for (std::size_t layer = 0; layer < layers_of_model; ++layer) {
    layers::GruWeights weights = model.gru[2 * layer];
    const std::int64_t hidden = weights.recurrent.dim(0);
    // Behind the first layer, the first rows are those of the forward direction.
    if (layer > 0) weights.input = weights.input.rows(0, hidden);
    h = layers::gru(h, {weights}, fluid_gru("gru_" + std::to_string(layer), layers::Direction::forward)).y;
  }
  const layers::LinearWeights emission{model.emission.weight.rows(0, model.emission.weight.dim(0) / 2), model.emission.bias};
  build::output("emission", layers::linear(h, emission, "emission") + prior);
  return program;
}

}  // namespace millrace::lac
