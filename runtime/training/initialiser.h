// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <millrace/runtime/layers/gru.h>
#include <millrace/runtime/layers/linear.h>
#include <millrace/runtime/layers/lstm.h>
#include <millrace/runtime/layers/rnn.h>
#include <millrace/tensor/tensor.h>

namespace millrace::training {

/// The first value of a weight. `scale` is the constant, the bound, the standard deviation, or the gain g. For a weight of [in, out] (with more axes
/// in front, K of them all together: in and out times K):
///
///     uniform          U(−scale, scale)
///     normal           N(0, scale²)
///     xavier_uniform   U(−a, a), a = g·√(6 / (in + out))       Glorot and Bengio, 2010
///     xavier_normal    N(0, g²·2 / (in + out))
///     he_uniform       U(−a, a), a = g·√(3 / in)               He et al., 2015; their g for ReLU is √2
///     he_normal        N(0, g² / in)
///     orthogonal       g·Q of the QR decomposition of a normal matrix, R's diagonal positive     Saxe et al., 2014
struct Initialiser {
  enum class Kind : std::uint8_t { constant, uniform, normal, xavier_uniform, xavier_normal, he_uniform, he_normal, orthogonal };
  Kind kind = Kind::xavier_uniform;
  double scale = 1;
};

/// A tensor of `dtype` (floating: DTypeError) that is a function of the arguments alone: the number of an element is keyed by seed, name and
/// the element's place, so that no weight depends on which others a model has. `gates` equal blocks along the last axis are each a matrix
/// of their own. ShapeError when the last axis is no multiple of it; for `orthogonal` and the others that look at in and out, when there are
/// less than two axes. ArgumentError for a negative or infinite scale.
Tensor initialise(const Initialiser& how, DType dtype, const DDim& dims, std::uint64_t seed, const std::string& name,
                  std::int64_t gates = 1);

/// Weights of layers from one seed. Parameters are keyed by the names that the layers give them (NAME_0_input, NAME_weight). As PyTorch
/// begins its modules: everything of a recurrent layer of H units, and everything of a linear layer with `in` inputs (H = in), is
/// U(−1/√H, 1/√H). An initialiser that is given replaces that for matrices: `input` for W, `recurrent` for R; biases are zero then, and
/// those of an LSTM's forget gate `forget_bias`.
class LayerInit {
 public:
  explicit LayerInit(std::uint64_t seed, DType dtype = DType::f32) : seed_(seed), dtype_(dtype) {}

  struct Choice {
    std::optional<Initialiser> input;
    std::optional<Initialiser> recurrent;
    double forget_bias = 1;
  };

  /// `name` as the layer's options have it, `k` = layer · directions + direction.
  layers::LstmWeights lstm(const std::string& name, std::int64_t inputs, std::int64_t units, std::size_t k = 0) const;
  layers::GruWeights gru(const std::string& name, std::int64_t inputs, std::int64_t units, std::size_t k = 0) const;
  layers::RnnWeights rnn(const std::string& name, std::int64_t inputs, std::int64_t units, std::size_t k = 0) const;
  layers::LinearWeights linear(const std::string& name, std::int64_t inputs, std::int64_t outputs) const;
  /// N(0, 1), as torch.nn.Embedding.
  Tensor embedding(const std::string& name, std::int64_t count, std::int64_t width) const;

  Choice choice;

 private:
  Tensor matrix(const std::optional<Initialiser>& chosen, const std::string& name, const DDim& dims, std::int64_t units,
                std::int64_t gates) const;
  Tensor bias(const std::string& name, std::int64_t units, std::int64_t gates) const;

  std::uint64_t seed_;
  DType dtype_;
};

}  // namespace millrace::training
