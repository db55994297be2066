// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <CLI/App.hpp>

#include "settings_file.h"

namespace millrace::app {

/// Options of a command from elsewhere than its command line: --a-flag is `MILLRACE_COMMAND_A_FLAG` in the environment, and `a-flag = …` in the TOML
/// file of --settings. Each long name of a flag counts. The command line counts first, then the environment, then the file. An empty value is an
/// error, of a flag too, and so is a variable MILLRACE_COMMAND_… of no flag.
class Settings {
 public:
  /// Adds --settings and --print-config. The last call on `command` before its callback is set: what is required may come from elsewhere.
  void add_to(CLI::App& command);
  /// A table [KIND.NAME] of the file has values for the options of `options_of(NAME)`; `--print-config` ends with `text`.
  void take_tables(std::string kind, std::function<CLI::App&(const std::string& name)> options_of, std::function<std::string()> text);
  /// To be called first in the command's callback. CLI::ParseError for a file that cannot be read, a variable or a key that is no flag, a value that
  /// does not fit, and what is required and stands nowhere. UnsupportedError for --settings in a build without the part toml.
  void apply();
  /// --print-config: the command says its settings, as a file for --settings, in place of what it does.
  bool prints() const { return prints_; }
  /// TOML. ArgumentError for a value that is no UTF-8.
  std::string text() const;

  /// The options of a command as such a file, without those that have no value and `without`.
  static std::string text_of(const CLI::App& command, const std::string& without = {});

 private:
  void apply_environment();
  void apply_file();

  CLI::App* command_ = nullptr;
  std::vector<CLI::Option*> required_;
  std::string file_;
  bool prints_ = false;
  std::string kind_;
  std::function<CLI::App&(const std::string& name)> options_of_;
  std::function<std::string()> tables_;
};

}  // namespace millrace::app
