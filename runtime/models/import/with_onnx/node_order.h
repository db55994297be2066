// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <millrace_onnx.pb.h>

namespace millrace::importing {

/// Sorts the nodes of a graph, and of each graph inside it, so that a node stands behind the nodes whose outputs it reads. Converters append
/// nodes that others read. A graph that is in order stays as it is; of nodes that are independent the first in the file comes first. Calls of
/// functions are expanded before (functions.h). ProgramError, which opens with `source`, names a node that reads what is computed of its own
/// outputs.
void sort_nodes(onnx::GraphProto& graph, const std::string& source);

}  // namespace millrace::importing
