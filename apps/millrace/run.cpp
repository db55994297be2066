// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <millrace/runtime/distributed/process_run.h>
#include <millrace/runtime/distributed/rank_environment.h>
#include <millrace/runtime/executor/kept_memory.h>
#include <millrace/runtime/files/file.h>

#include "commands.h"
#include "feeds.h"
#include "model_flags.h"
#include "output_files.h"
#include "whole_run.h"

namespace millrace::app {
namespace {

struct RunFlags {
  ModelFlags model;
  DeviceFlags device;
  std::vector<std::string> inputs;
  std::vector<std::string> lods;
  std::string folder;
  TraceFlags trace;
  bool stats = false;
  int ranks = 0;          ///< 0: nobody said
  double deadline = 600;  ///< seconds
};

/// The files of a run, for errors.
std::string sources_of(const RunFlags& flags) {
  return flags.inputs.empty() ? flags.model.source() : fmt::format("{} with {}", flags.model.source(), fmt::join(flags.inputs, " "));
}

/// When this process is one of several that are ranks, and nobody said --ranks.
std::optional<RankEnvironment> other_processes(const RunFlags& flags) {
  if (flags.ranks > 0) return std::nullopt;
  const std::optional<RankEnvironment> environment = rank_environment();
  return environment && environment->world_size > 1 ? environment : std::nullopt;
}

void check_spreads(const Model& model, const std::string& why) {
  if (!model.states.empty())
    throw UsageError(why +
                     ": expected a program with loops of its own, found a graph that is one step (--state): it has none to share out "
                     "among processes, and its sequences are dealt out by --ranks of one process");
}

/// One rank of several processes. The first writes what there is to write, but for the traces.
int run_as_process(const RunFlags& flags, const RankEnvironment& environment) {
  // CUDA may wait for all that a device does to load a kernel before its first launch, so for other ranks, which may wait for that kernel.
  static_cast<void>(::setenv("CUDA_MODULE_LOADING", "EAGER", 0));
  const bool first = environment.rank == 0;
  ProcessRunOptions options;
  Tracer tracer(flags.trace.options(first ? std::string() : fmt::format(".rank{}", environment.rank)));
  if (flags.trace.any()) options.run.tracer = &tracer;
  options.deadline = std::chrono::milliseconds(std::max<std::int64_t>(1, static_cast<std::int64_t>(flags.deadline * 1000)));
  options.meeting = std::min(options.meeting, options.deadline);
  RendezvousOptions meeting;
  meeting.deadline = options.meeting;
  Rendezvous ranks(environment, meeting);
  const std::shared_ptr<Device> device = flags.device.make_for(environment.rank);
  const Model model = load(flags.model);
  check_spreads(model, environment.source);
  const std::map<std::string, LoDTensor> feeds = read_feeds(flags.inputs, flags.lods, model.config);
  options.run.backend = flags.device.chosen_backend();
  options.run.backend_required = flags.device.backend_required();
  const auto begin = std::chrono::steady_clock::now();
  const Outcome outcome = naming(sources_of(flags), [&] { return run_among_processes(model, feeds, device, ranks, options); });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  flags.trace.finish(tracer);
  if (first) write_outputs(flags.folder, outcome.outputs);
  if (flags.stats)
    fmt::print("millrace: rank {} of {} ran in {:.3f} s on {}: {}\n", environment.rank, environment.world_size, seconds,
               device->place().to_string() + (flags.device.tf32 ? " (f32 as tf32)" : ""), outcome.stats);
  return 0;
}

/// Whether loops keep values for backward loops.
bool keeps_values(const Program& program) {
  const auto keeps = [](const Op& op) { return op.attributes.has("kept"); };
  return std::any_of(program.blocks().begin(), program.blocks().end(),
                     [&](const Block& block) { return std::any_of(block.ops.begin(), block.ops.end(), keeps); });
}

int run_model(const RunFlags& flags) {
  if (const auto environment = other_processes(flags)) return run_as_process(flags, *environment);
  const int ranks = std::max(flags.ranks, 1);
  if (ranks == 1 && flags.device.places().size() > 1) static_cast<void>(flags.device.make());
  std::vector<std::shared_ptr<Device>> devices;
  for (int rank = 0; rank < ranks; ++rank) devices.push_back(flags.device.make_for(rank));
  Tracer tracer(flags.trace.options());  // opens its file: a name that cannot be written costs no run
  Tracer* const traced = flags.trace.any() ? &tracer : nullptr;
  const auto loads = std::chrono::steady_clock::now();
  const Model model = load(flags.model);
  const double loading = std::chrono::duration<double>(std::chrono::steady_clock::now() - loads).count();
  const std::map<std::string, LoDTensor> feeds = read_feeds(flags.inputs, flags.lods, model.config);
  const auto kept = std::make_shared<KeptMemory>();
  Tracer counter(KeptMemory::counting(kept));
  const bool counts = flags.stats && traced == nullptr && keeps_values(model.program);
  const auto begin = std::chrono::steady_clock::now();
  const Outcome outcome = naming(sources_of(flags), [&] {
    RunOptions options;
    options.tracer = traced;
    if (counts) options.tracer = &counter;
    options.backend = flags.device.chosen_backend();
    options.backend_required = flags.device.backend_required();
    if (!model.states.empty()) return run_steps(model, feeds, devices, options);
    return ranks > 1 ? run_on_ranks(model, feeds, devices, options) : run_program(model, feeds, devices[0], options);
  });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  flags.trace.finish(tracer);
  write_outputs(flags.folder, outcome.outputs);
  if (counts) fmt::print("millrace: {}\n", kept->to_string());
  if (flags.stats)
    fmt::print("millrace: ran in {:.0f} us, set up in {:.0f} us, on {} with {} threads: {}\n", 1e6 * (seconds - outcome.setup_seconds),
               1e6 * (loading + outcome.setup_seconds), flags.device.where(), flags.device.threads, outcome.stats);
  return 0;
}

}  // namespace

void add_run(CLI::App& app, Action& action) {
  const auto flags = std::make_shared<RunFlags>();
  CLI::App* command = app.add_subcommand(
      "run", "Evaluates a model on files, and writes NAME.npy for each output NAME (NAME.0.npy … for a list, NAME.safetensors for bf16)");
  flags->model.add_to(*command);
  command
      ->add_option(
          "--input", flags->inputs,
          "NAME=FILE.npy, NAME=FILE.npz:TENSOR, NAME=FILE.safetensors:TENSOR, or NAME=FILE.wav for the input that [audio] of the TOML "
          "names; for a list NAME.0=FILE, NAME.1=FILE …, and NAME.length=FILE where it is empty")
      ->allow_extra_args(false);
  command->add_option("--lod", flags->lods, "NAME=[[2,1],[3,1,2]]: lengths of the sequences of an input, level by level, outermost first")
      ->allow_extra_args(false);
  command->add_option("--output-dir", flags->folder, "Where the outputs go; made when it is not there")
      ->required()
      ->check([](const std::string& folder) { return std::string(folder.empty() ? "expected a folder" : ""); });
  flags->device.add_to(*command);
  command
      ->add_option(
          "--ranks", flags->ranks,
          "Shares the loops of the program out among so many ranks, each a thread with a device of its own and --threads threads: same "
          "outputs ('millrace inspect --ranks N' shows what goes where); of a graph that is one step (--state) the sequences. Default: 1, "
          "or one for each process where RANK and WORLD_SIZE, "
          "mpirun or PMI say that there are several, which meet at MASTER_ADDR and MASTER_PORT; the first writes the outputs")
      ->check(CLI::Range(1, 64));
  command
      ->add_option("--deadline", flags->deadline,
                   "Seconds that ranks in several processes wait for a value of one another; and to meet, but for that at most 60")
      ->check(within(0.001, 1e6))
      ->capture_default_str();
  command->add_flag("--stats", flags->stats, "Prints a line about the run");
  flags->trace.add_to(*command, "runs, loops, iterations and ops");
  command->callback([flags, &action] { action = [flags] { return run_model(*flags); }; });
}

}  // namespace millrace::app
