// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

enum class Distribution {
  uniform,  ///< [0, 1): of 24 bits in f32, of 53 bits in f64
  normal,   ///< mean 0, variance 1 (Box and Muller, 1958, in f64, rounded once)
};

struct RandomOptions {
  Distribution distribution = Distribution::uniform;
  DType dtype = DType::f32;  ///< f32 or f64
  std::uint64_t seed = 0;
  std::uint64_t number = 0;  ///< of this op among those of the program
};

/// Random numbers with the extents `dims`.
///
/// The numbers are counter-based (Philox 4x32-10, Salmon et al. 2011), keyed by (seed, number, key) and counted by the place of the element in the order of
/// rows: neither threads nor other calls matter, and the same call gives the same numbers. The first elements of a longer result are those of a shorter
/// one. DTypeError; on the CPU alone: UnsupportedError elsewhere.
Tensor random_numbers(const DDim& dims, std::uint64_t key, const RandomOptions& options, StreamRef stream);

}  // namespace millrace
