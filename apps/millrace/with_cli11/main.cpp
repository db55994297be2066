// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include "commands.h"

namespace {

constexpr int failed = 1, bad_usage = 2;

/// One line on stderr, whatever the text.
void complain(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  for (char& c : text)
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = c == '\n' || c == '\r' || c == '\t' ? ' ' : '?';
  text = "millrace: " + text + "\n";
  std::fwrite(text.data(), 1, text.size(), stderr);
}

/// What the caller closed must not become the first file or socket that is opened here: nothing is read from it, and what is printed to it
/// fails.
void hold_standard_streams() {
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor)
    if (::fcntl(descriptor, F_GETFD) < 0 && ::open("/dev/null", O_RDONLY) != descriptor) std::_Exit(failed);
}

/// Whether what was printed has arrived.
int flushed(int code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  complain(std::string("stdout: cannot write: ") + std::strerror(errno));
  return failed;
}

}  // namespace

int main(int argc, char** argv) {
  hold_standard_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow any more is an error of write
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
