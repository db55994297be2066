// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/layers/gru.h>
#include <millrace/runtime/layers/linear.h>
#include <millrace/runtime/training/initialiser.h>

namespace millrace::testing {

inline constexpr std::int64_t predictor_units = 6;

/// A model that learns from a sequence that is still arriving: it predicts a number from the row before, by a GRU whose state `h` goes on as `h_next`. Its
/// answers `y`, and their squared errors `losses`, for each row. `target_levels`: those of the input `target`, 0 or 1.
inline Program predictor(int target_levels) {
  Program program;
  const build::Guard guard(program);
  const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, 1}, 1));
  const build::Var target = build::input("target", VarType(DType::f32, {DDim::unknown, 1}, target_levels));
  const build::Var h = build::input("h", VarType(DType::f32, {DDim::unknown, predictor_units}));
  const training::LayerInit init(3);
  const layers::GruResult made = layers::gru({x}, {init.gru("gru", 1, predictor_units)}, {}, {h});
  const build::Var y = layers::linear(made.y, init.linear("linear", predictor_units, 1));
  const build::Var missed = (target_levels == 0 ? build::drop_lod(y) : y) - target;
  build::output("y", y);
  build::output("losses", missed * missed);
  build::output("h_next", made.h[0]);
  return program;
}

/// Two waves, one upon the other, for it to predict.
inline float wave(std::int64_t t, double shift = 0) {
  return static_cast<float>(std::sin(0.3 * static_cast<double>(t) + shift) + 0.5 * std::sin(0.071 * static_cast<double>(t)));
}

}  // namespace millrace::testing
