// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <millrace/runtime/distributed/communicator.h>
#include <millrace/runtime/program/value.h>
#include <millrace/runtime/task/scope.h>
#include <millrace/runtime/task/task.h>

/// Values of a program as messages between two ranks.
namespace millrace::detail {

/// One end of a value's way. `host` is where the words that describe it are, `stream` where its elements are packed and unpacked.
struct ValueLink {
  Communicator* communicator = nullptr;
  int from = 0;
  int to = 0;
  StreamRef host;
  StreamRef stream;

  ValueLink(Communicator& with, int sender, int receiver, StreamRef words, StreamRef elements)
      : communicator(&with), from(sender), to(receiver), host(words), stream(elements) {}
};

/// Tensors with levels, order and iteration; lists; orders; optionals that hold nothing; arrays, whose slots `rest` goes on to carry in the order of
/// their numbers. UnsupportedError for an array of no fixed size. The objects that `link` names must outlive the task and `rest`.
task<void> send_value(ValueLink link, Value value, Scope* rest);
/// CommunicationError for what is no such message.
task<Value> receive_value(ValueLink link, Scope* rest);

}  // namespace millrace::detail
