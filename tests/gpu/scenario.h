// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace millrace::testing {

/// The work of a process of its own for a test: a device whose kernel trapped is lost to its process, and a rank of NCCL is a process. A static
/// of a file of tests; checks of doctest, and exceptions, fail the process.
struct Scenario {
  Scenario(const std::string& name, std::function<void()> work);
};

/// This program once more, playing one scenario; a name that no scenario has fails it.
class ScenarioProcess {
 public:
  /// `variables`: NAME=value each, before those of this process's environment.
  explicit ScenarioProcess(const std::string& scenario, std::vector<std::string> variables = {});
  /// Waits for its end: its exit code (0: all checks passed), minus a signal's number, or −1000 when it had to be killed. To be called once.
  int ended_with(std::chrono::seconds limit = std::chrono::minutes(1));

 private:
  pid_t process_ = -1;
};

}  // namespace millrace::testing
