// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include <support/main_frame.h>

namespace millrace::app {

/// The frame of a main behind the flags that `command` knows: --help and --version end the program, what is no flag is bad usage, and then
/// `body` runs.
template <class UsageError = NoUsageError, class Body>
int framed_behind_flags(CLI::App& command, const std::string& program, int count, char** arguments, Body&& body) {
  return framed<UsageError>(program, [&] {
    try {
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
