// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
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
  std::string place = {};  ///< `FILE:LINE` of a configuration, which opens errors; empty: none

  bool is_recurrent() const { return kind == Kind::lstm || kind == Kind::gru || kind == Kind::rnn; }
};

/// Writes a sequence of tokens for each sequence (Bahdanau et al., 2015; scores of attention as Luong et al., 2015, "general"): a GRU whose input is the
/// token before and the rows of the encoder, weighted by softmax(rows · W·h). Its first state is tanh of a linear layer of the encoder's last states.
struct DecoderSpec {
  std::int64_t units = 0;      ///< H
  std::int64_t embedding = 0;  ///< columns of the table of tokens
  std::int64_t beam = 4;       ///< width of the search of `ModelUse::infer`; 1: greedy
  std::int64_t max_length = 100;
  double length_penalty = 0;
  std::string place = {};  ///< as of a layer
};

/// A stack of layers over ragged rows, and a linear layer to the targets at its end, or a decoder.
struct ModelSpec {
  enum class Pooling : std::uint8_t { last, average, max };
  enum class Loss : std::uint8_t { cross_entropy, mse };
  std::vector<LayerSpec> layers;
  Loss loss = Loss::cross_entropy;
  /// Targets for sequences: the layers behind the last recurrent one see one row for each sequence, made of its states (`last`: both directions
  /// side by side) or of its rows.
  Pooling pooling = Pooling::last;
  std::optional<DecoderSpec> decoder;  ///< of targets that are tokens, and only there; the layers are its encoder, and one is recurrent
  LayerInit::Choice init;
  std::uint64_t seed = 1;

  bool is_recurrent() const {
    return std::any_of(layers.begin(), layers.end(), [](const LayerSpec& layer) { return layer.is_recurrent(); });
  }
};

/// The dtype and the extents of the data that a model is for.
struct DataShape {
  DType dtype = DType::f32;   ///< of the rows; i64: numbers of words
  std::int64_t features = 0;  ///< of a row; of words: how many there are
  std::int64_t outputs = 0;   ///< classes, or values of a target
  bool per_row = false;
  bool tokens = false;                ///< `outputs` counts them, the end not among them, whose number is `outputs`
  std::optional<FeatureScale> scale;  ///< rows are (x − mean) / deviation first, inside the model
};
/// ShapeError, DTypeError: rows of more than one axis or without a feature, and others that no model here is for.
DataShape shape_of(const Dataset& data);

enum class ModelUse : std::uint8_t {
  /// Inputs x, target and, with dropout, sample (i64 [sequences]: their numbers) and epoch (i64); outputs loss, scores. Of tokens, those of `decoder_feeds`.
  train,
  score,  ///< the same without dropout
  infer,  ///< input x; outputs scores [N or rows, K] and, of classes, probabilities. Of tokens: tokens, totals, as `Generated` (generation.h) says
  live  ///< the same with a row of scores for each row of x: those of the sequence that ends there
};

/// The model as a program with weights that `spec.seed` begins. Names of weights are the same for each use: layer i is KIND`i`.
/// ArgumentError for a layer that cannot be where it is; OutOfMemoryError names a layer whose weights have no room; UnsupportedError for `live` where the sequence's rows behind it matter.
Program build_model(const ModelSpec& spec, const DataShape& data, ModelUse use);

/// A decoder's training data: each target sequence as its tokens and the end (`end`, DataShape::outputs), and for each of those the one before,
/// which is the end at first.
struct DecoderFeeds {
  LoDTensor before;  ///< i64 [tokens + N], one level
  Tensor target;     ///< i64 [tokens + N]
};
DecoderFeeds decoder_feeds(const Dataset& data, std::int64_t end);

}  // namespace millrace::training
