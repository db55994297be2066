// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include <millrace/runtime/program/program.h>
#include <millrace/runtime/program/value.h>
#include <millrace/tensor/device.h>

namespace millrace {

class Tracer;

/// A straight-line program made ready for one device: ops resolved, constants folded, weights placed and packed, streams chosen. No op of it
/// waits: there are no loops, branches and arrays, and an input that an op reads on the host never changes. Immutable and shared by copy; any
/// number of threads may run it at the same time.
class StraightProgram {
 public:
  /// UnsupportedError names the op that may wait. `device` null: a CPU device of its own with one thread.
  explicit StraightProgram(Program program, std::shared_ptr<Device> device = nullptr);

  const Program& program() const noexcept;

  /// Runs the ops in order in the calling thread, without a task. `inputs` and the result follow the program's inputs and outputs. On a
  /// device the outputs may still be under way. ArgumentError: another number of inputs. Errors of ops keep their type and say which op.
  std::vector<Value> run(const std::vector<Value>& inputs, Tracer* tracer = nullptr) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace millrace
