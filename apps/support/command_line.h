// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include <support/main_frame.h>

namespace millrace::app {

/// Adds the checks that every option has before its own: its text is not empty, and a whole number has decimal digits without a zero in front, which CLI11
/// would read as octal.
inline void check_values(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) {
    if (option->get_items_expected_max() == 0) continue;
    const std::string type = option->get_type_name();
    const bool whole = type.starts_with("UINT") || type.starts_with("INT");
    const auto wrong = [whole](const std::string& text) -> std::string {
      if (text.empty()) return "expected a value, found none";
      const std::size_t digits = text[0] == '-' || text[0] == '+' ? 1 : 0;
      if (whole && text.size() > digits + 1 && text[digits] == '0') return "expected a decimal number, found '" + text + "'";
      return {};
    };
    option->transform(CLI::Validator(wrong, ""));  // in front of the others, which `check` is behind
  }
  for (CLI::App* below : command.get_subcommands({})) check_values(*below);
}

/// The frame of a main behind the flags that `command` knows: --help and --version end the program, what is no flag is bad usage, and then
/// `body` runs.
template <class UsageError = NoUsageError, class Body>
int framed_behind_flags(CLI::App& command, const std::string& program, int count, char** arguments, Body&& body) {
  return framed<UsageError>(program, [&] {
    try {
      check_values(command);
      command.parse(count, arguments);
    } catch (const CLI::ParseError& error) {
      if (error.get_exit_code() == 0) return flushed(program, command.exit(error));  // --help, --version
      // CLI11 looks for what is missing first, but a wrong flag explains why something is.
      for (const std::string& word : command.remaining(true)) {
        if (!word.starts_with("-") || error.get_exit_code() != static_cast<int>(CLI::ExitCodes::RequiredError)) continue;
        complain(program, "The following argument was not expected: " + word + " (--help explains)");
        return bad_usage;
      }
      complain(program, std::string(error.what()) + " (--help explains)");
      return bad_usage;
    }
    return static_cast<int>(body());
  });
}

}  // namespace millrace::app
