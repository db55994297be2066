// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include <millrace/runtime/task/caller_executor.h>
#include <millrace/runtime/task/start_run.h>

namespace millrace {

/// Runs `work` as a run of its own and blocks until it has ended: its result, or its error. For main functions and
/// tests. Throws BlockingError on a thread that runs tasks of any executor: there, `co_await`.
template <class T>
T sync_wait(Executor& executor, task<T> work, std::string name = "sync_wait") {
  throw_on_runtime_thread("sync_wait");
  Running<T> running = start_run(executor, std::move(work), std::move(name));
  return running.get();
}

/// `sync_wait` on the calling thread. No other thread runs a task of `work`, and none is woken.
template <class T>
T sync_wait(task<T> work, std::string name = "sync_wait") {
  throw_on_runtime_thread("sync_wait");
  CallerExecutor executor;
  Running<T> running = start_run(executor, std::move(work), std::move(name));
  return running.get();
}

}  // namespace millrace
