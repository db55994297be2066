// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>

#include <millrace_onnx.pb.h>

namespace millrace::importing {

/// Names of values that ops of the graph, and of the graphs inside it, read as settings alone: statistics of BatchNormalization, bounds of Clip. A
/// table in the source lists the inputs. A value that some other input reads too is a weight, and so is an output of a graph. The nodes are sorted.
std::set<std::string> settings_of(const onnx::GraphProto& graph);

}  // namespace millrace::importing
