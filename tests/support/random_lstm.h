// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

#include <millrace/runtime/layers/lstm.h>
#include <reference/reference.h>

#include "support/random.h"

namespace millrace::testing {

/// Numbers in [-scale, scale), of any floating dtype.
inline Tensor random_of(Random& random, DType dtype, const DDim& dims, double scale = 1) {
  reference::Values made{dims, {}};
  for (std::int64_t i = 0; i < dims.elements(); ++i) made.at.push_back(scale * static_cast<double>(random.real()));
  return reference::tensor(made, dtype);
}

/// Weights of an LSTM of `hidden` units over rows of `input` features; with peepholes or without.
inline layers::LstmWeights random_lstm_weights(Random& random, DType dtype, std::int64_t input, std::int64_t hidden) {
  const double scale = 1 / std::sqrt(static_cast<double>(hidden));
  layers::LstmWeights made{random_of(random, dtype, DDim{input, 4 * hidden}), random_of(random, dtype, DDim{hidden, 4 * hidden}, scale),
                           random_of(random, dtype, DDim{4 * hidden}), std::nullopt, std::nullopt};
  if (random.coin()) made.peepholes = random_of(random, dtype, DDim{3 * hidden});
  return made;
}

}  // namespace millrace::testing
