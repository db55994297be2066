// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <millrace/runtime/distributed/partition.h>
#include <millrace/runtime/executor/executable.h>
#include <millrace/runtime/files/internal/printable.h>
#include <millrace/runtime/loops/cpu_fused/fused_loop.h>
#include <millrace/runtime/loops/cuda_graph/captured_loop.h>
#include <millrace/runtime/loops/cuda_recurrent/cell_loop.h>
#include <millrace/runtime/loops/cuda_recurrent/device_step.h>
#include <millrace/runtime/loops/step_runner.h>
#include <millrace/runtime/lowering/iteration_memory.h>
#include <millrace/runtime/lowering/keep_values.h>
#include <millrace/runtime/lowering/lstm_loop.h>

#include "commands.h"
#include "model_flags.h"

namespace millrace::app {
namespace {

struct InspectFlags {
  ModelFlags model;
  DeviceFlags device;
  bool streaming = false;
  bool passes = false;
  std::vector<std::string> keep;
  int ranks = 0;
};

/// The run of a loop on the place, with the passes that it goes through. UnsupportedError: iteration by iteration, and why; or that the backend that was
/// named cannot be had.
std::string backend_text(const Program& program, int block, const Op& op, const DeviceFlags& device) {
  const Backend backend = device.chosen_backend();
  const Place place = device.parsed_place();
  if (backend == Backend::interpreted) throw UnsupportedError("that was asked for");
  if (place.is_cpu() && backend == Backend::captured) throw UnsupportedError("there are no graphs of kernels on cpu");
  if (place.is_cpu()) return FusedLoop(program, block, op).to_string();
  if (backend == Backend::captured) return CapturedForm(program, block, op).to_string();
  try {
    return LstmLoop(program, block, op).to_string();
  } catch (const UnsupportedError&) {  // any other cell has a generated kernel
  }
  try {
    return CellLoop(program, block, op, false).to_string();
  } catch (const UnsupportedError& error) {
    const std::string why = "there is no fused kernel for it on " + place.to_string() + ": " + error.what();
    if (backend == Backend::fused) throw UnsupportedError(why);
    return why + "\n" + CapturedForm(program, block, op).to_string();
  }
}

/// The run of the steps of live sessions on the place.
std::string ticks_text(const Recurrence& recurrence, const DeviceFlags& device) {
  const Backend backend = device.chosen_backend();
  const Place place = device.parsed_place();
  try {
    if (!place.is_cpu() && backend != Backend::interpreted) return DeviceStepForm(recurrence, backend).to_string();
    const StepRunner step(recurrence.batched, make_cpu_device(), backend);
    return step.fused() ? "backend: fused\n" : fmt::format("backend: interpreted, because {}\n", step.reason());
  } catch (const UnsupportedError& error) {
    if (device.backend_required()) throw;
    return fmt::format("backend: interpreted, because {}\n", error.what());
  }
}

std::ptrdiff_t loops_of(const Executable& executable) {
  const std::vector<Op>& ops = executable.program().block(0).ops;
  return std::count_if(ops.begin(), ops.end(), [](const Op& op) { return op.type == "while"; });
}

/// Each loop before and after each pass, and the backend it runs in.
std::string loops_text(const Program& program, const DeviceFlags& device) {
  const Executable automatic(program), with_loops = automatic.with_loops();
  const Executable& executable = device.chosen_backend() == Backend::automatic ? automatic : with_loops;
  std::string text;
  if (const std::ptrdiff_t filters = loops_of(with_loops) - loops_of(executable); filters > 0)
    text +=
        fmt::format("\nloops that filter: {}, each of which is one op, unless iterations are asked for or a backend is named\n", filters);
  const auto body_of = [](const Op& op) { return op.attributes.get<BlockId>("sub_block").index; };
  for (const LoopGroup& group : executable.loop_groups()) {
    std::string loops;
    for (const std::size_t at : group)
      loops += fmt::format("{}{}", loops.empty() ? "" : ", ", body_of(executable.program().block(0).ops[at]));
    text += fmt::format("\nside by side, each on a thread, where there are several and sequences are few: the loops of blocks {}\n", loops);
  }
  for (const Block& block : executable.program().blocks()) {
    for (const Op& op : block.ops) {
      if (op.type != "while") continue;
      text += fmt::format("\nloop of block {} in block {}\n", body_of(op), block.idx);
      try {
        text += fmt::format("{}", backend_text(executable.program(), block.idx, op, device));
      } catch (const UnsupportedError& error) {
        if (device.backend_required())
          throw UnsupportedError(fmt::format("backend {}: the loop of block {} runs iteration by iteration, because {}", device.backend,
                                             body_of(op), error.what()));
        text += fmt::format("backend: interpreted, because {}\n", error.what());
      }
    }
  }
  return text;
}

std::string joined(const std::vector<std::string>& words) { return words.empty() ? "nothing" : fmt::format("{}", fmt::join(words, ", ")); }

/// `all-needed` …: what a backward step of each loop reads; nothing for other words.
std::optional<Keep> policy_of(const std::vector<std::string>& words) {
  if (words.size() != 1) return std::nullopt;
  if (words[0] == "all-needed") return Keep::needed;
  if (words[0] == "all-lean") return Keep::lean;
  return words[0] == "all-states" ? std::optional(Keep::states) : std::nullopt;
}

/// The values of every loop that is a recurrence; `report` gets what a backward step has at hand.
std::vector<KeptValue> keep_all(Program& program, Keep policy, std::string& report) {
  std::vector<KeptValue> values;
  std::vector<int> bodies;
  for (const Block& block : program.blocks())
    for (const Op& op : block.ops)
      if (op.type == "while") bodies.push_back(op.attributes.get<BlockId>("sub_block").index);
  for (const int block : bodies) {
    try {
      const std::vector<std::string> names = values_to_keep(program, block, policy);
      const IterationMemory memory = iteration_memory(program, block, names);
      for (KeptValue& value : keep_values(program, block, names)) values.push_back(std::move(value));
      report +=
          fmt::format("\nkept of block {}: {}; {} elements a row\n  needed by a backward step: {}\n  computed again: {}; {} products\n",
                      block, joined(names), memory.kept, joined(memory.needed), joined(memory.recomputed), memory.products);
    } catch (const UnsupportedError& error) {
      report += fmt::format("\nkept of block {}: nothing, because {}\n", block, error.what());
    }
  }
  return values;
}

/// The program whose loops hand out what is asked for, each array an output where the loop stands in block 0.
Program keeping(Program program, const std::vector<std::string>& words, std::string& report) {
  const std::optional<Keep> policy = policy_of(words);
  for (const KeptValue& value : policy ? keep_all(program, *policy, report) : keep_values(program, words))
    if (program.var(value.array).block == 0) program.add_output("kept." + value.name, value.array);
  return program;
}

void print_partition(const Partition& partition) {
  fmt::print("\n{}", partition.to_string());
  for (const Program& part : partition.parts) fmt::print("\n{}", part.to_string());
}

void print_ports(const char* what, const Program& program, const std::vector<Program::Port>& ports) {
  for (const Program::Port& port : ports) {
    const std::string quoted = internal::printable(port.name);
    fmt::print("{} {}: {}\n", what, quoted.substr(1, quoted.size() - 2), program.var(port.var).type.to_string());
  }
}

int inspect(const InspectFlags& flags) {
  const Model model = load(flags.model);
  std::string streaming;
  if (flags.streaming)
    streaming = naming(flags.model.source(), [&] {
      const std::shared_ptr<const Recurrence> recurrence = served(model)->recurrence();
      return recurrence->to_string() + ticks_text(*recurrence, flags.device);
    });
  std::string kept;
  const Program program = naming(flags.model.source(), [&] { return keeping(model.program, flags.keep, kept); });
  const std::string loops = flags.passes || flags.device.backend_required() ? loops_text(program, flags.device) : "";
  print_ports("input", program, program.inputs());
  print_ports("output", program, program.outputs());
  fmt::print("\n{}", program.to_string());
  if (flags.streaming) fmt::print("\nstreaming:\n{}", streaming);
  fmt::print("{}", kept);
  fmt::print("{}", loops);
  if (flags.ranks > 0) print_partition(partition_over_ranks(program, flags.ranks));
  return 0;
}

}  // namespace

void add_inspect(CLI::App& app, Action& action) {
  const auto flags = std::make_shared<InspectFlags>();
  CLI::App* command = app.add_subcommand("inspect", "Prints inputs, outputs and the program of a model");
  flags->model.add_to(*command);
  command->add_flag("--streaming", flags->streaming, "Also what one step takes and gives, and what becomes state");
  command->add_flag("--passes", flags->passes, "Also what each pass makes of each loop, and the backend it runs in");
  flags->device.add_place(*command);
  flags->device.add_backend(*command);
  command
      ->add_option(
          "--keep", flags->keep,
          "Values of loops, NAME,…, that the program hands out for each iteration; parts of a cell h are h.i h.f h.g h.o h.a. Or what "
          "a backward "
          "step reads of every loop: all-needed; all-lean: without what one row makes again; all-states: states alone")
      ->delimiter(',');
  command->add_option("--ranks", flags->ranks, "Also how its loops are shared out among so many ranks, and the part of each")
      ->check(CLI::Range(1, 64));
  command->callback([flags, &action] { action = [flags] { return inspect(*flags); }; });
}

}  // namespace millrace::app
