// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <millrace/runtime/executor/executable.h>
#include <millrace/runtime/lowering/fused_loop.h>
#include <millrace/runtime/lowering/keep_values.h>

#include "commands.h"
#include "model_flags.h"

namespace millrace::app {
namespace {

struct InspectFlags {
  ModelFlags model;
  bool streaming = false;
  bool passes = false;
  std::vector<std::string> keep;
};

/// Each loop before and after each pass, and the gear it runs in.
void print_passes(const Program& program) {
  const Executable executable(program);
  const auto body_of = [](const Op& op) { return op.attributes.get<BlockId>("sub_block").index; };
  for (const LoopGroup& group : executable.loop_groups()) {
    std::string loops;
    for (const std::size_t at : group)
      loops += fmt::format("{}{}", loops.empty() ? "" : ", ", body_of(executable.program().block(0).ops[at]));
    fmt::print("\nside by side, each on a thread, where there are several and sequences are few: the loops of blocks {}\n", loops);
  }
  for (const Block& block : executable.program().blocks()) {
    for (const Op& op : block.ops) {
      if (op.type != "while") continue;
      fmt::print("\nloop of block {} in block {}\n", body_of(op), block.idx);
      try {
        fmt::print("{}", FusedLoop(executable.program(), block.idx, op).to_string());
      } catch (const UnsupportedError& error) {
        fmt::print("gear: interpreted, because {}\n", error.what());
      }
    }
  }
}

/// The program whose loops hand out what is asked for, each array an output.
Program keeping(Program program, const std::vector<std::string>& names) {
  for (const KeptValue& value : keep_values(program, names)) program.add_output("kept." + value.name, value.array);
  return program;
}

void print_ports(const char* what, const Program& program, const std::vector<Program::Port>& ports) {
  for (const Program::Port& port : ports) fmt::print("{} {}: {}\n", what, port.name, program.var(port.var).type.to_string());
}

int inspect(const InspectFlags& flags) {
  const Model model = load(flags.model);
  std::string streaming;
  if (flags.streaming) streaming = naming(flags.model.source(), [&] { return served(model)->recurrence()->to_string(); });
  const Program program = naming(flags.model.source(), [&] { return keeping(model.program, flags.keep); });
  print_ports("input", program, program.inputs());
  print_ports("output", program, program.outputs());
  fmt::print("\n{}", program.to_string());
  if (flags.streaming) fmt::print("\nstreaming:\n{}", streaming);
  if (flags.passes) print_passes(program);
  return 0;
}

}  // namespace

void add_inspect(CLI::App& app, Action& action) {
  const auto flags = std::make_shared<InspectFlags>();
  CLI::App* command = app.add_subcommand("inspect", "Prints inputs, outputs and the program of a model");
  flags->model.add_to(*command);
  command->add_flag("--streaming", flags->streaming, "Also what one step takes and gives, and what becomes state");
  command->add_flag("--passes", flags->passes, "Also what each pass makes of each loop, and the gear it runs in");
  command
      ->add_option("--keep", flags->keep,
                   "Values of loops, NAME,…, that the program hands out for each turn; parts of a cell h are h.i h.f h.g h.o h.a")
      ->delimiter(',');
  command->callback([flags, &action] { action = [flags] { return inspect(*flags); }; });
}

}  // namespace millrace::app
