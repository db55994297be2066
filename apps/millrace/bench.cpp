// SPDX-License-Identifier: Apache-2.0
#include <support/become.h>

#include "commands.h"

namespace millrace::app {

void add_bench(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("bench", "Measures speed beside peers: bench cpu, bench gpu, and either with --help");
  command->prefix_command();
  // A program of its own, so that the command is not linked with the peers.
  command->callback([command, &action] { action = [words = command->remaining()]() -> int { become("millrace-bench", words); }; });
}

}  // namespace millrace::app
