// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include <millrace/runtime/program/program.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

struct OnnxOptions {
  /// Inputs of the graph, by name, that hold the same value in every run: the program has no such input. An op that
  /// needs a shape or axes when the program is built finds them here. Values beat the initializers of the file.
  std::map<std::string, Tensor> constants;
  /// Inputs of the graph that have an initializer and stay inputs, by name: the states of a graph that is one step. `defaults` takes the
  /// initializers. Other names change nothing.
  std::set<std::string> inputs;
  std::map<std::string, Tensor>* defaults = nullptr;
  /// The ops of the program; null means the standard ones.
  std::shared_ptr<const OpRegistry> registry;
};

/// An ONNX model, opset 6 to 28, as a program of the standard ops; of ONNX Runtime's domain the ops that its quantizer and its optimiser write
/// are known. Nodes may stand in any order. Nothing else evaluates it:
/// RNN, GRU, LSTM, Loop, Scan and SequenceMap become `while` loops, If becomes `if`; a sequence is a list, an optional an
/// optional. Inputs and outputs keep their names, an extent with a name (`dim_param`) is unknown, an input with an
/// initializer is a weight. An initializer that ops read as a setting alone (statistics of BatchNormalization, bounds of Clip) is a literal of the
/// program, and no weight. Values are not computed here, but shapes, axes and pads that the file holds become
/// attributes.
///
/// One line names file, node, expected and found:
///   IoError           the file cannot be read
///   ParseError        it is no ONNX model, or tensors in it are not what they say
///   UnsupportedError  opset, types or ops that this library does not have (all missing ops at once, each with its
///                     nodes), or a build without the part `onnx`
///   ProgramError      nodes that do not fit together, or that read what is computed of their own outputs
/// External tensors lie beneath the model's folder and are not reached through symbolic links. Nothing is allocated
/// from a declared size before it is compared with the bytes that are there. The number of threads, the clock and the
/// machine do not enter.
Program import_onnx(const std::filesystem::path& path, const OnnxOptions& options = {});
/// Imports the bytes of a model; `name` stands for the file in errors. External tensors are refused.
Program parse_onnx(std::string_view bytes, const std::string& name, const OnnxOptions& options = {});

}  // namespace millrace
