// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>

#include <bench/library/lstm_problem.h>
#include <bench/library/measure.h>
#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/loops/step_runner.h>
#include <millrace/runtime/program/program.h>
#include <millrace/runtime/runtime.h>

namespace millrace::bench {

/// A compiled program with its feeds, run again and again inside one task, as an embedding program would await it. `threads` are those of
/// a kernel.
class OurProgram {
 public:
  OurProgram(Program program, Feeds feeds, int threads, Backend backend = Backend::automatic);
  /// On `device`, which feeds may lie on already.
  OurProgram(Program program, Feeds feeds, std::shared_ptr<Device> device, Backend backend = Backend::automatic);
  /// The timer of one run.
  Timer timer() const;
  RunResult run_once() const;
  /// The output `name` of one run.
  LoDTensor output(const std::string& name) const;

 private:
  std::shared_ptr<Runtime> runtime_;
  Executable executable_;
  Feeds feeds_;
  Backend backend_;
};

/// The backends in which the loops of a run ran, for people.
std::string backend_of(const RunResult& result);

/// The built-in layer over the sequences of a problem, x to y, through the public API.
Program lstm_program(const LstmProblem& problem);
/// {"x": the rows with their lengths}.
Feeds feeds_of(const LstmProblem& problem);

/// One step of the built-in cell for the sequences of a problem: the fastest way that the public API has to take a single step. `weights`:
/// in bf16 or i8 (layers/narrow.h).
class OurStep {
 public:
  OurStep(const LstmProblem& problem, int threads, std::optional<DType> weights = {});
  Timer timer() const;
  /// h behind one step, [sequences, H].
  Tensor h() const;

 private:
  std::shared_ptr<StepRunner> runner_;
  std::vector<Tensor> inputs_, outputs_;
  std::vector<RowView> in_, out_;
  std::int64_t rows_;
};

}  // namespace millrace::bench
