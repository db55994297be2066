// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <millrace/runtime/distributed/process_run.h>
#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/trace/tracer.h>
#include <millrace/tensor/device.h>

#include "model_flags.h"
#include "output_files.h"

namespace millrace::app {

/// The results of a run, and a line about it.
struct Outcome {
  NamedOutputs outputs;
  std::string stats;
  double setup_seconds = 0;  ///< of the time it took: making the program ready, once for any number of runs
};

/// Evaluates the program once. A list NAME becomes outputs NAME.0, NAME.1, … and NAME.length; an optional NAME.has, and what it holds.
Outcome run_program(const Model& model, const std::map<std::string, LoDTensor>& feeds, const std::shared_ptr<Device>& device,
                    RunOptions options);

/// The same with the loops shared out among as many ranks as there are devices, each a thread of this process. Standard error names
/// the loops that could not be shared out.
Outcome run_on_ranks(const Model& model, const std::map<std::string, LoDTensor>& feeds, const std::vector<std::shared_ptr<Device>>& devices,
                     RunOptions options);

/// The same where each rank is a process, and this is one of them: what it gives is rank 0's; nothing on others.
Outcome run_among_processes(const Model& model, const std::map<std::string, LoDTensor>& feeds, std::shared_ptr<Device> device,
                            Rendezvous& ranks, const ProcessRunOptions& options);

/// A graph that is one step, over the rows of its live inputs (one sequence, or those of one level of LoD): what a live session would give,
/// on the same recurrence. The last value of each state follows under the name of its output: as the program has it for one sequence, one
/// row a sequence with LoD. Of the options it takes the backend (see StateSlab) and the tracer. The sequences are dealt out among the devices, each with
/// a thread and the states of its own: they need nothing of one another, so the bits are those of one.
Outcome run_steps(Model model, std::map<std::string, LoDTensor> feeds, const std::vector<std::shared_ptr<Device>>& devices,
                  const RunOptions& options);

}  // namespace millrace::app
