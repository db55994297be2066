// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <millrace/runtime/array/tensor_array.h>
#include <millrace/runtime/task/thread_executor.h>
#include <millrace/runtime/training/trainer.h>

namespace millrace::training {

struct LiveTrainerOptions {
  TrainerOptions trainer;         ///< `trainer.loss` names the loss that is added to the model
  std::string losses = "losses";  ///< output of the model: a floating loss for each row, [rows] or [rows, 1]
  std::vector<std::pair<std::string, std::string>>
      states;            ///< input : output. The values that the model carries from row to row, one row each
  std::int64_t k1 = 16;  ///< rows between two updates
  std::int64_t k2 = 16;  ///< rows that a gradient reaches back: a multiple of k1

  LiveTrainerOptions() = default;
};

/// Trains a model on a sequence that is still arriving, by truncated backpropagation through time (Williams and Peng, 1990): behind every k1 rows one
/// update, whose loss is the mean of `losses` over these k1 rows, and whose gradient reaches back over the last k2 rows (fewer near the start), as far as
/// the state in front of them. That state is the one that the weights of its time gave. Memory is that of k2 rows and k2 / k1 states, however long the
/// sequence is. Rows behind the last multiple of k1 change nothing.
///
/// The model takes rows of one sequence: inputs with one level (its rows), inputs [rows, …] without LoD, such as targets, and the states, which are zeros
/// at the start. Calls block the calling thread, which must not be one of a runtime (BlockingError). Not thread-safe.
class LiveTrainer {
 public:
  using Row = std::map<std::string, Tensor>;

  /// ArgumentError for an output or a state that is not there, for k1 below 1, and for k2 that is no multiple of k1; ShapeError for a state of unknown
  /// extents behind its first axis; else as Trainer.
  LiveTrainer(const Program& model, const LiveTrainerOptions& options);

  /// One row of each input, without the axis of rows; it is copied. Gives the update that it led to, if it did. ArgumentError, DTypeError or ShapeError for a row that
  /// does not fit, which changes nothing; errors of `Trainer::step`, behind which the sequence begins anew.
  std::optional<Trainer::Step> push(const Row& row);

  /// Reads slot after slot of an array for each input, a row each, until one of them is closed. Meant for windows: their writers wait while this trains,
  /// and slots leave memory when they are read. Rows are not copied. `after` sees each update. The arrays have
  /// registered writers (`TensorArray::feeder`). A slot without a writer is an error, and so is an array that failed.
  void learn(const std::map<std::string, TensorArray>& rows, const std::function<void(const Trainer::Step&)>& after = {});

  /// A new sequence begins: from `states`, [1, …] by the names of the model's inputs, and zeros for those that are left out; no gradient reaches back behind
  /// this. Weights and optimizer stay. ArgumentError for a name of no state, DTypeError or ShapeError for a state that does not fit; nothing is changed then.
  void reset(const Tensors& states = {});

  /// Rows of the sequence so far.
  std::int64_t rows() const noexcept { return rows_; }
  Trainer& trainer() noexcept { return trainer_; }
  const Trainer& trainer() const noexcept { return trainer_; }

 private:
  struct Input {
    std::string name;
    DType dtype = DType::f32;
    DDim row;
    bool ragged = false;  // has a level
  };
  void check(const Row& row) const;
  std::optional<Trainer::Step> add(const Row& row);
  Trainer::Step update();
  Tensor last_rows(const Input& input) const;

  LiveTrainerOptions options_;
  std::vector<Input> inputs_;
  Trainer trainer_;
  std::map<std::string, std::deque<Tensor>> kept_;  // the last rows, at most k2
  Tensors zeros_;                                   // states at the start
  std::deque<Tensors> states_;                      // at multiples of k1: in front of the kept rows first
  std::int64_t rows_ = 0;
  ThreadExecutor executor_;
};

}  // namespace millrace::training
