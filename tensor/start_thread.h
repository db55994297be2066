// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include <millrace/tensor/error.h>

namespace millrace {

/// A thread that runs `body`. ThreadError, which names `what`, where the system starts none: its limit of threads or memory is reached. A container of
/// threads has room reserved before one starts: a std::thread that runs and is destroyed ends the process.
template <class F>
std::thread start_thread(const std::string& what, F&& body) {
  try {
    return std::thread(std::forward<F>(body));
  } catch (const std::system_error& error) {
    throw ThreadError(what + ": expected a thread, found that the system starts none: " + error.code().message());
  }
}

}  // namespace millrace
