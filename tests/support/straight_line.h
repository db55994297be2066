// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <millrace/runtime/program/op_def.h>
#include <millrace/runtime/program/program.h>
#include <millrace/runtime/program/value.h>
#include <millrace/tensor/device.h>
#include <support/same_bits.h>

namespace millrace::testing {

/// The simplest evaluator there is: prepares the ops of block 0 once and runs their kernels in order on one CPU stream.
/// No loops, no arrays that are waited for, no LoD but what the kernels themselves set.
class StraightLine {
 public:
  explicit StraightLine(Program program);
  /// One value per input of the program, in order; gives one per output.
  std::vector<Value> run(const std::vector<Value>& inputs);
  /// The same for programs on plain tensors.
  std::vector<Tensor> operator()(const std::vector<Tensor>& inputs);

 private:
  Program program_;
  CpuDevice device_;
  std::vector<OpKernel> kernels_;
};

/// A program of one op on fresh inputs of `types` (block 0), its outputs named out0, out1, …
Program one_op(const std::string& type, const std::vector<VarType>& types, const Attributes& attributes = {});
/// Runs one op on tensors: what a user would get.
std::vector<Tensor> run_op(const std::string& type, const std::vector<Tensor>& inputs, const Attributes& attributes = {});
/// The types that inference gives; what it throws otherwise.
std::vector<VarType> infer_op(const std::string& type, const std::vector<VarType>& types, const Attributes& attributes = {});
/// The message of the ProgramError that inference throws; empty when it accepts.
std::string refusal(const std::string& type, const std::vector<VarType>& types, const Attributes& attributes = {});

}  // namespace millrace::testing
