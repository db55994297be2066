// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <string>

#include <CLI/CLI.hpp>

#include "commands.h"

namespace {

/// One line on stderr, whatever the text.
void complain(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  for (char& c : text)
    if (c == '\n' || c == '\r') c = ' ';
  std::fprintf(stderr, "millrace: %s\n", text.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int failed = 1, bad_usage = 2;
  CLI::App app("Recurrent networks over live sequences.", "millrace");
  app.set_version_flag("--version", "millrace " MILLRACE_VERSION);
  app.require_subcommand(1);
  app.footer("Exit codes: 0, 1 (failed), 2 (bad usage). 'millrace COMMAND --help' explains a command.");
  millrace::app::Action action;
  millrace::app::add_run(app, action);
  millrace::app::add_inspect(app, action);
  millrace::app::add_serve(app, action);
  millrace::app::add_stream(app, action);
  try {
    app.parse(argc, argv);
    return action();
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
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
