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

/// Two programs that compute together what one computes.
struct Halves {
  Program first;                    ///< gives the outputs `first`, and the values called `handed`
  Program second;                   ///< takes these values as inputs of the same names, and gives the outputs `second`
  std::vector<std::string> handed;  ///< tensors, arrays and orders, as they are in the program
};

/// Parts a program: ops that the outputs `first` need go to the first half, the other ops that the outputs `second` need to the second one. Each half
/// has the inputs and weights that it needs; literals are in both. For one run of the first half the second may run any number of times, later. No op
/// of it may write an array of the first half, as no backward op writes an array of the forward program. ArgumentError for an output that is not there.
Halves split(const Program& program, const std::vector<std::string>& first, const std::vector<std::string>& second);

}  // namespace millrace::training
