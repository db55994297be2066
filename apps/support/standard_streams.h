// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include <millrace/streaming/admin/log_line.h>

/// The standard streams of every program that a person starts.
namespace millrace::app {

/// Exit codes.
inline constexpr int failed = 1, bad_usage = 2;

/// The text without characters that a terminal would obey, as in the log of a server: control characters, and those that change the direction of text. Line
/// ends and tabs become blanks, because messages of libraries have several lines.
inline std::string one_line(std::string text) {
  for (char& c : text)
    if (c == '\n' || c == '\r' || c == '\t') c = ' ';
  return millrace::one_line(text);
}

/// "PROGRAM: TEXT" on stderr, one line, whatever the text.
inline void complain(const std::string& program, std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  text = program + ": " + one_line(std::move(text)) + "\n";
  std::fwrite(text.data(), 1, text.size(), stderr);
}

/// A stream that the caller closed must not become the first file or socket that is opened here: nothing is read from it, and what is printed to it
/// fails.
inline void hold_standard_streams() {
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor)
    if (::fcntl(descriptor, F_GETFD) < 0 && ::open("/dev/null", O_RDONLY) != descriptor) std::_Exit(failed);
}

/// `code` when what was printed has arrived; else says so, and gives `failed`.
inline int flushed(const std::string& program, int code) {
  const bool came_before = std::ferror(stdout) != 0;  // whose reason is not known any more
  const bool failed_now = std::fflush(stdout) != 0;
  const int reason = errno;
  if (!failed_now && !came_before) return code;
  complain(program, std::string("stdout: cannot write: ") + (failed_now ? std::strerror(reason) : "an earlier write failed"));
  return failed;
}

}  // namespace millrace::app
