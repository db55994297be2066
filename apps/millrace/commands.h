// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include <CLI/App.hpp>

#include <millrace/tensor/error.h>

#include <millrace/runtime/trace/tracer.h>

namespace millrace::app {

/// Flags that are well formed one by one but make no sense: exit code 2.
class UsageError : public Error {
 public:
  using Error::Error;
};

/// Adds the file to an error whose thrower does not know it.
template <class Function>
auto naming(const std::string& source, Function function) {
  try {
    return function();
  } catch (Error& error) {
    if (!std::string_view(error.what()).starts_with(source + ":")) error.add_context(" (in " + source + ")");
    throw;
  }
}

/// The work of the chosen subcommand; gives the exit code, or throws.
using Action = std::function<int()>;

/// Each adds its subcommand, with flags, name and help side by side, and sets `action` when it is chosen.
void add_run(CLI::App& app, Action& action);
void add_inspect(CLI::App& app, Action& action);
void add_export(CLI::App& app, Action& action);
void add_serve(CLI::App& app, Action& action);
void add_stream(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);
void add_sample(CLI::App& app, Action& action);
void add_train(CLI::App& app, Action& action, char** argv);
void add_info(CLI::App& app, Action& action);

/// --trace, --trace-limit and --nvtx.
struct TraceFlags {
  std::string file;
  std::uint64_t most_bytes = TracerOptions().most_bytes;
  bool nvtx = false;

  /// `shown`: what NVTX shows of the command, for its help.
  void add_to(CLI::App& command, const std::string& shown);
  /// The file is `ending` longer than its name. IoError for one that cannot be written; UnsupportedError for --nvtx in a build without CUDA.
  TracerOptions options(const std::string& ending = {}) const;
  bool any() const { return nvtx || !file.empty(); }
  /// Ends the file, if there is one, and says on standard error how many events it had no room for.
  void finish(Tracer& tracer) const;
};

}  // namespace millrace::app
