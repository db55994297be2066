// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <string>

#include <CLI/CLI.hpp>

#include <support/standard_streams.h>

#include "commands.h"

using millrace::app::bad_usage;
using millrace::app::failed;

namespace {

const std::string name = "millrace";

void complain(const std::string& text) { millrace::app::complain(name, text); }
int flushed(int code) { return millrace::app::flushed(name, code); }

}  // namespace

int main(int argc, char** argv) {
  millrace::app::hold_standard_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow any more is an error of write
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
  millrace::app::add_info(app, action);
  try {
    app.parse(argc, argv);
    return flushed(action());
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return flushed(app.exit(error));  // --help, --version
    complain(std::string(error.what()) + " (--help explains)");
    return bad_usage;
  } catch (const millrace::app::UsageError& error) {
    complain(error.what());
    return bad_usage;
  } catch (const std::bad_alloc&) {
    complain("out of memory");
    return failed;
  } catch (const std::exception& error) {
    complain(error.what());
    return failed;
  }
}
