// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include <lac_tagger/library/line_reader.h>
#include <lac_tagger/library/tagger.h>
#include <lac_tagger/library/text.h>
#include <millrace/runtime/program/storage.h>
#include <support/command_line.h>

namespace {

using namespace millrace;

const std::string name = "lac_tagger";

struct Flags {
  std::string model = lac::default_folder().string();
  std::size_t batch = 256;
  std::size_t threads = 1;
  bool score = false;
  std::string save_live;
};

lac::Model read_model(const Flags& flags) {
  if (!std::filesystem::exists(std::filesystem::path(flags.model) / "model_baseline"))
    throw IoError(
        fmt::format("{}: expected word.dic, tag.dic and model_baseline of LAC-small, as Debian's python3-jieba has them in {}, found none",
                    flags.model, lac::default_folder().string()));
  return lac::read_model(flags.model);
}

/// The forward half as a program for `millrace serve`.
int save_live(const Flags& flags) {
  const std::filesystem::path folder(flags.save_live);
  std::filesystem::create_directories(folder);
  save_program(lac::live_program(read_model(flags)), folder / "lac_forward.mr");
  return 0;
}

int tag(const Flags& flags) {
  lac::Tagger tagger(read_model(flags), flags.threads);
  lac::LineReader reader(STDIN_FILENO);
  std::size_t line = 0;
  while (true) {
    const std::vector<std::string> lines = reader.next(flags.batch);
    if (lines.empty()) return 0;
    std::vector<std::vector<std::string>> sentences;
    for (const std::string& text : lines) {
      ++line;
      lac::Characters characters = lac::characters_of(text);
      if (characters.broken_at)
        app::complain(
            name, fmt::format("line {}: expected UTF-8, found something else at byte {}: shown as U+FFFD", line, *characters.broken_at));
      sentences.push_back(std::move(characters.all));
    }
    for (const lac::Tagged& sentence : tagger.tag(sentences))
      fmt::print("{}{}\n", sentence.to_string(), flags.score && !sentence.words.empty() ? fmt::format("\t{:.3f}", sentence.score) : "");
    if (app::flushed(name, 0) != 0) return app::failed;
  }
}

void add_flags(CLI::App& command, Flags& flags) {
  command.add_option("--model", flags.model, "The folder of LAC-small: word.dic, tag.dic, model_baseline/")->capture_default_str();
  command.add_option("--batch", flags.batch, "Sentences of one ragged batch, at most; results do not depend on it")
      ->check(CLI::Range(std::size_t{1}, std::size_t{1} << 20))
      ->capture_default_str();
  command.add_option("--threads", flags.threads, "Threads that a kernel may use; results do not depend on it")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command.add_option(
      "--save-live", flags.save_live,
      "Reads no sentence, but writes the forward half for 'millrace serve' into this folder: lac_forward.mr and its weights");
  command.add_flag("--score", flags.score, "Behind each sentence a tab and the score of its best path");
}

}  // namespace

int main(int argc, char** argv) {
  app::hold_standard_streams();
  CLI::App command("Words and their kinds: reads a Chinese sentence a line from stdin, prints 'word/kind word/kind …' a line.", name);
  command.set_version_flag("--version", name + " " MILLRACE_VERSION);
  command.footer(
      "White space around a sentence goes away, and an empty line stays one. What is no UTF-8 is shown as U+FFFD, and named on stderr.\n"
      "Exit codes: 0, 1 (failed), 2 (bad usage).");
  Flags flags;
  add_flags(command, flags);
  return app::framed_behind_flags(command, name, argc, argv, [&] { return flags.save_live.empty() ? tag(flags) : save_live(flags); });
}
