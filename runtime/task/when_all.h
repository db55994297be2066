// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>
#include <utility>
#include <vector>

#include <millrace/runtime/task/scope.h>

namespace millrace {

/// Runs all of `works` side by side, each as a task of its own; their results in the order of `works`. The first error
/// cancels the others and is thrown once all have ended.
inline task<void> when_all(std::vector<task<void>> works) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  for (task<void>& work : works) scope.spawn(std::move(work));
  co_await scope.join();
}

template <class T>
  requires(!std::is_void_v<T>)
task<std::vector<T>> when_all(std::vector<task<T>> works) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  std::vector<Spawned<T>> handles;
  handles.reserve(works.size());
  for (task<T>& work : works) handles.push_back(scope.start(std::move(work)));
  co_await scope.join();
  std::vector<T> results;
  results.reserve(handles.size());
  for (Spawned<T>& handle : handles) {
    T value = co_await handle;
    results.push_back(std::move(value));
  }
  co_return std::move(results);
}

}  // namespace millrace
