// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <CLI/App.hpp>

namespace millrace::app {

/// Options of a command from elsewhere than its command line: --a-flag is `MILLRACE_COMMAND_A_FLAG` in the environment, and `a-flag = …` in the TOML
/// file of --settings. The command line counts first, then the environment, then the file.
class Settings {
 public:
  /// Adds --settings and --print-config. The last call on `command` before its callback is set: what is required may come from elsewhere.
  void add_to(CLI::App& command);
  /// To be called first in the command's callback. CLI::ParseError for a file that cannot be read, a key that is no flag, a value that does not
  /// fit, and what is required and stands nowhere.
  void apply();
  /// --print-config: the command says its settings, as a file for --settings, in place of what it does.
  bool prints() const { return prints_; }
  std::string text() const;

 private:
  void apply_environment();
  void apply_file();

  CLI::App* command_ = nullptr;
  std::vector<CLI::Option*> required_;
  std::string file_;
  bool prints_ = false;
};

}  // namespace millrace::app
