// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <millrace/runtime/layers/recurrent.h>
#include <millrace/runtime/training/dataset.h>
#include <millrace/runtime/training/initialiser.h>

namespace millrace::training {

struct LayerSpec {
  enum class Kind : std::uint8_t { lstm, gru, rnn, linear, embedding };
  Kind kind = Kind::lstm;
  std::int64_t units = 0;  ///< H of each direction; columns of a linear layer or an embedding
  layers::Direction direction = layers::Direction::forward;
  std::string activation;  ///< behind a linear layer: the name of an op of one input, or empty
  double dropout = 0;      ///< behind the layer, while it is trained: the share of elements that are 0; the others times 1 / (1 − dropout)
};

/// A stack of layers over ragged rows, and a linear layer to the targets at its end.
struct ModelSpec {
  enum class Pooling : std::uint8_t { last, average, max };
  enum class Loss : std::uint8_t { cross_entropy, mse };
  std::vector<LayerSpec> layers;
  Loss loss = Loss::cross_entropy;
  /// Targets for sequences: what is behind the last recurrent layer sees one row for each sequence, of its states (`last`: both directions
  /// side by side) or of its rows.
  Pooling pooling = Pooling::last;
  LayerInit::Choice init;
  std::uint64_t seed = 1;
};

/// Of the data that a model is for.
struct DataShape {
  DType dtype = DType::f32;   ///< of the rows; i64: numbers of words
  std::int64_t features = 0;  ///< of a row; of words: how many there are
  std::int64_t outputs = 0;   ///< classes, or values of a target
  bool per_row = false;
  std::optional<FeatureScale> scale;  ///< rows are (x − mean) / deviation first, inside the model
};
/// ShapeError, DTypeError: rows of more than one axis, and others that no model here is for.
DataShape shape_of(const Dataset& data);

enum class ModelUse : std::uint8_t {
  train,  ///< inputs x, target and, with dropout, sample (i64 [sequences]: their numbers) and epoch (i64); outputs loss, scores
  score,  ///< the same without dropout
  infer,  ///< input x; outputs scores [N or rows, K] and, of classes, probabilities
  live    ///< the same with a row of scores for each row of x: those of the sequence that ends there
};

/// The model as a program with weights that `spec.seed` begins. Names of weights are the same for each use: layer i is KIND`i`.
/// ArgumentError for a layer that cannot be where it is; UnsupportedError for `live` where the sequence's rows behind it matter.
Program build_model(const ModelSpec& spec, const DataShape& data, ModelUse use);

}  // namespace millrace::training
