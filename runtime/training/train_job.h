// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <millrace/runtime/distributed/communicator.h>
#include <millrace/runtime/training/checkpoint.h>
#include <millrace/runtime/training/metrics.h>
#include <millrace/runtime/training/train_config.h>

namespace millrace {
class Tracer;
}

namespace millrace::training {

struct TrainJobOptions {
  bool resume = false;                ///< from the newest whole checkpoint; without one: an error
  std::optional<std::uint64_t> seed;  ///< in the place of the configuration's; so below
  std::optional<std::int64_t> epochs;
  std::optional<std::string> folder;
  std::optional<MemoryPolicy> memory;  ///< a checkpoint may be resumed under another one, but for truncations, which change gradients
  Tracer* tracer = nullptr;            ///< of the steps, such as one with KeptMemory
  std::optional<std::filesystem::path> data;  ///< the folder in which relative names of data begin
  int threads = 1;                            ///< results do not depend on it
  std::string build;                          ///< of the program that trains, for the checkpoint
  const std::atomic<bool>* stop = nullptr;    ///< set by others: a checkpoint is written, and the job ends with a StoppedError
  /// The ranks of the job, all of which run it with the same configuration and data; null: one. Each batch is dealt to them by rows. Rank 0 writes the
  /// files, which the others must be able to read for `resume`, and it alone tells its observer.
  Communicator* ranks = nullptr;

  TrainJobOptions() = default;
};

/// Learns of a job's progress, on the thread that runs it.
class TrainObserver {
 public:
  TrainObserver() = default;
  TrainObserver(const TrainObserver&) = delete;
  TrainObserver& operator=(const TrainObserver&) = delete;
  virtual ~TrainObserver() = default;

  struct Progress {
    std::int64_t epoch = 0, epochs = 0;  ///< from 1 on
    std::int64_t batch = 0, batches = 0;
    Score train;  ///< of the epoch so far
    double sequences_per_second = 0;
    double seconds_left = 0;
  };
  /// The data as it was read.
  virtual void begins(const std::string& description) = 0;
  virtual void after_batch(const Progress& progress) = 0;
  virtual void after_epoch(const EpochMetrics& metrics, const Progress& progress) = 0;
  /// Something worth a line, such as a checkpoint that was skipped.
  virtual void note(const std::string& text) = 0;
};

struct TrainResult {
  FinalMetrics final;
  std::vector<EpochMetrics> epochs;
  std::filesystem::path folder;
  std::vector<std::string> files;  ///< that were written there
};

/// Reads the data, trains, keeps the weights of the best validation (without validation: the last ones), tests them and writes to the job's folder
///
///     metrics.jsonl       a line for each epoch, and last the final one, which holds the test
///     curves.svg
///     alphabet.npy        of a text: u8 [K], the byte of each class
///     model.mr + model.safetensors, model.onnx     x → scores of each sequence (or row); of tokens: the hypotheses of a beam search
///     live.mr + live.safetensors                   the same after each row, to be served live, where the layers allow it
///     checkpoints/
///
/// Two jobs with one configuration, seed, data and number of ranks write the same bits, resumed or not, whatever the threads; jobs of different numbers of
/// ranks agree to rounding, and a checkpoint may be resumed by another number. With several ranks, an error of one of them aborts the others. Errors of the readers; ArgumentError,
/// ShapeError … for data that fit neither one another nor the model; TrainingError for a loss that is not finite (it names epoch and batch), a
/// checkpoint of another job and a folder in which another job trains; IoError for a file that cannot be written. Files written before stay. A job that ends well
/// removes the files above that an earlier job left in the folder and that it does not write itself, but none that it read.
///
/// A job that is asked to stop ends behind the same step on all ranks, once the checkpoint of rank 0 has reached the disk: with a StoppedError.
TrainResult run_train_job(const TrainConfig& config, const TrainJobOptions& options, TrainObserver& observer);

}  // namespace millrace::training
