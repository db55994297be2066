// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include <millrace/runtime/files/file.h>
#include <support/bytes.h>

extern char** environ;

namespace millrace::testing {

/// The command under test, in a process of its own; stdout and stderr go to files. Killed when this goes away before it ended.
class Process {
 public:
  explicit Process(std::vector<std::string> arguments, const std::string& stdout_to = "") {
    const char* bin = std::getenv("MILLRACE_BIN");
    arguments.insert(arguments.begin(), std::string(bin == nullptr ? "build/release/bin" : bin) + "/millrace");
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, stdout_to.empty() ? (folder_ / "out").c_str() : stdout_to.c_str(),
                                       O_CREAT | O_WRONLY, 0600);
    ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, (folder_ / "err").c_str(), O_CREAT | O_WRONLY, 0600);
    std::vector<char*> words;
    for (std::string& word : arguments) words.push_back(word.data());
    words.push_back(nullptr);
    const int error = ::posix_spawn(&pid_, arguments[0].c_str(), &actions, nullptr, words.data(), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    INFO("program ", arguments[0]);
    REQUIRE(error == 0);
  }
  ~Process() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void signal(int number) { ::kill(pid_, number); }
  /// Waits for its end: the exit code, or minus the signal that ended it.
  int wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  std::string out() const { return std::filesystem::exists(folder_ / "out") ? read_file(folder_ / "out") : ""; }
  std::string err() const { return read_file(folder_ / "err"); }
  /// Waits until stdout holds a whole line, for at most 20 s.
  std::string first_line() const {
    for (int iteration = 0; iteration < 2000; ++iteration) {
      const std::string text = out();
      if (const auto end = text.find('\n'); end != text.npos) return text.substr(0, end);
      ::usleep(10000);
    }
    FAIL("no line on stdout; stderr: ", err());
    return {};
  }

 private:
  ScratchFolder folder_;
  pid_t pid_ = -1;
};

struct Ended {
  int code = 0;
  std::string out;
  std::string err;
};

inline Ended millrace_command(std::vector<std::string> arguments, const std::string& stdout_to = "") {
  Process process(std::move(arguments), stdout_to);
  Ended ended;
  ended.code = process.wait();
  ended.out = process.out();
  ended.err = process.err();
  return ended;
}

/// Checks that it failed with this code and said why in one line on stderr, which holds each of `words`.
inline void check_refused(const std::vector<std::string>& arguments, int code, const std::vector<std::string>& words) {
  const Ended ended = millrace_command(arguments);
  INFO("stderr: ", ended.err);
  CHECK(ended.code == code);
  CHECK(ended.out == "");
  CHECK(ended.err.starts_with("millrace: "));
  CHECK(ended.err.find('\n') == ended.err.size() - 1);
  for (const std::string& word : words) {
    INFO("expected ", word);
    CHECK(ended.err.find(word) != std::string::npos);
  }
}

}  // namespace millrace::testing
