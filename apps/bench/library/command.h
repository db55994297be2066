// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <bench/library/registry.h>
#include <millrace/tensor/error.h>

namespace millrace::bench {

/// Words that are not the command's: exit code 2.
class UsageError : public Error {
 public:
  using Error::Error;
};

/// The rows of `millrace bench NAME`, and the flags that it takes besides those of all: --only, --json, --plot, --quick, --python.
struct Bench {
  const char* usage;      ///< above the list of families
  const char* usage_end;  ///< below it
  std::span<const Family> families;
  std::function<void(Context&)> begin;  ///< called once, when the words are understood
  std::function<std::string()> device;  ///< for people: what the figures are of. Called behind `begin`
  std::map<std::string, std::function<void(Context&, const std::string&)>> flags = {};
};

/// Measures, prints the table as it grows, writes the files that are asked for. The exit code: 0, or 1 when a family could not be measured at
/// all. UsageError.
int bench_command(const Bench& bench, const std::vector<std::string>& words);

/// A flag's value as a number of [least, most], or UsageError.
int number_of(const std::string& flag, const std::string& text, int least, int most);
/// The parts between commas.
std::vector<std::string> parts_of(const std::string& text);
/// A path in the build folder of `./dev`, seen from the programs (build/release/bin) or from the root of the tree; else "".
std::string in_build(const std::string& programs, const std::string& name);

}  // namespace millrace::bench
