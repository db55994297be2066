// SPDX-License-Identifier: Apache-2.0
#include <gpu/scenario.h>

#include <csignal>
#include <cstdlib>
#include <map>
#include <thread>

#include <doctest/doctest.h>
#include <spawn.h>
#include <sys/wait.h>

extern char** environ;

namespace millrace::testing {
namespace {

constexpr const char* variable = "MILLRACE_TEST_SCENARIO";

std::map<std::string, std::function<void()>>& scenarios() {
  static std::map<std::string, std::function<void()>> all;
  return all;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> made;
  for (std::string& text : texts) made.push_back(text.data());
  return made;
}

}  // namespace

Scenario::Scenario(const std::string& name, std::function<void()> work) { scenarios()[name] = std::move(work); }

ScenarioProcess::ScenarioProcess(const std::string& scenario, std::vector<std::string> variables) {
  variables.push_back(variable + ("=" + scenario));
  std::vector<std::string> words{"test_gpu", "--test-case=a process that was started for a scenario*"};
  std::vector<char*> arguments = pointers(words), environment = pointers(variables);
  for (char** inherited = environ; *inherited != nullptr; ++inherited) environment.push_back(*inherited);
  arguments.push_back(nullptr);
  environment.push_back(nullptr);
  REQUIRE(::posix_spawn(&process_, "/proc/self/exe", nullptr, nullptr, arguments.data(), environment.data()) == 0);
}

int ScenarioProcess::ended_with(std::chrono::seconds limit) {
  const auto begin = std::chrono::steady_clock::now();
  int status = 0;
  while (::waitpid(process_, &status, WNOHANG) == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (std::chrono::steady_clock::now() - begin < limit) continue;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, &status, 0);
    return -1000;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST_CASE("a process that was started for a scenario plays it, and fails when nobody wrote it") {
  if (const char* scenario = std::getenv(variable)) {
    REQUIRE(scenarios().contains(scenario));
    return scenarios().at(scenario)();
  }
  CHECK(ScenarioProcess("nobody wrote this").ended_with() == 1);
}

}  // namespace millrace::testing
