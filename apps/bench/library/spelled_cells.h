// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include <millrace/runtime/layers/recurrent.h>
#include <millrace/runtime/program/program.h>
#include <millrace/tensor/dtype.h>

namespace millrace::bench {

/// A cell that a user spelled out of ops, over rows of H features. `gates` blocks of H columns are multiplied with x, and as many with h: its
/// products are gates / 4 of an LSTM's.
struct SpelledCell {
  const char* name;
  int gates;
  std::size_t states;
  /// Into the program under construction. Weights of normally distributed numbers; `products`: of f32, or of bf16, to which x and h are
  /// rounded for them.
  std::function<layers::Cell(std::int64_t hidden, DType products)> make;
};
std::span<const SpelledCell> spelled_cells();

/// The cell in `layers::unroll` over rows with lengths: f32 "x" [rows, H] to "y".
Program program_of(const SpelledCell& cell, std::int64_t hidden, DType products = DType::f32);

}  // namespace millrace::bench
