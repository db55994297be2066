// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <memory>
#include <system_error>

#include <fmt/format.h>

#include <millrace/runtime/files/file.h>
#include <millrace/runtime/models/export/onnx.h>

#include "commands.h"
#include "model_flags.h"

namespace millrace::app {
namespace {

struct ExportFlags {
  ModelFlags model;
  std::string output;
  std::string start;
  bool one_step = false;
  bool batch = false;
};

/// NAME.open1.onnx, NAME.close1.onnx, … beside NAME.onnx.
void write_boundaries(const std::string& output, const Recurrence& recurrence) {
  const std::string stem = output.substr(0, output.size() - std::string(".onnx").size());
  for (const Recurrence::Boundary& at : recurrence.boundaries)
    write_file(fmt::format("{}.{}{}.onnx", stem, at.opens ? "open" : "close", at.level), format_onnx_boundary(recurrence, at));
}

bool same_file(const std::string& a, const std::string& b) {
  std::error_code error;
  const std::filesystem::path first = std::filesystem::weakly_canonical(std::filesystem::absolute(a, error), error);
  return first == std::filesystem::weakly_canonical(std::filesystem::absolute(b, error), error);
}

int export_model(const ExportFlags& flags) {
  if (ending_of(flags.output) != ".onnx")
    throw UsageError(fmt::format("--output: expected a name that ends in .onnx, found '{}'", flags.output));
  if (!flags.start.empty() && !flags.one_step) throw UsageError("--start: expected it with --one-step, found it alone");
  if (!flags.start.empty() && same_file(flags.start, flags.output))
    throw UsageError(fmt::format("--start: expected another file than that of --output, found '{}' for both", flags.start));
  if (flags.batch && flags.one_step) throw UsageError("--batch: expected it without --one-step, found both");
  if (!flags.model.states.empty() && !flags.one_step)
    throw UsageError("--state: expected it with --one-step, which writes one step with its states, found it alone");
  const Model model = load(flags.model);
  naming(flags.model.source(), [&] {
    if (flags.batch) return write_onnx_batch(flags.output, model.program);
    if (!flags.one_step) return write_onnx(flags.output, model.program);
    const std::shared_ptr<const ServedModel> steps = served(model);
    if (!flags.start.empty() && steps->recurrence()->states.empty())
      throw UsageError("--start: expected a program with states, which have first values, found none");
    const std::string start = flags.start.empty() ? std::string() : format_onnx_start(*steps->recurrence());
    write_onnx_step(flags.output, *steps->recurrence());
    write_boundaries(flags.output, *steps->recurrence());
    if (!flags.start.empty()) write_file(flags.start, start);
  });
  return 0;
}

}  // namespace

void add_export(CLI::App& app, Action& action) {
  const auto flags = std::make_shared<ExportFlags>();
  CLI::App* command = app.add_subcommand("export", "Writes a model as ONNX: over a whole sequence, or one step with its states");
  flags->model.add_to(*command);
  command->add_option("--output", flags->output, "FILE.onnx")->required();
  command->add_flag(
      "--one-step", flags->one_step,
      "One step of one sequence: rows and states in, rows and next_STATE out; with inner levels also FILE.open1.onnx, FILE.close1.onnx, …");
  command->add_flag("--batch", flags->batch,
                    "Many sequences: the rows of all, and NAME.lengths beside each input and output of rows; in a model without LoD, along "
                    "the open extent");
  command->add_option("--start", flags->start, "With --one-step, FILE.onnx that gives the first values of the states");
  DeviceFlags::refuse_in(*command, "expected where the model runs: an export runs nothing, see 'millrace run'");
  command->callback([flags, &action] { action = [flags] { return export_model(*flags); }; });
}

}  // namespace millrace::app
