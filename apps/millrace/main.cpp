// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <string>

#include <support/command_line.h>

#include "commands.h"

namespace {

const std::string name = "millrace";

}  // namespace

int main(int argc, char** argv) {
  millrace::app::hold_standard_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow any more is an error of write
  std::signal(SIGPIPE, SIG_IGN);  // a reader that went away is one of print
  CLI::App app("Recurrent networks over live sequences.", name);
  app.set_version_flag("--version", "millrace " MILLRACE_VERSION);
  app.require_subcommand(1);
  app.footer("Exit codes: 0, 1 (failed), 2 (bad usage). 'millrace COMMAND --help' explains a command.");
  millrace::app::Action action;
  millrace::app::add_run(app, action);
  millrace::app::add_inspect(app, action);
  millrace::app::add_export(app, action);
  millrace::app::add_serve(app, action);
  millrace::app::add_stream(app, action);
  millrace::app::add_bench(app, action);
  millrace::app::add_train(app, action, argv);
  millrace::app::add_sample(app, action);
  millrace::app::add_info(app, action);
  return millrace::app::framed_behind_flags<millrace::app::UsageError>(app, name, argc, argv,
                                                                       [&] { return millrace::app::flushed(name, action()); });
}
