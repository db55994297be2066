// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include <sys/types.h>

namespace millrace::demo {

/// A program in a process of its own; killed when this goes away before it ended. Its stdout is read here, its stderr is ours.
class Child {
 public:
  /// IoError names the program that could not be started.
  explicit Child(const std::vector<std::string>& command);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  /// The next line of its stdout, without the end of line; empty at its end.
  std::string read_line();
  void terminate();
  /// Waits for its end. IoError, naming the program, unless it exits with 0.
  void finish();

 private:
  std::string name_;
  pid_t pid_ = -1;
  std::FILE* stdout_ = nullptr;
};

}  // namespace millrace::demo
