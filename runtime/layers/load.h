// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <millrace/runtime/files/safetensors.h>
#include <millrace/runtime/layers/conv1d.h>
#include <millrace/runtime/layers/gru.h>
#include <millrace/runtime/layers/layer_norm.h>
#include <millrace/runtime/layers/linear.h>
#include <millrace/runtime/layers/lstm.h>
#include <millrace/runtime/layers/rnn.h>

/// Weights by name out of a file that apps/convert/weights.py wrote from those of PyTorch or Keras (docs/import_weights.md), in our gate
/// orders and layouts. A recurrent layer NAME has, for each k = layer · directions + direction from 0 on,
///
///     NAME_k_input, NAME_k_recurrent, and perhaps NAME_k_bias, NAME_k_recurrent_bias (GRU), NAME_k_peepholes, NAME_k_projection (LSTM)
///
/// ArgumentError names what is missing and the layers that the file has. Shapes are checked where the weights are used.
namespace millrace::layers {

std::vector<LstmWeights> load_lstm(const SafeTensors& file, const std::string& name = "lstm");
std::vector<GruWeights> load_gru(const SafeTensors& file, const std::string& name = "gru");
std::vector<RnnWeights> load_rnn(const SafeTensors& file, const std::string& name = "rnn");
/// NAME_weight, perhaps NAME_bias.
LinearWeights load_linear(const SafeTensors& file, const std::string& name = "linear");
Conv1dWeights load_conv1d(const SafeTensors& file, const std::string& name = "conv1d");
/// NAME_scale, perhaps NAME_bias.
LayerNormWeights load_layer_norm(const SafeTensors& file, const std::string& name = "layer_norm");
/// NAME_table.
Tensor load_embedding(const SafeTensors& file, const std::string& name = "embedding");

}  // namespace millrace::layers
