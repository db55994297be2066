// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include <sys/types.h>

namespace millrace::app {

/// A program in a process of its own; killed when this goes away before it ended. Its stdout is read here, its stderr is ours.
class Child {
 public:
  /// The program's own name is looked for in PATH when it holds no '/'. With `talks`, its stdin is written to by `write_line`; else it is
  /// ours. IoError names the program that could not be started.
  explicit Child(const std::vector<std::string>& command, bool talks = false);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  /// The next line of its stdout, without the end of line; empty at its end.
  std::string read_line();
  /// IoError when it reads no more. The caller ignores SIGPIPE.
  void write_line(const std::string& line);
  pid_t pid() const noexcept { return pid_; }
  void terminate();
  /// Waits for its end. IoError, naming the program, unless it exits with 0.
  void finish();

 private:
  void close_stdin();

  std::string name_;
  pid_t pid_ = -1;
  std::FILE* stdout_ = nullptr;
  std::FILE* stdin_ = nullptr;
};

}  // namespace millrace::app
