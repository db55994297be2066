// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include <millrace/runtime/autodiff/append_backward.h>
#include <millrace/runtime/training/batches.h>
#include <millrace/runtime/training/clipping.h>
#include <millrace/runtime/training/csv_file.h>
#include <millrace/runtime/training/model_spec.h>
#include <millrace/runtime/training/optimizer.h>
#include <millrace/runtime/training/ragged_file.h>
#include <millrace/runtime/training/schedule.h>

namespace millrace::training {

/// A training job, as a TOML file says it. Values behind `=` are the defaults; of keys that are required, and of optional ones, they are examples.
///
///     seed = 1
///     epochs = 100                  # required
///
///     [data]                        # .ts (ts_file.h), .npz or .safetensors (ragged_file.h), .csv or .tsv (csv_file.h), or a text by its bytes
///     train = "a_TRAIN.ts"          # required: a file; relative names begin in the folder of the data (--data), else in that of this file
///     test = "a_TEST.ts"            # optional
///     validation = 0.0              # the share of the training sequences that is held out (above 0: at least one, and not all), or the name of a file
///     format = "auto"               # by the name's ending; "text" for any other file
///     targets = "sequence"          # "row"; "tokens": a sequence for each sequence. A text has "row"
///     standardize = false           # x becomes (x − mean) / deviation of the training rows, inside the model
///     length = 100                  # of the sequences that a text, or a series, is cut into; nothing else has it
///     sequence_column = "sequence"  # of .csv: the column that says to which sequence a row belongs
///     target_columns = "label"      # of .csv: the column of classes, or, with "mse", columns of numbers: ["y", "z"]
///     feature_columns = []          # of .csv: all others. The only one is a column of words where the first layer is an embedding
///     separator = ","               # of .csv; a .tsv has tabs
///     series = false                # of .csv: no column of sequences, the file is one series
///
///     [[layer]]                     # any number, in their order
///     kind = "lstm"                 # required: lstm, gru, rnn, linear, embedding
///     units = 100                   # required
///     direction = "forward"         # forward, reverse, bidirectional: of recurrent ones
///     activation = "relu"           # optional, of linear ones: any op of one input
///     dropout = 0.0                 # behind it, while it is trained
///
///     [model]
///     loss = "cross_entropy"        # or "mse"
///     pooling = "last"              # last, average, max: how a sequence becomes one row, where targets are for sequences
///     init = "default"              # of matrices: xavier_uniform, xavier_normal, he_uniform, he_normal, orthogonal, …
///     recurrent_init = "default"    # the same for recurrent ones
///     init_scale = 1.0              # their gain, bound or deviation
///     forget_bias = 1.0             # with one of these
///     start = "other.safetensors"   # weights to begin with, by their names: those of another job, say; optional, without an init
///
///     [decoder]                     # with targets = "tokens", and required there: a GRU with attention over the rows of the last layer
///     units = 128                   # required
///     embedding = 64                # required: numbers that a token is read as
///     beam = 4                      # hypotheses of the beam search that model.mr does and that is tested
///     max_length = 100              # tokens of a hypothesis at most, the end included
///     length_penalty = 0.0          # hypotheses are ranked by score / lengthᵃ
///
///     [training]
///     batch_sequences = 32          # 0: no bound
///     batch_rows = 0
///     optimizer = "adam"            # adam, adamw, sgd
///     learning_rate = 0.001
///     momentum = 0.0                # sgd
///     nesterov = false
///     beta1 = 0.9                   # adam, adamw; beta2 = 0.999, epsilon = 1e-8 (above 0)
///     weight_decay = 0.0
///     schedule = "constant"         # constant, step, exponential, linear, cosine
///     warmup_steps = 0
///     decay_steps = 0               # linear, cosine; 0: to the end of the job
///     every_steps = 1000            # step, exponential
///     factor = 0.1
///     least_rate = 0.0              # linear, cosine: up to the learning_rate
///     clip_norm = 0.0               # 0: no bound
///     clip_value = 0.0
///     weights = "f32"               # bf16: matrices of products in bf16, each with an f32 master copy in the optimizer's state
///     memory = "keep"               # keep, recompute, recompute(32), spill (files in TMPDIR), truncate(20, 60): how backward loops get the values of their forward loops
///
///     [checkpoint]
///     every_steps = 0               # 0: by time alone
///     every_seconds = 30.0          # 0: by steps alone
///
///     [output]
///     folder = "out"                # relative to the folder that the job is started in
struct TrainConfig {
  enum class Format : std::uint8_t { by_ending, text };

  std::string name;  ///< of the file, for errors
  std::string text;  ///< of the file
  /// The values, by `[table] key`, defaults included, of the keys that the trained weights depend on: all but epochs, seed, memory, checkpoints and the output.
  /// Files that mean the same have the same values.
  std::map<std::string, std::string> meaning;
  std::uint64_t seed = 1;
  std::int64_t epochs = 0;
  std::string train, test, validation_file;
  double validation = 0;
  Format format = Format::by_ending;
  Targets targets = Targets::sequence;
  bool standardize = false;
  std::int64_t length = 100;
  CsvForm csv;           ///< without `per_row`, `numbers`, `words` and `length`, which other keys say
  bool has_csv = false;  ///< one of its keys says other than its default
  ModelSpec model;
  std::string start;  ///< a .safetensors file of weights; empty: none
  BatchSize batch;
  OptimizerOptions optimizer;
  Schedule schedule;  ///< with `decay_steps` 0: to the end of the job
  Clipping clipping;
  MemoryPolicy memory = {};
  bool narrow = false;  ///< weights in bf16
  std::int64_t checkpoint_steps = 0;
  double checkpoint_seconds = 30;
  std::string folder = "out";
};

/// Reads the text, which is UTF-8. ParseError, one line `NAME:LINE: …`, for bad TOML, a letter that is not ASCII outside comments and strings in double
/// quotes, an unknown key, a wrong type, a number out of range, a key that does nothing beside the others and does not say its default (such as a momentum
/// of adam). UnsupportedError without the part toml.
TrainConfig parse_train_config(std::string_view text, const std::string& name);
/// Reads a regular file of at most 1 MiB. IoError when it cannot be read.
TrainConfig read_train_config(const std::filesystem::path& path);

}  // namespace millrace::training
