// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <future>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <boost/asio/use_future.hpp>

#include <millrace/kernels/sample.h>
#include <millrace/runtime/files/npy.h>
#include <millrace/runtime/models/import/model.h>
#include <millrace/runtime/runtime.h>
#include <millrace/streaming/live/live_model.h>
#include <millrace/tensor/cpu_stream.h>

#include "commands.h"
#include "model_flags.h"

namespace millrace::app {
namespace {

namespace fs = std::filesystem;
constexpr auto use_future = boost::asio::use_future;

struct SampleFlags {
  std::string model;
  std::string alphabet;
  std::optional<std::string> prompt;
  std::int64_t length = 500;
  SampleOptions options{1, 1.0, 0};
};

/// The bytes that a model has numbers for, and the numbers of bytes.
class Alphabet {
 public:
  explicit Alphabet(const fs::path& path) : source_(path.string()) {
    const Tensor bytes = read_npy(path);
    if (bytes.dtype() != DType::u8 || bytes.rank() != 1 || bytes.dim(0) < 1)
      throw ShapeError(source_ + ": expected u8 [K], a byte for each class, found " + bytes.to_string());
    number_.fill(-1);
    for (const std::uint8_t byte : bytes.to_vector<std::uint8_t>()) {
      number_[byte] = std::ssize(bytes_);
      bytes_ += static_cast<char>(byte);
    }
  }
  std::int64_t size() const { return std::ssize(bytes_); }
  char byte(std::int64_t number) const { return bytes_.at(static_cast<std::size_t>(number)); }
  /// The beginning of a text without a prompt: a new line, or the first byte of an alphabet that has none.
  std::string beginning() const { return number_['\n'] >= 0 ? "\n" : bytes_.substr(0, 1); }
  std::vector<std::int64_t> numbers(const std::string& text) const {
    std::vector<std::int64_t> made;
    for (std::size_t i = 0; i < text.size(); ++i) {
      made.push_back(number_[static_cast<unsigned char>(text[i])]);
      if (made.back() < 0)
        throw ArgumentError(
            fmt::format("--prompt, byte {}: expected a byte of {}, found {}", i, source_, static_cast<unsigned char>(text[i])));
    }
    return made;
  }

 private:
  std::string source_;
  std::string bytes_;
  std::array<std::int64_t, 256> number_{};
};

/// A model that reads a row of numbers and says scores of the next one.
class Writer {
 public:
  Writer(const std::string& path, std::int64_t classes) : model_(runtime_, load_model(path)), classes_(classes) {
    const Recurrence& found = model_.recurrence();
    if (found.inputs.size() != 1 || found.inputs[0].dtype != DType::i64 || found.inputs[0].dims.elements() != 1)
      throw ArgumentError(path + ": expected one input, the number of a byte, found another");
    session_ = model_.async_open({}, use_future).get();
  }

  /// Reads numbers, at least one. Scores [1, K] of the one behind them.
  Tensor read(const std::vector<std::int64_t>& numbers) {
    session_.async_push(LoDTensor(Tensor::from(numbers, {std::ssize(numbers)})), use_future).get();
    std::int64_t missing = std::ssize(numbers);
    Tensor last;
    while (missing > 0) {
      const std::optional<LiveRows> rows = session_.async_next(use_future).get();
      const auto scores = rows ? rows->find("scores") : LiveRows::const_iterator();
      if (!rows || scores == rows->end()) throw ArgumentError("sample: expected an output 'scores' of the model, found none");
      const Tensor& found = scores->second.tensor();
      if (found.rank() != 2 || found.dim(1) != classes_)
        throw ShapeError(fmt::format("sample: expected scores of the {} bytes of the alphabet, found {}", classes_, found.to_string()));
      missing -= found.dim(0);
      last = found.rows(found.dim(0) - 1, found.dim(0));
    }
    return last;
  }

 private:
  Runtime runtime_;
  LiveModel model_;
  std::int64_t classes_;
  LiveSession session_;
};

int sample(const SampleFlags& flags) {
  const fs::path model = fs::is_directory(flags.model) ? fs::path(flags.model) / "live.mr" : fs::path(flags.model);
  if (!fs::exists(model)) throw IoError(model.string() + ": cannot open: No such file or directory");
  const fs::path beside = model.parent_path() / "alphabet.npy";
  const Alphabet alphabet(flags.alphabet.empty() ? beside : fs::path(flags.alphabet));
  const std::string begun = flags.prompt.value_or(alphabet.beginning());
  if (begun.empty()) throw UsageError("--prompt: expected at least one byte, found none");
  const std::vector<std::int64_t> prompt = alphabet.numbers(begun);
  naming(model.string(), [&] {
    Writer writer(model.string(), alphabet.size());
    CpuStream stream(std::make_shared<ThreadTeam>(1));
    fmt::print("{}", begun);
    Tensor scores = writer.read(prompt);
    const Tensor key = Tensor::from<std::int64_t>({0});
    for (std::int64_t step = 0; step < flags.length; ++step) {
      const Sampled drawn = sample_tokens(scores, key, Tensor::from<std::int64_t>({step}), flags.options, stream);
      const auto number = drawn.tokens.to_vector<std::int64_t>().at(0);
      std::putchar(alphabet.byte(number));
      std::fflush(stdout);
      if (step + 1 < flags.length) scores = writer.read({number});
    }
    std::putchar('\n');
  });
  return 0;
}

}  // namespace

void add_sample(CLI::App& app, Action& action) {
  const auto flags = std::make_shared<SampleFlags>();
  CLI::App* command = app.add_subcommand("sample", "Writes a text by a language model of bytes that millrace train has trained");
  command->add_option("MODEL", flags->model, "The folder of a job, or its live.mr, model.mr or model.onnx")->required();
  command->add_option("--prompt", flags->prompt,
                      "What the text begins with; default: a new line, or the first byte of an alphabet that has none");
  command->add_option("--length", flags->length, "Bytes behind the prompt")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40))
      ->capture_default_str();
  command
      ->add_option("--temperature", flags->options.temperature,
                   "Scores are divided by it before a byte is drawn: less than 1 for likelier texts")
      ->check(within(1e-6, 1e6))
      ->capture_default_str();
  command->add_option("--top-k", flags->options.top, "Only so many of the likeliest bytes are drawn from; 0: all; 1: always the likeliest")
      ->check(CLI::Range(0, 256))
      ->capture_default_str();
  command->add_option("--seed", flags->options.seed, "The same seed, model and prompt give the same text")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{2147483647}))
      ->capture_default_str();
  command->add_option("--alphabet", flags->alphabet, "u8 [K], the byte of each class; default: alphabet.npy beside the model");
  command->callback([flags, &action] { action = [flags] { return sample(*flags); }; });
}

}  // namespace millrace::app
