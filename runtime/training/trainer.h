// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include <millrace/runtime/autodiff/append_backward.h>
#include <millrace/runtime/distributed/communicator.h>
#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/training/checkpoint.h>
#include <millrace/runtime/training/clipping.h>
#include <millrace/runtime/training/errors.h>
#include <millrace/runtime/training/optimizer.h>
#include <millrace/runtime/training/schedule.h>
#include <millrace/runtime/training/weights.h>

namespace millrace::training {

struct TrainerOptions {
  OptimizerOptions optimizer;
  Schedule schedule;
  Clipping clipping;
  std::string loss = "loss";     ///< the output that is made smaller: floating, one element
  std::set<std::string> frozen;  ///< weights that stay as they are
  MemoryPolicy memory;           ///< how backward loops get the values of their forward loops
  int threads = 1;               ///< that a kernel may split over. Results do not depend on it
  RunOptions run;

  TrainerOptions() = default;
};

/// A program whose weights are trained. `model` holds the weights as parameters and has a loss among its outputs; it is compiled at the
/// first step, with its gradients, and at the first evaluation, without, and each step is a run of the former with the weights as inputs, then one
/// update. Nothing is compiled again. The same program, options and feeds give the same bits, whatever `threads` is.
///
/// Runs block the calling thread, which must not be one of a runtime (BlockingError). Not thread-safe. Each member of a trainer that was moved from throws
/// ArgumentError.
class Trainer {
 public:
  /// ArgumentError for numbers of `options` that are out of their range and for a loss or a frozen weight that is not there, ProgramError for a loss that is no floating scalar or that depends on no
  /// weight; UnsupportedError as `append_backward`.
  explicit Trainer(const Program& model, const TrainerOptions& options = {});
  ~Trainer();
  Trainer(Trainer&&) noexcept;
  Trainer& operator=(Trainer&&) noexcept;

  struct Step {
    double loss = 0;
    double gradient_norm = 0;  ///< before it was clipped
    double learning_rate = 0;
    RunResult outputs;  ///< of the model, before the update
  };
  /// Computes loss and gradients, clips them, and updates the weights. Errors of the run; TrainingError, naming the step, for a loss or a gradient that
  /// is not finite: weights and optimizer are as before.
  Step step(Feeds feeds);

  /// The two halves of `step`, for gradients that are summed over ranks between them.
  struct Gradients {
    double loss = 0;
    Tensors by_name;
    RunResult outputs;
  };
  Gradients compute(Feeds feeds);
  /// Computes the gradients of a batch that is dealt to ranks: `feeds` are this rank's part of it, and `share` is the weight of their loss in that of the batch (the
  /// number of their sequences, or rows, over that of all). Loss and gradients are those of the batch, the same bits on all ranks; gradients
  /// leave while backward goes on (gradient_sum.h). With share 0 nothing is run, and `outputs` is empty. All ranks call it together. Errors of the
  /// communicator; another error of one rank must be made known to the others (`Communicator::abort`).
  Gradients compute(Feeds feeds, Communicator& ranks, double share);
  /// Gives the norm before clipping.
  double apply(Tensors gradients);

  /// The model's outputs with the weights as they are now.
  RunResult evaluate(Feeds feeds);

  std::int64_t steps() const;
  /// The rate of the next update.
  double learning_rate() const;
  const Tensors& weights() const;
  /// Sets the weights that are given; the others stay. ArgumentError, DTypeError or ShapeError, and nothing is changed, unless they are like those of the model.
  void set_weights(const Tensors& weights);
  /// The model with the weights as they are now, and only these of its outputs (extract.h).
  Program trained(const std::vector<std::string>& outputs) const;

  /// Adds the files `weights` and `optimizer`, and sets the step.
  void save(Checkpoint& checkpoint) const;
  /// ArgumentError, DTypeError or ShapeError when it is one of another model.
  void restore(const Checkpoint& checkpoint);

 private:
  struct State;
  State& state() const;

  std::unique_ptr<State> state_;
};

}  // namespace millrace::training
