// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/runtime/array/tensor_array.h>
#include <millrace/runtime/distributed/communicator.h>
#include <millrace/runtime/task/scope.h>
#include <millrace/tensor/device.h>

/// Arrays whose slots live elsewhere: a layer writes slots on its device or rank, and the next one reads them on its own, so that layer
/// l works on step t while layer l − 1 is at t + 1. A task of `scope` carries the slots; the scope joins it.
///
/// Slots go in order from 0, each as soon as its elements are there: a point that fails fails the slots here, not a stream that others use.
/// LoD, order, size, `close` and back-pressure go along: an array that is a window bounds what is under way, and the task is one of its
/// readers. When the producer fails, is cancelled or dies, the slots that have not come fail by name, with the type of the error where it is
/// known here; other arrays and runs go on. A slot that no task can write any more is an error of its readers there, and none of the
/// task that carries it; the slots behind it do not come.
namespace millrace {

/// `TensorArray there = array.on(OnPlace(scope, device));`: an array of the same kind, size and order whose slots are on `device`, copied on
/// its streams. Of a window, it is a window of `window` slots. `device` must outlive the scope.
class OnPlace {
 public:
  OnPlace(Scope& scope, Device& device, std::int64_t window = 2) noexcept : scope_(scope), device_(device), window_(window) {}
  TensorArray carry(const TensorArray& array) const;

 private:
  Scope& scope_;
  Device& device_;
  std::int64_t window_;
};

/// `TensorArray states = TensorArray(n).named("states").on(OnRank(scope, communicator, 0, 1, stream, 4));` on rank 0, which writes, and on
/// rank 1, which reads: the same handle, whose `write` sends and whose `read` receives, in runs of `run` steps (the last one shorter). Of an array
/// of fixed size, a run takes along the steps that were written while the run before was under way, up to `most` steps or a megabyte.
/// Both give the array the same name and kind. `stream` is where elements are packed, and the place where slots arrive; it and `communicator`
/// must outlive the scope. When the reading rank dies, the sending task fails, and with it its scope.
///
/// ArgumentError: a rank that is neither of the two, a run below 1, or a name that was already used between the two.
class OnRank {
 public:
  OnRank(Scope& scope, Communicator& communicator, int from, int to, StreamRef stream, std::int64_t run = 1, std::int64_t most = 1) noexcept
      : scope_(scope), communicator_(communicator), from_(from), to_(to), stream_(stream), run_(run), most_(most) {}
  TensorArray carry(const TensorArray& array) const;

 private:
  Scope& scope_;
  Communicator& communicator_;
  int from_;
  int to_;
  StreamRef stream_;
  std::int64_t run_;
  std::int64_t most_;
};

}  // namespace millrace
