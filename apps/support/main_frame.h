// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <new>
#include <string>

#include <support/standard_streams.h>

namespace millrace::app {

/// For programs whose flags, one by one well formed, always make sense.
class NoUsageError : public std::exception {};

/// The exit code of `body`, or that of what it throws, which is said in one line: `bad_usage` for a UsageError, between `before` and `behind`,
/// else `failed`.
template <class UsageError = NoUsageError, class Body>
int framed(const std::string& program, Body&& body, const std::string& before = "", const std::string& behind = "") {
  try {
    return body();
  } catch (const UsageError& error) {
    complain(program, before + error.what() + behind);
    return bad_usage;
  } catch (const std::bad_alloc&) {
    complain(program, "out of memory");
  } catch (const std::exception& error) {
    complain(program, error.what());
  }
  return failed;
}

}  // namespace millrace::app
