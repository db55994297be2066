// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include <millrace/runtime/lowering/recurrence.h>
#include <millrace/runtime/program/program.h>
#include <millrace/runtime/training/live_trainer.h>
#include <millrace/streaming/config/stream_config.h>
#include <millrace/streaming/live/tick.h>

namespace millrace {

/// The learning of the sessions of a model: each from its own rows, with weights of its own, by truncated backpropagation (training::LiveTrainer).
struct Learning {
  Program program;  ///< whose losses become smaller: rows of one sequence in, and the states as inputs and outputs
  RecurrenceOptions recurrence;
  training::LiveTrainerOptions trainer;
  std::size_t sessions = 16;  ///< that may live at a time
};

/// The learning of the sessions of a program that is served with `recurrence`. Errors: those of LiveTrainer for what cannot be learned; UnsupportedError for inner sequences, a graph that is one step and
/// inputs that never change.
Learning make_learning(const Program& program, const LearnConfig& config, const RecurrenceOptions& recurrence);

/// One sequence that learns. Result t of the sequence is that of the weights before row t was learned, so its bits depend on the rows of the sequence
/// alone. Not thread-safe; it may live on a thread that runs tasks.
class LiveLearner {
 public:
  explicit LiveLearner(std::shared_ptr<const Learning> how) : how_(std::move(how)) {}

  /// Learns the row of a tick that has no other sequence, and what the tick starts. After an update the recurrence with the new weights; else null. The errors of
  /// LiveTrainer. Blocks while it updates.
  std::shared_ptr<const Recurrence> learn(const Recurrence& recurrence, const Tick& tick);

 private:
  std::shared_ptr<const Learning> how_;
  std::optional<training::LiveTrainer> trainer_;
};

}  // namespace millrace
