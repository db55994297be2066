// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/executor/run_program.h>

#include "support/drive.h"

namespace millrace::testing {

/// The ops that `building` appends, as a program.
inline Program built_program(const std::function<void()>& building) {
  Program program;
  const build::Guard guard(program);
  building();
  return program;
}

/// Builds a program whose output "y" is what `make` gives, and runs it.
inline LoDTensor built(const std::function<build::Var()>& make, Feeds feeds = {}) {
  const RunResult result = run_fifo(run(built_program([&] { build::output("y", make()); }), std::move(feeds)));
  return result["y"];
}

template <class T>
std::vector<T> built_values(const std::function<build::Var()>& make, Feeds feeds = {}) {
  return built(make, std::move(feeds)).tensor().to_vector<T>();
}

/// The message of the ProgramError that building throws; empty when it does not.
inline std::string build_refusal(const std::function<void()>& building) {
  Program program;
  const build::Guard guard(program);
  try {
    building();
  } catch (const ProgramError& error) {
    return error.what();
  }
  return {};
}

/// The message of the `E` that building or running throws; empty when it does not.
template <class E>
std::string run_failure(const std::function<build::Var()>& make, Feeds feeds = {}) {
  try {
    built(make, std::move(feeds));
  } catch (const E& error) {
    return error.what();
  }
  return {};
}

/// Whether `message` holds every part.
inline bool says(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    if (message.find(part) == std::string::npos) return false;
  return !message.empty();
}

}  // namespace millrace::testing
