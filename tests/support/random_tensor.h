// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/tensor/tensor.h>

#include "support/random.h"

namespace millrace::testing {

/// Numbers in [-scale, scale); f32 or f64.
inline Tensor random_tensor(Random& random, const DDim& dims, double scale = 1, DType dtype = DType::f32) {
  Tensor made(dtype, dims);
  for (std::int64_t i = 0; i < made.elements(); ++i) {
    const double value = scale * static_cast<double>(random.real());
    if (dtype == DType::f64)
      made.mutable_data<double>()[i] = value;
    else
      made.mutable_data<float>()[i] = static_cast<float>(value);
  }
  return made;
}

}  // namespace millrace::testing
