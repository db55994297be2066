// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <millrace/tensor/error.h>

namespace millrace::bench {

/// Words that are not the command's: exit code 2.
class UsageError : public Error {
 public:
  using Error::Error;
};

/// `millrace bench cpu WORDS...`: measures, prints the table as it grows, writes the files that are asked for. The exit code: 0, or 1 when
/// a family could not be measured at all. UsageError.
int cpu_command(const std::vector<std::string>& words);

}  // namespace millrace::bench
