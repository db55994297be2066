// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <CLI/App.hpp>

namespace millrace::app {

/// Options of a command from elsewhere than its command line: --a-flag is `MILLRACE_COMMAND_A_FLAG` in the environment, and `a-flag = …` in the TOML
/// file of --settings. The command line counts first, then the environment, then the file. An empty value is an error, of a flag too.
class Settings {
 public:
  /// Adds --settings and --print-config. The last call on `command` before its callback is set: what is required may come from elsewhere.
  void add_to(CLI::App& command);
  /// Tables [KIND.NAME] of the file go to `take`, a key each, behind an item "++" where the table begins; `--print-config` ends with `text`.
  void take_tables(std::string kind, std::function<void(const std::string& name, const CLI::ConfigItem& item)> take,
                   std::function<std::string()> text);
  /// To be called first in the command's callback. CLI::ParseError for a file that cannot be read, a key that is no flag, a value that does not
  /// fit, and what is required and stands nowhere.
  void apply();
  /// --print-config: the command says its settings, as a file for --settings, in place of what it does.
  bool prints() const { return prints_; }
  std::string text() const;

  /// Gives an item of a file to the option of that name, unless it has a value; false: there is none.
  static bool give(CLI::App& command, const CLI::ConfigItem& item);
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
  std::function<void(const std::string& name, const CLI::ConfigItem& item)> take_table_;
  std::function<std::string()> tables_;
};

}  // namespace millrace::app
