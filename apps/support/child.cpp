// SPDX-License-Identifier: Apache-2.0
#include <support/child.h>

#include <csignal>
#include <cstring>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <millrace/tensor/error.h>

extern char** environ;

namespace millrace::app {
namespace {

/// Two ends that no other child inherits.
struct Pipe {
  int ends[2] = {-1, -1};
  explicit Pipe(const std::string& name) {
    if (::pipe2(ends, O_CLOEXEC) != 0) throw IoError(name + ": cannot make a pipe: " + std::strerror(errno));
  }
};

}  // namespace

Child::Child(const std::vector<std::string>& command, bool talks) : name_(command.front()) {
  Pipe out(name_);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, out.ends[1], STDOUT_FILENO);
  int to_child = -1;
  if (talks) {
    Pipe in(name_);
    ::posix_spawn_file_actions_adddup2(&actions, in.ends[0], STDIN_FILENO);
    to_child = in.ends[0];
    stdin_ = ::fdopen(in.ends[1], "w");
  }
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const int error = ::posix_spawnp(&pid_, name_.c_str(), &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(out.ends[1]);
  if (to_child >= 0) ::close(to_child);
  stdout_ = ::fdopen(out.ends[0], "r");
  if (error == 0) return;
  pid_ = -1;
  std::fclose(stdout_);
  close_stdin();
  throw IoError(name_ + ": cannot start: " + std::strerror(error));
}

Child::~Child() {
  close_stdin();
  std::fclose(stdout_);
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void Child::close_stdin() {
  if (stdin_ != nullptr) std::fclose(stdin_);
  stdin_ = nullptr;
}

std::string Child::read_line() {
  std::string line;
  for (int c = std::fgetc(stdout_); c != EOF && c != '\n'; c = std::fgetc(stdout_)) line += static_cast<char>(c);
  return line;
}

void Child::write_line(const std::string& line) {
  if (stdin_ == nullptr || std::fputs((line + "\n").c_str(), stdin_) < 0 || std::fflush(stdin_) != 0)
    throw IoError(name_ + ": it does not read any more");
}

void Child::terminate() { ::kill(pid_, SIGTERM); }

void Child::finish() {
  close_stdin();
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  if (!WIFEXITED(status)) throw IoError(name_ + ": expected an exit, found signal " + std::to_string(WTERMSIG(status)));
  if (WEXITSTATUS(status) != 0) throw IoError(name_ + ": expected exit code 0, found " + std::to_string(WEXITSTATUS(status)));
}

}  // namespace millrace::app
