// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <millrace/runtime/program/program.h>
#include <millrace/runtime/training/weights.h>

namespace millrace::training {

/// The weights of a program by the names of their vars.
Tensors weights_of(const Program& program);

/// A copy of `program` with inputs in the place of its weights: the one called NAME is fed as `fed_name(NAME)`. An Executable of the copy packs
/// no weight once for all, so that weights may change from run to run.
Program with_fed_weights(const Program& program);
std::string fed_name(const std::string& weight);

/// A copy of `program` with only the outputs that are named, and only the inputs, weights and ops that they need; weights that `weights` names
/// have its values. ArgumentError for an output or a weight that is not there, DTypeError or ShapeError for a weight of another type.
Program extract(const Program& program, const std::vector<std::string>& outputs, const Tensors& weights = {});

}  // namespace millrace::training
