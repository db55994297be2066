// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <millrace_onnx.pb.h>

namespace millrace::importing {

/// Puts the nodes of the functions that a model brings along (ModelProto.functions: exporters that write by onnxscript have one for each op
/// of theirs) in the places of the nodes that call them, also where functions call functions. UnsupportedError, with `source` and the
/// function, when one calls itself, when one is written for another opset than the model, and when a small file would become a large one;
/// ParseError when a call does not fit its function.
void expand_functions(onnx::ModelProto& model, const std::string& source);

}  // namespace millrace::importing
