// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include <CLI/App.hpp>

#include <millrace/tensor/error.h>

#include <millrace/runtime/trace/nvtx.h>

namespace millrace::app {

/// Flags that are well formed one by one but make no sense: exit code 2.
class UsageError : public Error {
 public:
  using Error::Error;
};

/// Says which file an error is about, where what fails does not know it.
template <class Function>
auto naming(const std::string& source, Function function) {
  try {
    return function();
  } catch (Error& error) {
    error.add_context(" (in " + source + ")");
    throw;
  }
}

/// What the chosen subcommand does; gives the exit code, or throws.
using Action = std::function<int()>;

/// Each adds its subcommand, with flags, name and help side by side, and sets `action` when it is chosen.
void add_run(CLI::App& app, Action& action);
void add_inspect(CLI::App& app, Action& action);
void add_export(CLI::App& app, Action& action);
void add_serve(CLI::App& app, Action& action);
void add_stream(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);
void add_train(CLI::App& app, Action& action, char** argv);
void add_info(CLI::App& app, Action& action);

/// Of --trace and --nvtx. UnsupportedError for the latter in a build without CUDA.
inline TracerOptions tracer_options(bool record, bool nvtx) {
  TracerOptions options;
  options.record = record;
  if (nvtx) options.ranges = make_nvtx_ranges();
  return options;
}

}  // namespace millrace::app
