// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <millrace_onnx.pb.h>

#include <millrace/runtime/models/import/with_onnx/source.h>
#include <millrace/runtime/program/var_type.h>
#include <millrace/tensor/tensor.h>

namespace millrace::importing {

/// The dtype of ONNX's element type. UnsupportedError opens with `where` and names the type.
DType dtype_of_onnx(int element_type, const std::string& where);
/// The type of a graph's input: a tensor, a sequence of tensors (a list), or an optional of either. UnsupportedError for any other.
VarType type_of_onnx(const onnx::TypeProto& type, const std::string& where);
/// The names of a tensor's open extents by axis, "" where one has none; empty where none has one.
std::vector<std::string> extents_of_onnx(const onnx::TypeProto& type);
/// The elements of a tensor in a model, or beside it. ParseError and UnsupportedError open with `where`.
Tensor tensor_of_onnx(const onnx::TensorProto& proto, Source& source, const std::string& where);

}  // namespace millrace::importing
