// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <vector>

#include <unistd.h>

#include "commands.h"

namespace millrace::app {
namespace {

/// This process becomes millrace-bench, which lies beside it: a program of its own, so that the command is not linked with the peers.
int bench(const std::vector<std::string>& words) {
  const std::string program = (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "millrace-bench").string();
  std::vector<char*> arguments{const_cast<char*>(program.c_str())};
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  ::execv(program.c_str(), arguments.data());
  throw IoError(program + ": cannot start: " + std::strerror(errno));
}

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("bench", "Measures speed beside peers: bench cpu, and bench cpu --help");
  command->prefix_command();
  command->callback([command, &action] { action = [words = command->remaining()] { return bench(words); }; });
}

}  // namespace millrace::app
