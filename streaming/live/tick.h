// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <millrace/tensor/tensor.h>

namespace millrace {

/// A place in the state slab. Given to a session when it starts, taken back when it ends.
using Slot = std::int64_t;

/// One step for each session that is ready, and what has to happen to the slab before it.
struct Tick {
  /// Slots whose state begins anew, from these values of the recurrence's `given` (an empty tensor: zeros).
  struct Start {
    Slot slot = 0;
    std::vector<Tensor> given;
    std::vector<Tensor> states{};  ///< instead of `given`, where a sequence goes on: one per state of the recurrence
  };
  std::vector<Start> starts;
  std::vector<Slot> slots;     ///< row i of every input belongs to slots[i]; no slot twice
  std::vector<Tensor> inputs;  ///< one per live input of the recurrence: [N, its extents]

  /// An inner sequence of a slot opens or closes. A slot that is here is not among `slots`.
  struct Crossing {
    Slot slot = 0;
    std::size_t boundary = 0;    ///< of the recurrence's
    std::vector<Tensor> inputs;  ///< one per input of the boundary: [1, its extents]
  };
  std::vector<Crossing> crossings{};
  /// Slots whose states are wanted, behind all else. A slot that is here is neither among `slots` nor `crossings`.
  std::vector<Slot> saves{};
};

/// The results of a tick. A row that failed has an error and no outputs; the others are not touched by it.
struct TickResult {
  struct Failure {
    std::size_t row = 0;
    std::exception_ptr error;
  };
  std::vector<Slot> slots;
  std::vector<Tensor> outputs;    ///< one per output of the recurrence: [N, its extents], on the host; rows that failed hold zeros
  std::vector<Failure> failures;  ///< in the order of rows

  /// The result of a crossing: the outputs of its boundary, [1, its extents] each, on the host; or why it failed.
  struct Crossed {
    std::vector<Tensor> outputs;
    std::exception_ptr error;
  };
  std::vector<Crossed> crossed{};  ///< one per crossing of the tick

  /// The states of a slot, on the host; or why they cannot be had.
  struct Saved {
    std::vector<Tensor> states;
    std::exception_ptr error;
  };
  std::vector<Saved> saved{};  ///< one per save of the tick

  /// Empties the result for a tick that is about to run: the memory of `outputs` stays, and failures need none.
  void begin(const Tick& tick);

  /// Set when the whole tick failed, by an error that is not that of one row: nothing else of the result counts.
  std::exception_ptr error{};

  /// Set when the place is gone, and with it the state of every sequence there: no tick will succeed any more.
  std::exception_ptr lost{};
};

}  // namespace millrace
