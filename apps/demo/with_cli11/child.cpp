// SPDX-License-Identifier: Apache-2.0
#include "child.h"

#include <csignal>
#include <cstring>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <millrace/tensor/error.h>

extern char** environ;

namespace millrace::demo {

Child::Child(const std::vector<std::string>& command) : name_(command.front()) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw IoError(name_ + ": cannot make a pipe: " + std::strerror(errno));
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const int error = ::posix_spawn(&pid_, name_.c_str(), &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  stdout_ = ::fdopen(ends[0], "r");
  if (error == 0) return;
  pid_ = -1;
  std::fclose(stdout_);
  throw IoError(name_ + ": cannot start: " + std::strerror(error));
}

Child::~Child() {
  std::fclose(stdout_);
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

std::string Child::read_line() {
  std::string line;
  for (int c = std::fgetc(stdout_); c != EOF && c != '\n'; c = std::fgetc(stdout_)) line += static_cast<char>(c);
  return line;
}

void Child::terminate() { ::kill(pid_, SIGTERM); }

void Child::finish() {
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  if (!WIFEXITED(status)) throw IoError(name_ + ": expected an exit, found signal " + std::to_string(WTERMSIG(status)));
  if (WEXITSTATUS(status) != 0) throw IoError(name_ + ": expected exit code 0, found " + std::to_string(WEXITSTATUS(status)));
}

}  // namespace millrace::demo
