// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include <fmt/format.h>

#include "commands.h"
#include "model_flags.h"

namespace millrace::app {
namespace {

struct InspectFlags {
  ModelFlags model;
  bool streaming = false;
};

void print_ports(const char* what, const Program& program, const std::vector<Program::Port>& ports) {
  for (const Program::Port& port : ports) fmt::print("{} {}: {}\n", what, port.name, program.var(port.var).type.to_string());
}

int inspect(const InspectFlags& flags) {
  const Model model = load(flags.model);
  std::string streaming;
  if (flags.streaming) streaming = naming(flags.model.source(), [&] { return served(model)->recurrence()->to_string(); });
  print_ports("input", model.program, model.program.inputs());
  print_ports("output", model.program, model.program.outputs());
  fmt::print("\n{}", model.program.to_string());
  if (flags.streaming) fmt::print("\nstreaming:\n{}", streaming);
  return 0;
}

}  // namespace

void add_inspect(CLI::App& app, Action& action) {
  const auto flags = std::make_shared<InspectFlags>();
  CLI::App* command = app.add_subcommand("inspect", "Prints inputs, outputs and the program of a model");
  flags->model.add_to(*command);
  command->add_flag("--streaming", flags->streaming, "Also what one step takes and gives, and what becomes state");
  command->callback([flags, &action] { action = [flags] { return inspect(*flags); }; });
}

}  // namespace millrace::app
