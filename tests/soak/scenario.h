// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <millrace/runtime/task/task.h>
#include <millrace/tensor/device.h>

namespace millrace::soak {

/// The results of a scenario: compared bit for bit with the same scenario on one stream, first in, first out.
using Values = std::vector<float>;

/// A program of at least 6 tasks over arrays whose work is spread over the streams of `device`. `make` is called once for each schedule.
struct Scenario {
  const char* name;
  task<Values> (*make)(Device* device);
  bool deadlocks = false;  ///< it must end in a DeadlockError
};

/// In a fixed order: schedule number i takes scenario i modulo their number.
const std::vector<Scenario>& scenarios();

}  // namespace millrace::soak
