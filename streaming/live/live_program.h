// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <millrace/runtime/array/tensor_array.h>
#include <millrace/runtime/runtime.h>
#include <millrace/runtime/task/async_task.h>

namespace millrace {

struct LiveProgramOptions {
  Feeds feeds;                     ///< inputs that are there from the start
  std::int64_t window = 0;         ///< slots of a live input that wait unread, before `push` waits; 0: any number, and all stay readable
  std::int64_t output_window = 0;  ///< slots of an output array that wait unread, before the program waits; 0: any number
  RunOptions run;

  LiveProgramOptions() = default;
};

/// One run of any program, also one that is no recurrence, over rows that are still arriving. Its inputs that are arrays and are not fed from the start
/// are open: those that the program only reads are live inputs (`push`), a slot at a time; those that it writes are read while it runs (`next`). A loop
/// that goes on while `tensor_array_has(i)` turns as rows arrive. With a window each slot is read once, and memory stays constant.
///
/// Waiting for rows is no deadlock: before `finish` only waits in a circle are, behind it all that nobody will bring about, which fails the run by name (with an `output_window` nothing is
/// taken for one). Destroying it cancels the run. A runtime with threads of its own may go first; with a context or executor of the embedder's it outlives the live program. Thread-safe.
class LiveProgram {
 public:
  /// ArgumentError: a program without an input that is an array and is not fed; a window below 0.
  explicit LiveProgram(Runtime& runtime, Program program, LiveProgramOptions options = {});
  ~LiveProgram();
  LiveProgram(const LiveProgram&) = delete;
  LiveProgram& operator=(const LiveProgram&) = delete;

  /// The next slot of a live input; done when it has room. ArgumentError lists the live inputs; DTypeError, ShapeError and LoDError for another slot than the program
  /// declares; ClosedError after `finish`, or once the run has ended; the run's error once it failed, behind `finish` too. A push that is cancelled while it waits leaves no gap.
  task<void> push(std::string input, LoDTensor slot) const;
  /// No further slot of any live input.
  void finish() const;
  /// The next slot of an array that the program writes, once it is written; nothing when there will be none. One reader an array. After a call that was cancelled
  /// the next one gives the same slot.
  task<std::optional<LoDTensor>> next(std::string output) const;
  /// The program's outputs, once it has ended; its error.
  task<RunResult> result() const;
  void cancel() const noexcept;

  template <class Token>
  auto async_push(std::string input, LoDTensor slot, Token&& token) const {
    return async_start(executor(), push(std::move(input), std::move(slot)), std::forward<Token>(token), "push");
  }
  template <class Token>
  auto async_next(std::string output, Token&& token) const {
    return async_start(executor(), next(std::move(output)), std::forward<Token>(token), "next");
  }
  template <class Token>
  auto async_result(Token&& token) const {
    return async_start(executor(), result(), std::forward<Token>(token), "result");
  }

 private:
  class State;
  Executor& executor() const;
  std::shared_ptr<const void>
      means_;  // of the runtime, which may go first; no frame of the run holds them, so that a runtime that goes last ends its threads
  std::shared_ptr<State> state_;
};

}  // namespace millrace
