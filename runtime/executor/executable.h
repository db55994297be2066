// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <millrace/runtime/lowering/loop_groups.h>
#include <millrace/runtime/program/program.h>
#include <millrace/tensor/device.h>

namespace millrace {

struct CompiledProgram;

/// A program made ready for one device: ops resolved, constants folded, weights placed and packed, streams chosen, and for each loop the
/// backends that may run it. Immutable and shared by copy; any number of runs may use it at the same time. Each member of
/// an Executable that was moved from, and a run of it, throws ArgumentError.
class Executable {
 public:
  /// ProgramError when the program holds an op that no device can run. `device` null: a CPU device of its own with one thread.
  explicit Executable(Program program, std::shared_ptr<Device> device = nullptr);

  /// The program as it runs: constants are folded, results that nobody reads are gone.
  const Program& program() const;
  Device& device() const;
  /// Loops of block 0 that may run concurrently (lowering/loop_groups.h).
  const std::vector<LoopGroup>& loop_groups() const;
  /// Internal to the executor: the executable of runs that ask for iterations, or name a backend. It is this one, unless ops stand in the place of loops
  /// (lowering/join_filters.h, join_matrices.h). Then the program, which is kept with its weights, is compiled again for the first such run.
  Executable with_loops() const;
  /// Internal to the executor (compiled_program.h).
  const CompiledProgram& compiled() const {
    if (compiled_ == nullptr) fail_moved();
    return *compiled_;
  }

 private:
  explicit Executable(std::shared_ptr<const CompiledProgram> compiled) : compiled_(std::move(compiled)) {}
  [[noreturn]] static void fail_moved();

  std::shared_ptr<const CompiledProgram> compiled_;
};

}  // namespace millrace
